"""
What consumers test with: jobs run in a test's own transaction, assertions, time that passes, and faults.

A test with it needs no worker, no sleep and no cleanup. Imports nothing of pytest; the fixtures are a plugin's.
"""

from __future__ import annotations

from sqlalchemy_brooq.testing.crashing import (
    CrashPlace,
    CrashReport,
    NotIdempotent,
    acrash_everywhere,
    crash_everywhere,
)
from sqlalchemy_brooq.testing.faults import Fault, crash_after_commit, crash_before_settle, interrupt, lose_lease
from sqlalchemy_brooq.testing.looking import (
    aassert_enqueued,
    aassert_not_enqueued,
    aenqueued,
    assert_enqueued,
    assert_not_enqueued,
    enqueued,
)
from sqlalchemy_brooq.testing.records import AttemptRecord
from sqlalchemy_brooq.testing.routing import arolled_back, rolled_back
from sqlalchemy_brooq.testing.running import adrain, arun_job, drain, run_job
from sqlalchemy_brooq.testing.travel import aadvance, advance

__all__ = [
    "AttemptRecord",
    "CrashPlace",
    "CrashReport",
    "Fault",
    "NotIdempotent",
    "aadvance",
    "aassert_enqueued",
    "aassert_not_enqueued",
    "acrash_everywhere",
    "adrain",
    "advance",
    "aenqueued",
    "arolled_back",
    "arun_job",
    "assert_enqueued",
    "assert_not_enqueued",
    "crash_after_commit",
    "crash_before_settle",
    "crash_everywhere",
    "drain",
    "enqueued",
    "interrupt",
    "lose_lease",
    "rolled_back",
    "run_job",
]
