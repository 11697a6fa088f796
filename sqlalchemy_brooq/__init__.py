"""
A job queue with no broker, as a SQLAlchemy extension on PostgreSQL.

Everything a consumer needs is in this one namespace. Importing it touches no
database, reads no environment, starts nothing and imports no driver.

PYTEST_DONT_REWRITE, which is for pytest: it would warn whoever has imported this before it, as we bring a plugin along.
"""

from __future__ import annotations

from sqlalchemy_brooq import migrations, tracing
from sqlalchemy_brooq.aio import acancel, aenqueue, aenqueue_many, areplay
from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.config import Config, HandlerOptions
from sqlalchemy_brooq.errors import (
    AttemptTimeout,
    BrooqError,
    CancelJob,
    ConfigError,
    Interruption,
    InvalidJob,
    InvalidPayload,
    JobNotFound,
    LeaseLost,
    LifecycleError,
    MaxExecutionExceeded,
    PayloadError,
    PreserveAttempt,
    ProtectedColumn,
    RegistrationError,
    RetryLater,
    SchemaMismatch,
    Shutdown,
    Signal,
    TransactionMisused,
    delay_of,
)
from sqlalchemy_brooq.logs import JobLogFilter
from sqlalchemy_brooq.migrations.autogenerate import include_object
from sqlalchemy_brooq.model import Job, metadata
from sqlalchemy_brooq.producer import cancel, enqueue, enqueue_many, replay
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.service import service_app
from sqlalchemy_brooq.vocabulary import Enqueued, JobEvent, JobState, Lease

__version__ = "0.1.0.dev0"

__all__ = [
    "AttemptTimeout",
    "BrooqError",
    "CancelJob",
    "Claim",
    "Config",
    "ConfigError",
    "Enqueued",
    "HandlerOptions",
    "Interruption",
    "InvalidJob",
    "InvalidPayload",
    "Job",
    "JobEvent",
    "JobLogFilter",
    "JobNotFound",
    "JobState",
    "Lease",
    "LeaseLost",
    "LifecycleError",
    "MaxExecutionExceeded",
    "PayloadError",
    "PreserveAttempt",
    "ProtectedColumn",
    "Queue",
    "RegistrationError",
    "RetryLater",
    "SchemaMismatch",
    "Shutdown",
    "Signal",
    "TransactionMisused",
    "acancel",
    "aenqueue",
    "aenqueue_many",
    "areplay",
    "cancel",
    "delay_of",
    "enqueue",
    "enqueue_many",
    "include_object",
    "metadata",
    "migrations",
    "replay",
    "service_app",
    "tracing",
]
