"""
The supervisor of ``brooq-worker run --processes N``: a small process that starts workers, and starts them again.

It is a program of its own (``__main__``), and the workers are children that it starts by their command. So it holds
nothing that a fork could share, no engine and no thread of a worker's, and needs little memory and little that
could fail. For that it imports the standard library and prometheus_client, and of this package only what needs no
more: `serving`, `metrics`, `gauges`, `errors`. It knows nothing of jobs, of settings, or of the database: what it has
to know of a worker, the worker tells it (`channel`).
"""
