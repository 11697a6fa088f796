"""
Every SQL statement as a Core builder that returns an Executable and runs nothing.

One module for each party: `producing` (enqueue, cancel, replay), `exchange` (the pump's settle and claim), `upkeep`
(heartbeat, reaper), `retention`, `waiting` (chained jobs, which may wait for a lock), `watching` (the sampler),
`browsing` and `operating` (people), `checking` (the doctor), `schema` (migrations), `testing` (the kit).
`fence` holds the one guard of every write about a claim, and the states as literals; `shapes` what several need.
"""
