"""
How long a statement of the current transaction may wait for the locks of others.
"""

from __future__ import annotations

from functools import cache

from sqlalchemy import Executable, Text, func, select
from sqlalchemy import bindparam as bind


@cache
def limit_lock_waits() -> Executable:
    """
    Set ``lock_timeout`` until the transaction, or the savepoint, is rolled back; answers with what it was before.

    Parameter: ``limit``, such as ``500ms``; ``0`` is no limit.
    """
    before = func.current_setting("lock_timeout").label("before")
    return select(before, func.set_config("lock_timeout", bind("limit", type_=Text), True))
