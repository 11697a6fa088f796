"""
Every SQL statement as a Core builder that returns an Executable and runs nothing.

One module for each party. In the consumer's transactions: `producing` (enqueue, cancel, replay). A worker's own:
`exchange` (the pump's settle and claim), `upkeep` (heartbeat and reaper), `retention`, `waiting` (for the locks of
others) and `watching` (the gauges). For people: `browsing`, `operating`, `checking` (the doctor). `schema` asks what
table there is, and `testing` is the testing kit's.

`fence` holds the one guard of every write about a claim, and the states as literals; `shapes` what else several share.
"""
