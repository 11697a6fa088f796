"""
Waiting for the locks of others: how long the current transaction may, and who waits for whom.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from sqlalchemy import Executable, Text, Uuid, and_, any_, column, exists, func, literal_column, select, table
from sqlalchemy import bindparam as bind

from sqlalchemy_brooq.model import JOB

_LOCKS: Final = table(
    "pg_locks", column("locktype"), column("transactionid"), column("pid"), column("granted"), schema="pg_catalog"
)


@cache
def limit_lock_waits() -> Executable:
    """
    Set ``lock_timeout`` until the transaction, or the savepoint, is rolled back; answers with what it was before.

    Parameter: ``limit``, such as ``500ms``; ``0`` is no limit.
    """
    before = func.current_setting("lock_timeout").label("before")
    return select(before, func.set_config("lock_timeout", bind("limit", type_=Text), True))


@cache
def holder_waits_for_us() -> Executable:
    """
    Tell whether the transaction that holds a job's row waits for the current one; a row held by several is not found.

    Parameter: ``job_id``.
    """
    holder = _LOCKS.alias("holder")
    # An updated or locked row has its holder's transaction in xmax, which that transaction has a lock on itself.
    holds = and_(
        holder.c.locktype == literal_column("'transactionid'"),
        holder.c.transactionid == literal_column("xmax"),
        holder.c.granted,
    )
    waits = func.pg_backend_pid() == any_(func.pg_blocking_pids(holder.c.pid))
    return select(exists().select_from(JOB.join(holder, holds)).where(JOB.c.id == bind("job_id", type_=Uuid), waits))
