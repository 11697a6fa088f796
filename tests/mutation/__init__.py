"""
Whether the tests would notice: the code with one small fault at a time, and the tests that are to find it.

``python -m tests.mutation`` makes a run. Not part of the test run. `mutants` make the faults, `targets` say which tests
answer for which module, `runner` lets them; `accepted` has the faults that nobody can notice, with a reason for each.

mutmut can't do this here, as it changes neither what is decorated nor what was made at import, which statements are;
cosmic-ray begins with a new interpreter each time, and leaves no condition out of a ``where()``.
"""
