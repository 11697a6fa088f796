"""
Typed payloads: objects of the consumer's classes written as JSON values, and JSON values read into them.

Knows annotations and JSON, and nothing of jobs, handlers or SQL. pydantic and msgspec are used where a class is theirs,
and never imported: a class of theirs can't be there before they are.
"""
