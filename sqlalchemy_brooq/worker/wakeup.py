"""
Wake-ups from other processes: listens to ``NOTIFY``, and says so where nothing arrives.

A wake-up is a hint. Polling finds every job without it, only later.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from sqlalchemy import Engine

from sqlalchemy_brooq.vocabulary import CHANNEL
from sqlalchemy_brooq.worker.connection import break_off
from sqlalchemy_brooq.worker.journal import log

WAIT: Final = 1.0
"""Seconds in one wait for notifications."""
ECHO: Final = 3.0
"""Seconds within which a notification to itself must arrive."""


class Listener:
    """
    Listens on a connection of its own.

    Args:
        engine: The engine whose connections are imitated; its driver is psycopg.
        topics: Wake for these.
        worker: Wake the heartbeat for a cancel that names this worker.
        on_jobs: Called when there may be ready jobs.
        on_cancel: Called when one of this worker's jobs was canceled.
    """

    def __init__(
        self,
        engine: Engine,
        topics: Collection[str],
        worker: str,
        on_jobs: Callable[[], None],
        on_cancel: Callable[[], None],
    ) -> None:
        self._pool = engine.pool.recreate()
        self._topics = frozenset(topics)
        self._canceled = f"cancel:{worker}"
        self._on_jobs = on_jobs
        self._on_cancel = on_cancel
        self._fairy: Any = None
        self._deaf = False

    def round(self) -> float:
        """
        Wait once for notifications, and return 0; after a failed self-test, only pass the time.
        """
        if self._deaf:
            return WAIT
        if self._fairy is None:
            self._listen()
            return 0.0
        for notification in self._driver.notifies(timeout=WAIT):
            self._heard(notification.payload)
        return 0.0

    def recover(self) -> None:
        """
        Drop the connection.
        """
        fairy, self._fairy = self._fairy, None
        if fairy is not None:
            with contextlib.suppress(Exception):
                fairy.invalidate()

    def end_wait(self) -> None:
        """
        Wake the thread that waits for notifications, for it to end; from any other thread.
        """
        fairy = self._fairy
        if fairy is not None:
            break_off(fairy.driver_connection)

    def close(self) -> None:
        """
        Close for good.
        """
        self.recover()
        self._pool.dispose()

    @property
    def _driver(self) -> Any:
        return self._fairy.driver_connection

    def _listen(self) -> None:
        """
        Connect and listen; behind a transaction pooler LISTEN succeeds and nothing ever arrives, so try it out.
        """
        self._fairy = self._pool.connect()
        self._driver.autocommit = True
        self._driver.execute(f"LISTEN {CHANNEL}")  # Core has no construct for it
        echo = f"echo:{secrets.token_hex(8)}"
        self._driver.execute("SELECT pg_notify(%s, %s)", (CHANNEL, echo))
        until = time.monotonic() + ECHO
        while (left := until - time.monotonic()) > 0:
            for notification in self._driver.notifies(timeout=left, stop_after=1):
                if notification.payload == echo:
                    # What was enqueued while nobody listened was not announced to us.
                    self._on_jobs()
                    return
                self._heard(notification.payload)
        self._deaf = True
        self.recover()
        log.warning(
            "LISTEN receives nothing here (a transaction pooler?): polling instead. "
            "QUEUE_WAKEUP=poll says so for good, and uses nothing of a session's state"
        )

    def _heard(self, payload: str) -> None:
        if payload in self._topics:
            self._on_jobs()
        elif payload == self._canceled:
            self._on_cancel()
