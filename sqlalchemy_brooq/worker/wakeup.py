"""
Wake-ups from other processes: listens to ``NOTIFY``, and says so where nothing arrives.

A wake-up is a hint. Polling finds every job without it, only later.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, Final

from sqlalchemy_brooq.vocabulary import CHANNEL
from sqlalchemy_brooq.worker.lines import Lines
from sqlalchemy_brooq.worker.log import log

WAIT: Final = 1.0
"""Seconds in one wait for notifications."""
PROBE: Final = 5.0
"""Seconds after which the server is asked for a sign of life: one that is cut off looks like one with no news."""
ECHO: Final = 3.0
"""Seconds within which a notification to itself must arrive."""
LIMIT: Final = 3.0
"""Seconds that an answer of the server may take, beyond what was waited for."""


class Listener:
    """
    Listens on a connection of its own.

    Args:
        lines: The worker's connections. Where notifications do arrive, each has a session of its own; where not,
            there is a pooler in between, which shares its sessions among clients.
        topics: Wake for these.
        worker: Wake the heartbeat for a cancel that names this worker.
        on_jobs: Called when there may be ready jobs.
        on_cancel: Called when one of this worker's jobs was canceled.
    """

    def __init__(
        self,
        lines: Lines,
        topics: Collection[str],
        worker: str,
        on_jobs: Callable[[], None],
        on_cancel: Callable[[], None],
    ) -> None:
        self._lines = lines
        self._connection = lines.listener
        self._topics = frozenset(topics)
        self._canceled = f"cancel:{worker}"
        self._on_jobs = on_jobs
        self._on_cancel = on_cancel
        self._listening = False
        self._deaf = False
        self._heard_from = 0.0

    def round(self) -> float:
        """
        Wait once for notifications, and return 0; after a failed self-test, only pass the time.
        """
        if self._deaf:
            return WAIT
        if not self._listening:
            self._listen()
            return 0.0
        with self._connection.driver(limit=WAIT + LIMIT) as driver:
            for notification in driver.notifies(timeout=WAIT):
                self._heard(notification.payload)
            if time.monotonic() - self._heard_from > PROBE:
                driver.execute("SELECT 1")
                self._heard_from = time.monotonic()
        return 0.0

    def recover(self) -> None:
        """
        Listen anew: the connection was dropped.
        """
        self._listening = False
        self._connection.drop()

    def _listen(self) -> None:
        """
        Connect and listen; behind a transaction pooler LISTEN succeeds and nothing ever arrives, so try it out.

        By another connection: what a session notifies itself of comes with the answer, also through a pooler.
        """
        echo = f"echo:{secrets.token_hex(8)}"
        with self._connection.driver(limit=ECHO + LIMIT) as driver:
            driver.autocommit = True
            driver.execute(f"LISTEN {CHANNEL}")  # Core has no construct for it
            self._lines.notify(echo)
            self._listening = self._hears(driver, echo)
        if self._listening:
            self._heard_from = time.monotonic()
            self._lines.own_sessions()
            # What was enqueued while nobody listened was not announced to us.
            self._on_jobs()
            return
        self._deaf = True
        self.recover()
        self._lines.share_sessions()
        log.warning(
            "LISTEN receives nothing here (a transaction pooler?): polling instead. "
            "QUEUE_WAKEUP=poll says so for good, and uses nothing of a session's state"
        )

    def _hears(self, driver: Any, echo: str) -> bool:
        until = time.monotonic() + ECHO
        while (left := until - time.monotonic()) > 0:
            for notification in driver.notifies(timeout=left, stop_after=1):
                if notification.payload == echo:
                    return True
                self._heard(notification.payload)
        return False

    def _heard(self, payload: str) -> None:
        self._heard_from = time.monotonic()
        if payload in self._topics:
            self._on_jobs()
        elif payload == self._canceled:
            self._on_cancel()
