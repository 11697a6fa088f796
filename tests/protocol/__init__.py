"""
A stage for the whole protocol, and what must hold on it; the play is `test_protocol_model`.

A database remembers every move of every job, connections lose answers, transactions stay open, and the rounds and
handlers of whole workers are steps of a test.
"""

import pytest

pytest.register_assert_rewrite("tests.protocol.promises")
