"""
Stands for a queue's worker in a test: the engine's own parts, one job at a time, on the test's connection.

Builds the pump, the executor and their like as the worker does, and calls them in turn where the worker has threads.
What they decide and write is theirs.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Executable
from sqlalchemy.ext.asyncio import AsyncSession

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.parts import Parts
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.statements import testing as statements
from sqlalchemy_brooq.testing.records import CRASHED, AttemptRecord, End, Notebook
from sqlalchemy_brooq.testing.routing import sync_engine, unjoined
from sqlalchemy_brooq.testing.shared import Shared, WorkerCrashed
from sqlalchemy_brooq.vocabulary import JobEvent, JobState
from sqlalchemy_brooq.worker.aioloop import HandlerLoop
from sqlalchemy_brooq.worker.attempt import Attempt, Handler
from sqlalchemy_brooq.worker.connection import Rows, Transactions, short_transaction
from sqlalchemy_brooq.worker.demand import Demand
from sqlalchemy_brooq.worker.desk import Desk
from sqlalchemy_brooq.worker.effects import Effects
from sqlalchemy_brooq.worker.executor import Executor, StartTask
from sqlalchemy_brooq.worker.hooks import Hooks
from sqlalchemy_brooq.worker.port import Exchanged, Settlement
from sqlalchemy_brooq.worker.pump import Crew, Pump
from sqlalchemy_brooq.worker.reaper import Reaper, guards_of
from sqlalchemy_brooq.worker.results import Results
from sqlalchemy_brooq.worker.running import Runner
from sqlalchemy_brooq.worker.setup import Sources
from sqlalchemy_brooq.worker.store import PumpStore, ReaperStore
from sqlalchemy_brooq.worker.turns import Request, Turns

CLAIM_ONE: Final = statements.claim_one()
EXPIRE: Final = statements.expire()
STATE_OF: Final = statements.state_of()
UNSERVED: Final = statements.unserved()

RunTask = Callable[[StartTask], None]
"""Starts a task, and waits for its end."""
#: Entered around each attempt: with what runs it, and with the attempt once it has begun.
Surroundings = Callable[["StandIn", Attempt], AbstractContextManager[Any]]


class SharedLine:
    """
    Sends the pump's statements over the test's connection, each in a transaction of its own.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def rows(self, statement: Executable, parameters: Mapping[str, Any], *, limit: float) -> Rows:  # noqa: ARG002 - nobody waits for a server
        """
        Run one statement.
        """
        with self._transactions() as connection:
            return connection.execute(statement, parameters).all()

    def drop(self) -> None:
        """
        Do nothing: it keeps no connection.
        """


class StandInStore(PumpStore):
    """
    The pump's verbs; its claims can be limited to one job.
    """

    only: UUID | None = None
    """The one job to claim, ready or not."""

    def _exchange(self, settlements: Sequence[Settlement], request: Request | None) -> Exchanged:
        if self.only is None or request is None:
            return super()._exchange(settlements, request)
        parameters = {"worker": self._worker, "lease": self._lease, "job_id": self.only}
        answer = self._connection.rows(CLAIM_ONE, parameters, limit=self._limit)
        return Exchanged((), *self._claimed(answer))


