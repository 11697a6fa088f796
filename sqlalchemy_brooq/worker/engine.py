"""
One worker: starts its loops in order, and ends them in the reverse.

Owns the order of start and stop. What each loop does is its own module's; what it is made of, `assembly` knows.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import dataclass
from typing import Final

from sqlalchemy_brooq import schema
from sqlalchemy_brooq.errors import Shutdown
from sqlalchemy_brooq.vocabulary import Notice
from sqlalchemy_brooq.worker import forks
from sqlalchemy_brooq.worker.assembly import Assembly
from sqlalchemy_brooq.worker.connection import short_transaction
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.hooks import Hooks
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.log import log
from sqlalchemy_brooq.worker.loops import LoopHealth
from sqlalchemy_brooq.worker.setup import Setup

OBEY: Final = 2.0
"""Seconds that an interrupted handler has to end when the worker shuts down."""
FLUSH: Final = 5.0
"""Seconds that the last outcomes have to reach the database."""
JOIN: Final = 3.0
"""Seconds that the loops have to end their rounds."""
AT_ONCE: Final = 0.1
"""Seconds for threads of which nothing is expected any more."""
LOOK: Final = 0.005
"""Seconds between looks at whether the last outcomes are written."""


@dataclass(frozen=True, slots=True)
class StopReport:
    """
    How a worker ended.
    """

    abandoned: int
    """Handlers that ignored the shutdown; their leases run out by themselves."""
    unwritten: int
    """Outcomes that could not be written in time; these jobs will run again."""
    hung: int = 0
    """Slots that hung handlers had taken, all there are, when the worker gave up by itself."""

    @property
    def clean(self) -> bool:
        """
        Whether it ended because it was asked to, and nothing was left behind.
        """
        return not (self.abandoned or self.unwritten or self.hung)


@dataclass(frozen=True, slots=True)
class Health:
    """
    How a worker is: what ``/healthz`` answers with.
    """

    healthy: bool
    """Whether all is well with the loops, and hung handlers have not taken every slot."""
    worker: str
    """The name that stands in ``locked_by``."""
    leases: int
    """Jobs that it holds: waiting, running, or with an outcome that is being written."""
    slots: int
    """How many handlers may run at once."""
    hung: int
    """How many slots hung handlers have taken."""
    loops: tuple[LoopHealth, ...]
    """How each background loop is."""


class Worker:
    """
    Claims jobs, runs their handlers and settles them, from `start` to `stop`.

    Args:
        setup: What it is made from.
    """

    def __init__(self, setup: Setup) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._setup = setup
        self._hooks = Hooks(setup.callbacks, setup.metrics.event_dropped)
        self._desk = Desk(self.name, Journal(setup.metrics, self._hooks))
        parts = Assembly(setup, self._desk)
        self._lines = parts.lines
        self._executor = parts.executor
        self._crew = parts.crew
        self._sampler = parts.sampler
        self._loops = parts.loops
        self.hint = parts.hint
        self.look_at_leases = parts.look_at_leases

    def start(self) -> None:
        """
        Check the schema, and start every loop.

        Raises:
            SchemaMismatch: The table is missing, older or newer.
            sqlalchemy.exc.DBAPIError: The database can't be reached.
        """
        try:
            with short_transaction(self._setup.sources.engine) as connection:
                schema.check_schema(connection)
            self._hooks.start()
            self._executor.start()
            for loop in self._loops.values():
                loop.start()
        except BaseException:
            self._end(AT_ONCE)
            raise
        topics = ", ".join(sorted(self._setup.handlers)) or "no topic"
        log.info("worker %s serves %s", self.name, topics, extra=self._about(Notice.WORKER_STARTED))

    def stop(self, grace: float) -> StopReport:
        """
        Stop claiming, let handlers finish, interrupt those that don't, write what there is, and end.

        Args:
            grace: Seconds for the handlers to finish by themselves.
        """
        running = len(self._executor.running())
        log.info(
            "worker %s is stopping; %d handlers run", self.name, running, extra=self._about(Notice.WORKER_STOPPING)
        )
        self._executor.stop_admitting()
        self._crew.stop_claiming()
        self._requeue_waiting()
        self._executor.drain(grace, OBEY)
        abandoned = self._abandon()
        unwritten = self._flush()
        self._end(OBEY if not abandoned else AT_ONCE)
        report = StopReport(abandoned, unwritten)
        how = "" if report.clean else f": {report}"
        log.info("worker %s has stopped%s", self.name, how, extra=self._about(Notice.WORKER_STOPPED))
        return report

    def _about(self, notice: Notice) -> dict[str, object]:
        return {"event": notice.value, "worker": self.name}

    def hurry(self) -> None:
        """
        End the grace period of a stop that is under way.
        """
        self._executor.hurry()

    def leave_to_parent(self) -> None:
        """
        Let go of everything in a forked child, where no thread of the worker runs, and leave it to the parent.
        """
        forks.keep(self)
        self._lines.leave_to_parent()

    def _requeue_waiting(self) -> None:
        """
        Give back what was claimed ahead and has not begun.
        """
        for attempt in self._executor.drop_waiting():
            self._desk.give_back(attempt)

    def _abandon(self) -> int:
        """
        Let go of handlers that ignore the shutdown: they keep their leases, which then run out.
        """
        cause = Shutdown("the worker has stopped without waiting for this handler")
        abandoned = [attempt for attempt in self._executor.running() if attempt.give_up(cause)]
        self._desk.in_flight.remove(abandoned)
        for attempt in abandoned:
            self._desk.journal.abandoned(attempt.claim)
        return len(abandoned)

    def _flush(self) -> int:
        """
        Wait until the outcomes are written; returns how many are not.
        """
        until = time.monotonic() + FLUSH
        self._loops["pump"].wake()
        while len(self._desk.in_flight) and time.monotonic() < until:
            time.sleep(LOOK)
        return len(self._desk.in_flight)

    def _end(self, patience: float) -> None:
        for loop in reversed(self._loops.values()):
            loop.stop()
        # What can be written is written. A loop that still waits, for notifications or a frozen server, is woken.
        self._lines.wake()
        until = time.monotonic() + JOIN
        for loop in self._loops.values():
            loop.join(max(0.0, until - time.monotonic()))
        # No round counts any more what ends from now on.
        self._desk.outbox.ring = self._desk.journal.flush
        self._executor.close(patience)
        self._desk.journal.flush()
        self._hooks.stop(JOIN)
        self._lines.close()
        self._sampler.close()

    def health(self) -> Health:
        """
        Tell how the worker is.
        """
        loops = tuple(loop.health() for loop in self._loops.values())
        hung = sum(attempt.hung for attempt in self._executor.running())
        healthy = all(loop.healthy for loop in loops) and hung < self._setup.config.workers and self._executor.healthy
        return Health(healthy, self.name, len(self._desk.in_flight), self._setup.config.workers, hung, loops)
