"""
Proves a handler idempotent: crashes it at each of its statements, runs it again, and compares what is left.

Owns the runs, and the account of them. What two runs may differ in is for ``contents``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from sqlalchemy_brooq.aio import AsyncSessionLike
from sqlalchemy_brooq.errors import RegistrationError
from sqlalchemy_brooq.model import JOB, Job
from sqlalchemy_brooq.producer import SessionLike
from sqlalchemy_brooq.queue import Queue, parts_of
from sqlalchemy_brooq.statements.producing import notify
from sqlalchemy_brooq.statements.waiting import limit_lock_waits
from sqlalchemy_brooq.testing.contents import Catalog, Comparison, Contents
from sqlalchemy_brooq.testing.faults import crash, watched
from sqlalchemy_brooq.testing.place import Place, arun, place_of
from sqlalchemy_brooq.testing.records import CRASHED, AttemptRecord
from sqlalchemy_brooq.testing.routing import AnyEngine
from sqlalchemy_brooq.testing.running import in_this_loop, plain_tasks, routed, run_one
from sqlalchemy_brooq.testing.standin import RunTask, StandIn, Surroundings
from sqlalchemy_brooq.vocabulary import JobState
from sqlalchemy_brooq.worker.attempt import Attempt
from sqlalchemy_brooq.worker.store import SETTLE

UNCOUNTED: Final = (notify(), limit_lock_waits())
"""Statements of the engine's own, which change nothing; the first is not even sent every time."""
SAVEPOINTS: Final = ("SAVEPOINT ", "RELEASE SAVEPOINT ", "ROLLBACK TO SAVEPOINT ")
"""What others begin with that change nothing."""
OUTCOME: Final = "(the write of the outcome)"
NOT_REACHED: Final = "(a statement that was not sent this time)"
WIDTH: Final = 100
"""Characters of a statement that are shown."""


class Outside(Protocol):
    """
    What a handler does outside of the database, as a test sees it: a list, a dict, a set.
    """

    def clear(self) -> None:
        """
        Forget it all.
        """


class CrashPlace(NamedTuple):
    """
    One place where the handler was crashed.
    """

    statement: str
    """The statement that was about to be sent."""
    differences: tuple[str, ...]
    """What the second run left behind otherwise than an undisturbed one, in a line each."""


@dataclass(frozen=True, slots=True)
class CrashReport:
    """
    What `crash_everywhere` found; its text is an account to be read.
    """

    topic: str
    """The topic whose handler was crashed."""
    places: tuple[CrashPlace, ...]
    """Each place where it was crashed, in their order."""

    @property
    def is_idempotent(self) -> bool:
        """
        Whether all places left the same behind.
        """
        return not any(place.differences for place in self.places)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        different = sum(bool(place.differences) for place in self.places)
        what = f"{different} left something else behind" if different else "all left the same behind"
        places = "1 place" if len(self.places) == 1 else f"{len(self.places)} places"
        yield f"{self.topic}: crashed at {places}, and run again after each: {what}"
        for number, place in enumerate(self.places, 1):
            yield f"{number:4}. {'OTHERWISE' if place.differences else 'the same '}  before {place.statement}"
            yield from (f"{'':17}{line}" for line in place.differences)


class NotIdempotent(AssertionError):  # noqa: N818 - says what was found
    """
    A handler that is crashed and run again leaves something else behind; `report` has all of it.

    Args:
        report: What `crash_everywhere` found.
    """

    report: CrashReport
    """All places at which it was crashed, and what they left behind."""

    def __init__(self, report: CrashReport) -> None:
        super().__init__(str(report))
        self.report = report


def crash_everywhere(
    handler: Callable[..., Any],
    session: SessionLike,
    queue: Queue,
    job: Job | UUID | str,
    *,
    outside: Outside | None = None,
    ignore: Collection[str] = (),
    check: bool = True,
    engines: Sequence[AnyEngine] = (),
) -> CrashReport:
    """
    Crash *handler* before each of its statements, run it again each time, and compare what is left.

    What is left is the contents of all tables that were written to. Each run begins with the same database, and is
    rolled back afterwards. Ids that a run makes up, and moments of the test, may differ.

    Args:
        handler: The function that the queue has registered for the job's topic.
        session: As for `drain`.
        queue: The queue whose handler it is.
        job: The job to run it on: a new `Job`, which is enqueued first; a stored one; or its id.
        outside: What collects what the handler does elsewhere, such as the ``list`` of a fake mailer. It is cleared
            before each run, and compared too.
        ignore: What else may differ: ``"table"`` or ``"table.column"``.
        check: Whether a handler that is not idempotent is an error; otherwise read it from the report.
        engines: As for `drain`.

    Returns:
        All places, and what they left behind.

    Raises:
        NotIdempotent: At least one left something else behind. An ``AssertionError``, whose text is the account.
        AssertionError: The undisturbed run doesn't end ``done``.
        RegistrationError: *handler* is not what the queue has for the job's topic; otherwise as for `run_job`.
    """
    __tracebackhide__ = True
    with plain_tasks(queue) as run_task:
        report = _crash_everywhere(
            handler, place_of("crash_everywhere", session), queue, job, outside, ignore, engines, run_task
        )
    return _checked(report) if check else report


