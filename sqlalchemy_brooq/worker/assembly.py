"""
Builds the parts of a worker from its setup: what each is given, which loops there are, and in which order they start.

Starts nothing, and connects nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy_brooq.worker.aioloop import HandlerLoop
from sqlalchemy_brooq.worker.demand import Demand
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.effects import Effects
from sqlalchemy_brooq.worker.executor import Executor
from sqlalchemy_brooq.worker.heartbeat import ROUNDS, Heartbeat
from sqlalchemy_brooq.worker.lines import STATEMENT, Lines
from sqlalchemy_brooq.worker.loops import Loop
from sqlalchemy_brooq.worker.pump import Crew, Pump
from sqlalchemy_brooq.worker.reaper import Reaper, guards_of
from sqlalchemy_brooq.worker.results import Results
from sqlalchemy_brooq.worker.retention import Retention, RetentionStore, lifetimes
from sqlalchemy_brooq.worker.running import Runner
from sqlalchemy_brooq.worker.sampler import Sampler, SamplerStore
from sqlalchemy_brooq.worker.setup import Setup
from sqlalchemy_brooq.worker.store import HeartbeatStore, PumpStore, ReaperStore
from sqlalchemy_brooq.worker.turns import Turns
from sqlalchemy_brooq.worker.wakeup import WAIT, Listener
from sqlalchemy_brooq.worker.watchdog import IDLE, Watchdog

PUMP: Final = "pump"
OVERLAP: Final = 100
"""From so many jobs in the process on, two pumps overlap; fewer would be torn into halves of batches."""
SAMPLING: Final = 60.0
"""Seconds that a round of the sampler or of retention may be late: they take turns on one connection."""


class Assembly:
    """
    The parts of one worker.
    """

    def __init__(self, setup: Setup, desk: Desk) -> None:
        self._setup = setup
        self._desk = desk
        config = setup.config
        self._lease = config.lease.total_seconds()
        self.lines = Lines(
            setup.sources.engine,
            pumps=2 if setup.capacity >= OVERLAP else 1,
            lease=self._lease,
            plain=config.wakeup == "poll",
        )
        self.executor = self._executor()
        self.crew = self._crew()
        self.sampler = Sampler(SamplerStore(self.lines.upkeep), setup.metrics.watch)
        self.loops = {loop.name: loop for loop in self._loops()}
        """By name, in the order in which they start."""
        self.crew.traffic.wakes = [loop.wake for name, loop in self.loops.items() if name.startswith(PUMP)]
        desk.outbox.ring = self.crew.traffic.ring
        self.sampler.wake = self.loops["sampler"].wake

    def _executor(self) -> Executor:
        setup, config = self._setup, self._setup.config
        results = Results(setup.sources.serializer)
        effects = Effects(self._desk, results, setup.sources.sessions, setup.sources.async_sessions)
        runner = Runner(self._desk, effects, results, setup.around)
        return Executor(self._desk, runner, HandlerLoop(setup.loop), config.workers, config.prefetch)

    def _crew(self) -> Crew:
        handlers = self._setup.handlers
        turns = Turns(handlers) if handlers else None
        poll_interval = self._setup.config.poll_interval.total_seconds()
        demand = Demand(turns, self._setup.capacity, self.executor.free, poll_interval)
        return Crew(handlers, demand, self._desk, self.executor.submit, self._lease)

    # -- what wakes them

    def hint(self) -> None:
        """
        Take note that there may be ready jobs.
        """
        self.crew.demand.hint()
        self.crew.traffic.ring()

    def look_at_leases(self) -> None:
        """
        Let the heartbeat find out at once which leases are lost.
        """
        self.loops["heartbeat"].wake()

    # -- the loops

    def _loops(self) -> Iterator[Loop]:
        yield self._watchdog()
        yield self._heartbeat()
        yield self._reaper()
        yield from self._pumps()
        yield from self._retention()
        yield Loop("sampler", self.sampler.round, period=SAMPLING)
        yield from self._listener()

    def _watchdog(self) -> Loop:
        config = self._setup.config
        watchdog = Watchdog(self._desk, self.executor.running, self.lines.all, config.watchdog_grace, config.lease)
        return Loop("watchdog", watchdog.round, period=IDLE)

    def _heartbeat(self) -> Loop:
        lease, limit = self._setup.config.lease, max(self._lease / ROUNDS, STATEMENT[0])
        store = HeartbeatStore(self.lines.heartbeat, self._desk.worker, lease, limit)
        heartbeat = Heartbeat(store, self._desk, lease)
        return Loop("heartbeat", heartbeat.round, period=self._lease / ROUNDS, recover=store.recover)

    def _reaper(self) -> Loop:
        period = self._setup.config.reaper_period.total_seconds()
        store = ReaperStore(self.lines.reaping)
        reaper = Reaper(store, self._desk.journal, guards_of(self._setup.handlers), period)
        return Loop("reaper", reaper.round, period=period)

    def _pumps(self) -> Iterator[Loop]:
        config, deserializer = self._setup.config, self._setup.sources.deserializer
        period = config.poll_interval.total_seconds() * 1.5
        for number, connection in enumerate(self.lines.pumps):
            store = PumpStore(connection, self._desk.worker, config.lease, self.lines.limit, deserializer)
            pump = Pump(number, store, self.crew)
            name = f"{PUMP}-{number + 1}" if number else PUMP
            yield Loop(name, pump.round, period=period, recover=pump.recover)

    def _retention(self) -> Iterator[Loop]:
        """
        Yield the loop that deletes old rows; none where all are kept.
        """
        config, metrics = self._setup.config, self._setup.metrics
        ports = [
            RetentionStore(self.lines.upkeep, states, ttl, config.retention_batch)
            for ttl, states in lifetimes(config).items()
        ]
        if ports:
            period = config.retention_period.total_seconds()
            retention = Retention(ports, metrics.deleted, period)
            yield Loop("retention", retention.round, period=period + SAMPLING)

    def _listener(self) -> Iterator[Loop]:
        """
        Yield the loop that hears of new jobs; none where they are polled for, or nothing is served.
        """
        if self._setup.config.wakeup == "listen" and self._setup.handlers:
            listener = Listener(self.lines, self._setup.handlers, self._desk.worker, self.hint, self.look_at_leases)
            yield Loop("listener", listener.round, period=WAIT, recover=listener.recover)
