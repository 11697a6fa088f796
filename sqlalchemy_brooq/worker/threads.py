"""
Threads for plain handlers: as many as there are jobs for them, and none that keeps the process alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from sqlalchemy_brooq.worker.log import log

Work = Callable[[], object]
_END: Final = None


class Threads:
    """
    Runs pieces of work, each on a thread of its own at that time; threads are used again.

    ``concurrent.futures`` has no place for a handler that never ends: its threads are waited for at exit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._told = False

    def submit(self, work: Work) -> None:
        """
        Run *work* at once, on an idle thread or a new one; it must not raise.

        Where no more threads can be had, it waits for one of those that there are.

        Raises:
            RuntimeError: There are none; *work* is not run.
        """
        with self._lock:
            if self._busy >= len(self._threads):
                self._grow()
            self._busy += 1
        self._queue.put(work)

    def close(self, timeout: float) -> bool:
        """
        End the idle threads and wait for the busy ones; False if some are still at work after *timeout* seconds.
        """
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(_END)
        until = time.monotonic() + timeout
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _grow(self) -> None:
        thread = threading.Thread(target=self._work, name=f"brooq-{self._name}-{len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if not self._threads:
                raise
            if not self._told:
                self._told = True
                log.error("only %d threads can be had for handlers (%s): jobs wait for them", len(self._threads), error)
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while True:
            work = self._queue.get()
            if work is _END:
                return
            try:
                work()
            except BaseException:  # noqa: BLE001 - a thread's top: the work was to catch everything
                log.exception("a piece of work raised on thread %s", threading.current_thread().name)
            finally:
                with self._lock:
                    self._busy -= 1
