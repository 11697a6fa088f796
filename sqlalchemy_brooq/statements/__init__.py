"""
Every SQL statement as a Core builder that returns an Executable and runs nothing.

One module for each party: `producing` (enqueue, cancel, replay), `exchange` (the pump's
settle and claim), `upkeep` (heartbeat, reaper, retention), `watching` (metrics, health).
`fence` holds the one guard of every write about a claim, and the states as literals.
"""
