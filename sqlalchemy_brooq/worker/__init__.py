"""
The engine: claims jobs, runs their handlers, keeps their leases, and settles them.

Knows time, threads and event loops, but writes no SQL of its own: `store` runs the statements.
"""
