"""
Waiting for conditions, instead of sleeping and hoping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import pytest
from sqlalchemy import Engine, text

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 30.0, message: str = "it never came true") -> T:
    """
    Return the first true value of *predicate*, asked every 10 ms; fail with the last value after *timeout* seconds.
    """
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            pytest.fail(f"{message}: still {value!r} after {timeout:g} s")
        time.sleep(0.01)
    return value


def row(engine: Engine, job_id: UUID) -> Mapping[str, Any]:
    """
    Return the row of a job as it is committed now, read on a connection of its own.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        return dict(connection.execute(text("SELECT * FROM job WHERE id = :id"), {"id": job_id}).mappings().one())