class OneByOne(Demand):
    """
    Asks for one job, from the left, each time it is told to.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._whose = Turns(handlers) if handlers else None
        super().__init__(self._whose, 1, lambda: 1, poll_interval=0.0)
        self.is_asking = False

    def take(self, _now: float) -> Request | None:
        """
        Return what to ask for, once.
        """
        is_asking, self.is_asking = self.is_asking, False
        return self._whose.request(1) if is_asking and self._whose is not None else None

    def done(self, request: Request, claims: Sequence[Claim] | None, _began: float, _ended: float) -> None:
        """
        Take note of whom it served.
        """
        if self._whose is not None:
            self._whose.learn(request, claims or ())


class HooksHere(Hooks):
    """
    Calls the consumer's callbacks at once.
    """

    def put(self, event: JobEvent) -> None:
        """
        Tell those who want to hear of *event*.
        """
        for callback in self._callbacks[event.event]:
            self._call(callback, event)


def _unjoined(make: Callable[[], AsyncSession]) -> Callable[[], AsyncSession]:
    def make_unjoined() -> AsyncSession:
        session = make()
        unjoined(session.sync_session)
        return session

    return make_unjoined


async def _here(work: Callable[[], None]) -> None:
    work()


class StandIn:
    """
    Runs what is ready, or one job, in the thread that calls it.

    Args:
        queue: Whose worker it stands for.
        parts: What that is made of.
        shared: The test's connection, which the queue's engine is routed to.
        run_task: Runs the task of an ``async def`` handler to its end.
        surroundings: Entered around each attempt.
    """

    def __init__(
        self,
        queue: Queue,
        parts: Parts,
        shared: Shared,
        run_task: RunTask,
        surroundings: Surroundings,
    ) -> None:
        self.name = f"test:{os.getpid()}:{secrets.token_hex(4)}"
        self.engine = sync_engine(parts.engine)
        self.shared = shared
        self.notebook = Notebook(queue.metrics, HooksHere(parts.callbacks), lambda: shared.is_cut)
        self.desk = Desk(self.name, self.notebook)
        self.records: list[AttemptRecord] = []
        self.has_crashed = False
        self._parts = parts
        self._sources = Sources(
            self.engine,
            lambda: unjoined(parts.sessions()),
            _unjoined(parts.async_sessions) if parts.async_sessions is not None else None,
        )
        self._run_task = run_task
        self._surroundings = surroundings
        self._claimed: deque[Attempt] = deque()
        self._demand = OneByOne(parts.handlers)
        self.transactions: Transactions = partial(short_transaction, self.engine)
        self._reaper = Reaper(
            ReaperStore(self.transactions), self.notebook, guards_of(parts.handlers), period=float("inf")
        )
        self._executor = self._make_executor()
        self._pump = self._make_pump(queue)

    def _make_executor(self) -> Executor:
        parts = self._parts
        results = Results(self._sources.serializer)
        effects = Effects(self.desk, results, self._sources.sessions, self._sources.async_sessions, aside=_here)
        return Executor(self.desk, Runner(self.desk, effects, results, parts.around), HandlerLoop(), slots=1)

    def _make_pump(self, queue: Queue) -> Pump:
        lease, line = queue.config.lease, SharedLine(self.transactions)
        self._store = StandInStore(line, self.name, lease, float("inf"), self._sources.deserializer)
        crew = Crew(self._parts.handlers, self._demand, self.desk, self._claimed.extend, lease.total_seconds())
        return Pump(0, self._store, crew)

    # -- what it does

    def reap(self) -> None:
        """
        Return jobs whose lease has run out to circulation, as any worker would.
        """
        while self._reaper.round() == 0.0:
            pass

    def run(self, limit: int) -> None:
        """
        Run what is ready, and what becomes ready by that.

        Raises:
            AssertionError: It goes on after *limit* attempts.
        """
        while not self.has_crashed and self._run_next():
            if len(self.records) > limit:
                raise AssertionError(
                    f"{limit} attempts were made, and still more is ready, such as {self.records[-1].topic}: does a job"
                    " chain itself? A higher limit=… lets it go on"
                )

    def run_one(self, job_id: UUID) -> None:
        """
        Make one attempt at a job, whether it is ready or not.
        """
        self._store.only = job_id
        self._run_next()

    def expire(self, job_id: UUID) -> None:
        """
        End the lease on a job, and let a reaper find it.
        """
        with self.transactions() as connection:
            connection.execute(EXPIRE, {"job_id": job_id})
        self.reap()

    def find(self, job_id: UUID) -> tuple[JobState, str] | None:
        """
        Return state and topic of a job, or ``None`` if there is none.
        """
        with self.transactions() as connection:
            found = connection.execute(STATE_OF, {"job_id": job_id}).one_or_none()
        return (JobState(found.state), found.topic) if found is not None else None

    def unserved(self) -> dict[str, int]:
        """
        Return how many ready jobs there are of topics that have no handler here.
        """
        with self.transactions() as connection:
            rows = connection.execute(UNSERVED, {"served": list(self._parts.handlers)})
            return {topic: number for topic, number in rows}  # noqa: C416 - dict() of rows isn't typed

    # -- one after the other

    def _run_next(self) -> bool:
        """
        Claim a job and make an attempt at it; False if there was none.
        """
        self._demand.is_asking = True
        self._pump.round()
        if self._claimed:
            self._attempt(self._claimed.popleft())
        elif len(self.desk.outbox):
            self._settle()  # its payload could not be read
        else:
            return False
        return True

    def _attempt(self, attempt: Attempt) -> None:
        depth = self.shared.depth()
        attempt.start()
        try:
            with self._surroundings(self, attempt):
                self._run(attempt)
                self.shared.unwind(depth)
                self._settle()
        except WorkerCrashed:
            pass
        if self.shared.is_cut:
            self._crashed(attempt, depth)

    def _run(self, attempt: Attempt) -> None:
        start = self._executor.run_here(attempt)
        if start is not None:
            self._run_task(start)
        if self.shared.is_cut:
            raise WorkerCrashed  # whatever the handler made of it

    def _settle(self) -> None:
        while (pause := self.desk.outbox.pause(time.monotonic())) is not None:
            time.sleep(pause)
            self._pump.round()
        self.records += [self._record(end) for end in self.notebook.ends]
        self.notebook.ends.clear()

    def _record(self, end: End) -> AttemptRecord:
        claim, outcome = end.claim, end.outcome
        about = claim.id, claim.topic, claim.attempt, end.label.value
        if outcome is None:
            return AttemptRecord(*about, self._state_of(claim.id))
        delay = outcome.delay if outcome.state is JobState.FAILED else None
        return AttemptRecord(*about, outcome.state, outcome.error, delay, end.trace)

    def _crashed(self, attempt: Attempt, depth: int) -> None:
        """
        Leave behind what a process leaves that has ended: what it had committed, and its lease.
        """
        self.shared.is_cut = False
        self.shared.unwind(depth)
        self.has_crashed = True
        claim = attempt.claim
        self.records.append(AttemptRecord(claim.id, claim.topic, claim.attempt, CRASHED, self._state_of(claim.id)))

    def _state_of(self, job_id: UUID) -> JobState | None:
        found = self.find(job_id)
        return found[0] if found is not None else None
