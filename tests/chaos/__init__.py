"""
The promises while machines fail: a load, the faults it has to live through, and a count of what came of it.

``python -m tests.chaos`` prints the figures; `tests.test_chaos` holds them against the promises.
"""
