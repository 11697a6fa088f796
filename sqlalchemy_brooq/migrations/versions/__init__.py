"""
The shipped revisions; alembic loads them by path, nothing imports them.
"""