async def acrash_everywhere(
    handler: Callable[..., Any],
    session: AsyncSessionLike,
    queue: Queue,
    job: Job | UUID | str,
    *,
    outside: Outside | None = None,
    ignore: Collection[str] = (),
    check: bool = True,
    engines: Sequence[AnyEngine] = (),
) -> CrashReport:
    """
    `crash_everywhere`, for an async session.
    """
    __tracebackhide__ = True
    report = await arun(
        "acrash_everywhere",
        session,
        lambda place: _crash_everywhere(handler, place, queue, job, outside, ignore, engines, in_this_loop),
    )
    return _checked(report) if check else report


def _checked(report: CrashReport) -> CrashReport:
    __tracebackhide__ = True
    if not report.is_idempotent:
        raise NotIdempotent(report)
    return report


def _crash_everywhere(
    handler: Callable[..., Any],
    place: Place,
    queue: Queue,
    job: Job | UUID | str,
    outside: Outside | None,
    ignore: Collection[str],
    engines: Sequence[AnyEngine],
    run_task: RunTask,
) -> CrashReport:
    with routed(place, queue, engines, run_task) as make:
        trials = Trials(make, queue, place.stored(job), outside)
        topic = trials.topic_of(handler)
        return CrashReport(topic, tuple(trials.compared(ignore)))


class Left(NamedTuple):
    """
    What a run left behind.
    """

    contents: Contents
    outside: Any


class Trials:
    """
    The runs of one job, each from the same beginning.

    Args:
        make: Makes a stand-in for a worker, with what is to be entered around its attempts.
        queue: Whose worker it stands for.
        job_id: The job.
        outside: What collects what the handler does elsewhere.
    """

    def __init__(
        self, make: Callable[[Surroundings], StandIn], queue: Queue, job_id: UUID, outside: Outside | None
    ) -> None:
        self._make = make
        self._queue = queue
        self._job_id = job_id
        self._outside = outside
        self._tables = make(_undisturbed)

    def topic_of(self, handler: Callable[..., Any]) -> str:
        """
        Return the job's topic, whose handler *handler* must be.
        """
        found = self._tables.find(self._job_id)
        topic = found[1] if found is not None else ""
        registered = parts_of(self._queue).handlers.get(topic)
        if registered is None or inspect.unwrap(registered.function) != inspect.unwrap(handler):
            has = f"{registered.function!r}" if registered is not None else "no handler"
            raise RegistrationError(f"for the job's topic, {topic!r}, {self._queue!r} has {has}, not {handler!r}")
        return topic

    def compared(self, ignore: Collection[str]) -> Iterator[CrashPlace]:
        """
        Crash it at one place after the other, and yield what each left behind.
        """
        number, undisturbed = self._undisturbed_run()
        disturbed = [self._disturbed_run(place) for place in range(1, number + 1)]
        with self._tables.transactions() as connection:
            catalog = Catalog(connection)
            base = catalog.read(catalog.written())
            comparison = Comparison(catalog, base, str(self._job_id), ignore)
            for statement, left in disturbed:
                differences = comparison.differences(undisturbed.contents, left.contents)
                if left.outside != undisturbed.outside:
                    differences.append(f"outside is {left.outside!r}, not {undisturbed.outside!r}")
                if statement != NOT_REACHED or differences:
                    yield CrashPlace(statement, tuple(differences))

    def _undisturbed_run(self) -> tuple[int, Left]:
        """
        Return how many statements it took, and what it left behind.
        """
        crasher = Crasher(0)
        with self._taken_back():
            record = self._attempt(crasher.around)
            if record.state is not JobState.DONE:
                raise AssertionError(f"undisturbed, it doesn't end done: {record!r}\n{record.trace or ''}")
            return crasher.count, self._left()

    def _disturbed_run(self, place: int) -> tuple[str, Left]:
        """
        Return the statement before which it crashed, and what the next run left behind.
        """
        crasher = Crasher(place)
        with self._taken_back():
            if self._attempt(crasher.around).outcome == CRASHED:
                self._tables.expire(self._job_id)
                self._attempt(_undisturbed)
            return crasher.statement, self._left()

    def _attempt(self, around: Surroundings) -> AttemptRecord:
        return run_one(self._make(around), self._queue, self._job_id)

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        shared = self._tables.shared
        if self._outside is not None:
            self._outside.clear()
        savepoint = shared.savepoint()
        try:
            yield
        finally:
            shared.roll_back(savepoint, quietly=True)

    def _left(self) -> Left:
        with self._tables.transactions() as connection:
            catalog = Catalog(connection)
            names = catalog.written()
            if JOB.name not in {name.table for name in names}:
                raise RuntimeError("the server doesn't count what is written: set track_counts = on")
            return Left(catalog.read(names), copy.deepcopy(self._outside))


class Crasher:
    """
    Counts the statements of an attempt, and crashes before one of them.

    Args:
        place: The number of that one, from 1; 0 means none.
    """

    def __init__(self, place: int) -> None:
        self.count = 0
        self.statement = NOT_REACHED
        self._place = place

    @contextmanager
    def around(self, stand_in: StandIn, _attempt: Attempt) -> Iterator[None]:
        """
        Watch an attempt.
        """

        def on_statement(text: str, statement: Any) -> None:
            if statement in UNCOUNTED or text.startswith(SAVEPOINTS):
                return
            self.count += 1
            if self.count == self._place:
                self.statement = OUTCOME if statement is SETTLE else _shortened(text)
                crash(stand_in)

        with watched(stand_in.engine, on_statement):
            yield


@contextmanager
def _undisturbed(_stand_in: StandIn, _attempt: Attempt) -> Iterator[None]:
    yield


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"
