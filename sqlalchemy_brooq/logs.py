"""
Which job a log line is about: known in a handler's context, and put on the records that are made there.

Installs nothing by itself. Never sees a payload.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final
from uuid import UUID

from sqlalchemy_brooq.claim import Claim

_current: Final[ContextVar[Claim | None]] = ContextVar("brooq_claim", default=None)
"""The claim whose handler is running, in that handler's context."""


def enter(claim: Claim) -> None:
    """
    Let the lines of this context be about *claim*; the context is the attempt's own, and ends with it.
    """
    _current.set(claim)


def fields(job_id: UUID, topic: str, attempt: int) -> dict[str, object]:
    """
    Return what every line about a job has as ``extra``.
    """
    return {"job_id": str(job_id), "topic": topic, "attempt": attempt}


class JobLogFilter(logging.Filter):
    """
    Puts ``job_id``, ``topic`` and ``attempt`` on the records that are made while a handler runs, and lets all pass.

    For a program that configures its own logging: add it to a logging handler, not to a logger, whose filters don't
    see what its children log. ``brooq-worker run`` does so by itself. A record that has a field of that name keeps
    its own, so a formatter that needs them on every line names defaults.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """
        Complete *record*.
        """
        claim = _current.get()
        if claim is not None:
            for name, value in fields(claim.id, claim.topic, claim.attempt).items():
                record.__dict__.setdefault(name, value)
        return True
