"""
One worker: builds the loops, starts them in order, and ends them in the reverse.

Owns the order of start and stop. What each loop does is its own module's.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq import schema
from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.errors import Shutdown
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.private import json_deserializer, json_serializer
from sqlalchemy_brooq.statements.producing import notify
from sqlalchemy_brooq.vocabulary import Event, Notice, Outcome
from sqlalchemy_brooq.worker import forks
from sqlalchemy_brooq.worker.aioloop import HandlerLoop
from sqlalchemy_brooq.worker.attempt import Handler, InFlight
from sqlalchemy_brooq.worker.connection import PrivateConnection, Transactions, short_transaction
from sqlalchemy_brooq.worker.demand import Demand
from sqlalchemy_brooq.worker.effects import Effects
from sqlalchemy_brooq.worker.executor import Around, Executor
from sqlalchemy_brooq.worker.heartbeat import ROUNDS, Heartbeat
from sqlalchemy_brooq.worker.hooks import Callbacks, Hooks
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.log import log
from sqlalchemy_brooq.worker.loops import Loop, LoopHealth
from sqlalchemy_brooq.worker.outbox import Outbox
from sqlalchemy_brooq.worker.pump import Crew, Pump
from sqlalchemy_brooq.worker.reaper import Reaper, guards_of
from sqlalchemy_brooq.worker.results import Results
from sqlalchemy_brooq.worker.retention import Retention, RetentionStore, lifetimes
from sqlalchemy_brooq.worker.sampler import Sampler, SamplerStore
from sqlalchemy_brooq.worker.store import HeartbeatStore, PumpStore, ReaperStore
from sqlalchemy_brooq.worker.turns import Turns
from sqlalchemy_brooq.worker.wakeup import WAIT, Listener
from sqlalchemy_brooq.worker.watchdog import IDLE, Watchdog

OVERLAP: Final = 100
"""From so many jobs in the process on, two pumps overlap; fewer would be torn into halves of batches."""
OBEY: Final = 2.0
"""Seconds that an interrupted handler has to end when the worker shuts down."""
FLUSH: Final = 5.0
"""Seconds that the last outcomes have to reach the database."""
JOIN: Final = 3.0
"""Seconds that the loops have to end their rounds."""
SAMPLING: Final = 60.0
"""Seconds that a round of the sampler or of retention may be late: they take turns on one connection."""
UPKEEP: Final = 60.0
"""The same for retention and the sampler: a batch may take long, and no job waits for it."""
STATEMENT: Final = (2.0, 30.0)
"""The least and the most seconds that a statement may take before the server counts as frozen."""


@dataclass(frozen=True, slots=True)
class Sources:
    """
    Where a worker's connections and sessions come from.
    """

    engine: Engine
    """A plain engine with psycopg."""
    sessions: Callable[[], Session]
    async_sessions: Callable[[], AsyncSession] | None


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
        sources: Where connections and sessions come from.
        config: The queue's settings.
        handlers: What to serve.
        metrics: What is counted, and what the sampler shows.
        loop: The consumer's running event loop for ``async def`` handlers; ``None`` makes one.
        around: The consumer's context manager around each handler.
        callbacks: Whom to tell of what happens to jobs.
    """

    def __init__(
        self,
        sources: Sources,
        config: Config,
        handlers: Mapping[str, Handler],
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop | None = None,
        around: Around | None = None,
        callbacks: Callbacks = MappingProxyType({}),
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._sources = sources
        self._config = config
        self._handlers = dict(handlers)
        self._in_flight = InFlight()
        self._hooks = Hooks(callbacks, metrics.event_dropped)
        self._journal = Journal(metrics, self._hooks)
        self._outbox = Outbox()
        dialect = sources.engine.dialect
        results = Results(json_serializer(dialect))
        effects = Effects(
            sources.sessions,
            sources.async_sessions,
            self.name,
            results.text,
            self._outbox.put,
            self._in_flight,
            self._journal,
        )
        self._executor = Executor(
            self.name,
            config.workers,
            config.prefetch,
            HandlerLoop(loop),
            effects,
            results,
            self._outbox.put,
            self._in_flight,
            self._journal,
            lambda: self._outbox.ring(),  # noqa: PLW0108 - it is given the pumps' later
            around,
        )
        plain = config.wakeup == "poll"
        beat, reaper, upkeep, ear = (PrivateConnection(sources.engine, plain=plain) for _ in range(4))
        pumps = [PrivateConnection(sources.engine, plain=plain) for _ in range(self._pump_count())]
        self._pumps = pumps
        self._connections = (*pumps, beat, reaper, upkeep, ear)
        self._ear = ear
        self._limit = min(max(config.lease.total_seconds() / 3, STATEMENT[0]), STATEMENT[1])
        self._reaping: Transactions = partial(reaper.transaction, limit=self._limit)
        self._upkeep: Transactions = partial(upkeep.transaction, limit=UPKEEP)
        self._sampler = Sampler(SamplerStore(self._upkeep), metrics.watch)
        self._crew = self._make_crew()
        self._loops = self._make_loops(pumps, beat, metrics)

    # -- the parts

    def _pump_count(self) -> int:
        return 2 if self._config.workers + self._config.prefetch >= OVERLAP else 1

    def _make_crew(self) -> Crew:
        config = self._config
        turns = Turns(self._handlers) if self._handlers else None
        capacity = config.workers + config.prefetch
        demand = Demand(turns, capacity, self._executor.free, config.poll_interval.total_seconds())
        return Crew(
            self._handlers,
            demand,
            self._outbox,
            self._in_flight,
            self._journal,
            self._executor.submit,
            config.lease.total_seconds(),
        )

    def _make_pumps(self, connections: Sequence[PrivateConnection]) -> list[Loop]:
        deserializer = json_deserializer(self._sources.engine.dialect)
        loops = []
        for number, connection in enumerate(connections):
            store = PumpStore(connection, self.name, self._config.lease, self._limit, deserializer)
            pump = Pump(number, store, self._crew)
            name = f"pump-{number + 1}" if number else "pump"
            period = self._config.poll_interval.total_seconds() * 1.5
            loops.append(Loop(name, pump.round, period=period, recover=pump.recover))
        self._crew.traffic.wakes = [loop.wake for loop in loops]
        self._outbox.ring = self._crew.traffic.ring
        return loops

    def _make_loops(
        self, pumps: Sequence[PrivateConnection], connection: PrivateConnection, metrics: Metrics
    ) -> dict[str, Loop]:
        """
        Return the loops in the order in which they start.
        """
        config = self._config
        lease = config.lease.total_seconds()
        beat = HeartbeatStore(connection, self.name, config.lease, max(lease / ROUNDS, STATEMENT[0]))
        heartbeat = Heartbeat(beat, self._in_flight, self._journal, config.lease)
        period = config.reaper_period.total_seconds()
        reaper = Reaper(ReaperStore(self._reaping), self._journal, guards_of(self._handlers), period)
        watchdog = Watchdog(
            self._in_flight,
            self._executor.running,
            self._connections,
            self._outbox.put,
            self._journal,
            config.watchdog_grace,
            config.lease,
        )
        loops = [
            Loop("watchdog", watchdog.round, period=IDLE),
            Loop("heartbeat", heartbeat.round, period=lease / ROUNDS, recover=beat.recover),
            Loop("reaper", reaper.round, period=period),
            *self._make_pumps(pumps),
        ]
        loops += self._retention(metrics)
        loops.append(Loop("sampler", self._sampler.round, period=SAMPLING))
        by_name = {loop.name: loop for loop in loops}
        self._sampler.wake = by_name["sampler"].wake
        if config.wakeup == "listen" and self._handlers:
            listener = Listener(
                self._ear,
                self._notify,
                self._handlers,
                self.name,
                self.hint,
                by_name["heartbeat"].wake,
                self._own_sessions,
                self._share_sessions,
            )
            by_name["listener"] = Loop("listener", listener.round, period=WAIT, recover=listener.recover)
        return by_name

    def _retention(self, metrics: Metrics) -> list[Loop]:
        """
        Return the loop that deletes old rows; none where all are kept.
        """
        config = self._config
        ports = [
            RetentionStore(self._upkeep, states, ttl, config.retention_batch)
            for ttl, states in lifetimes(config).items()
        ]
        if not ports:
            return []
        period = config.retention_period.total_seconds()
        retention = Retention(ports, metrics.deleted, period)
        return [Loop("retention", retention.round, period=period + SAMPLING)]

    # -- its life

    def start(self) -> None:
        """
        Check the schema, and start every loop.

        Raises:
            SchemaMismatch: The table is missing, older or newer.
            sqlalchemy.exc.DBAPIError: The database can't be reached.
        """
        try:
            with short_transaction(self._sources.engine) as connection:
                schema.check_schema(connection)
            self._hooks.start()
            self._executor.start()
            for loop in self._loops.values():
                loop.start()
        except BaseException:
            self._end(0.1)
            raise
        topics = ", ".join(sorted(self._handlers)) or "no topic"
        log.info("worker %s serves %s", self.name, topics, extra=self._about(Notice.WORKER_STARTED))

    def hint(self) -> None:
        """
        Take note that there may be ready jobs.
        """
        self._crew.demand.hint()
        self._crew.traffic.ring()

    def _notify(self, payload: str) -> None:
        with self._reaping() as connection:
            connection.execute(notify(), {"wakeups": [payload]})

    def _own_sessions(self) -> None:
        """
        Let the pumps change settings of their sessions, which turned out to be nobody else's.
        """
        for connection in self._pumps:
            connection.plan_once()

    def _share_sessions(self) -> None:
        """
        Use nothing of a session's state any more: it turned out to be other clients' as well.
        """
        for connection in self._connections:
            connection.become_plain()

    def look_at_leases(self) -> None:
        """
        Let the heartbeat find out at once which leases are lost.
        """
        self._loops["heartbeat"].wake()

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
        self._end(OBEY if not abandoned else 0.1)
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
        for connection in self._connections:
            connection.cut_off()

    def _requeue_waiting(self) -> None:
        """
        Give back what was claimed ahead and has not begun.
        """
        for attempt in self._executor.drop_waiting():
            if attempt.conclude():
                attempt.outcome = Outcome(Event.REQUEUED, refund=True)
                self._outbox.put(attempt)

    def _abandon(self) -> int:
        """
        Let go of handlers that ignore the shutdown: they keep their leases, which then run out.
        """
        cause = Shutdown("the worker has stopped without waiting for this handler")
        abandoned = [attempt for attempt in self._executor.running() if attempt.give_up(cause)]
        self._in_flight.remove(abandoned)
        for attempt in abandoned:
            self._journal.abandoned(attempt.claim)
        return len(abandoned)

    def _flush(self) -> int:
        """
        Wait until the outcomes are written; returns how many are not.
        """
        until = time.monotonic() + FLUSH
        self._loops["pump"].wake()
        while len(self._in_flight) and time.monotonic() < until:
            time.sleep(0.005)
        return len(self._in_flight)

    def _end(self, patience: float) -> None:
        for loop in reversed(self._loops.values()):
            loop.stop()
        # What can be written is written. A loop that still waits, for notifications or a frozen server, is woken.
        for connection in self._connections:
            connection.expire(float("inf"))
        until = time.monotonic() + JOIN
        for loop in self._loops.values():
            loop.join(max(0.0, until - time.monotonic()))
        # No round counts any more what ends from now on.
        self._outbox.ring = self._journal.flush
        self._executor.close(patience)
        self._journal.flush()
        self._hooks.stop(JOIN)
        for connection in self._connections:
            connection.close()
        self._sampler.close()

    def health(self) -> Health:
        """
        Tell how the worker is.
        """
        loops = tuple(loop.health() for loop in self._loops.values())
        hung = sum(attempt.hung for attempt in self._executor.running())
        healthy = all(loop.healthy for loop in loops) and hung < self._config.workers and self._executor.healthy
        return Health(healthy, self.name, len(self._in_flight), self._config.workers, hung, loops)
