"""
What `brooq-worker demo` shows, and the launcher of the PostgreSQL that it and the tests run on.
"""
