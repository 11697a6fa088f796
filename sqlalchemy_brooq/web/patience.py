"""
Transactions that a server which doesn't answer can't hold for ever.

Owns the deadline of each transaction, on the side of the client: a server that is frozen, or cut off, keeps to no time
limit of its own. Knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

from sqlalchemy_brooq.worker.connection import CONNECT, break_off, short_transaction

PATIENCE: Final = timedelta(seconds=10)
"""How much longer than the server may take for a statement a transaction may take, all in all."""


class Limited:
    """
    Lends connections, each in a transaction of its own; what takes longer than *limit* is broken off.

    Connecting has a limit, too, unless the engine's own arguments name another. What a pool does with a connection
    before it hands it out has none: the ping of ``pool_pre_ping`` waits for as long as the server is silent.

    Args:
        engine: One of psycopg's, which others may use as well.
        limit: How long a transaction may take.
    """

    def __init__(self, engine: Engine, limit: timedelta) -> None:
        self._engine = engine
        self._limit = limit.total_seconds()
        self._own = threading.local()
        event.listen(engine, "do_connect", self._limit_connect)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Connection]:
        """
        Lend one.
        """
        self._own.connects = True
        try:
            with short_transaction(self._engine, self._guarded) as connection:
                yield connection
        finally:
            self._own.connects = False

    def _limit_connect(self, _dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
        if getattr(self._own, "connects", False):
            options.setdefault("connect_timeout", CONNECT)

    @contextlib.contextmanager
    def _guarded(self, connection: Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        guard = threading.Lock()
        is_over = False

        def expire() -> None:
            with guard:  # or it would break off what the pool has handed to somebody else by now
                if not is_over:
                    break_off(driver)

        timer = threading.Timer(self._limit, expire)
        timer.name, timer.daemon = "brooq-patience", True
        timer.start()
        try:
            yield
        finally:
            with guard:
                is_over = True
            timer.cancel()
