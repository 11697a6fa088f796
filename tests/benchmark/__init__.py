"""
How fast: ours beside bare SQL, on one server, in turns. Not part of the test run.

``python -m tests.benchmark`` makes a run and prints its tables. `scenarios` say what is measured, `contestants` what
takes part; `runner` lets them take turns, `report` makes tables of the figures.
"""
