"""
The doors that run jobs: ``drain`` and ``run_job``, and their async forms.

One sync core. The async doors run it in the session's own greenlet, where it may await.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

from sqlalchemy.util import await_only

from sqlalchemy_brooq.aio import AsyncSessionLike
from sqlalchemy_brooq.errors import JobNotFound, LifecycleError, RegistrationError
from sqlalchemy_brooq.model import Job
from sqlalchemy_brooq.producer import SessionLike
from sqlalchemy_brooq.queue import Queue, parts_of
from sqlalchemy_brooq.testing import faults
from sqlalchemy_brooq.testing.place import Place, arun, place_of
from sqlalchemy_brooq.testing.records import AttemptRecord
from sqlalchemy_brooq.testing.routing import AnyEngine, route
from sqlalchemy_brooq.testing.standin import RunTask, StandIn, Surroundings
from sqlalchemy_brooq.vocabulary import CLAIMABLE
from sqlalchemy_brooq.worker.executor import StartTask

log = logging.getLogger("sqlalchemy_brooq.testing")

LIMIT: Final = 1_000
"""Attempts after which `drain` takes it that it would never end."""

T = TypeVar("T")


def drain(
    session: SessionLike, queue: Queue, *, limit: int = LIMIT, engines: Sequence[AnyEngine] = ()
) -> list[AttemptRecord]:
    """
    Run what is ready, and what becomes ready by that, in the transaction of *session*; return what happened.

    One job at a time, in a worker's order, with a worker's statements, and with no thread. What handlers and the
    queue commit meanwhile, on connections of the queue's engine, becomes part of the session's transaction. A job that
    is to be tried again waits, as it would; see `advance`.

    Args:
        session: The test's ``Session``, ``scoped_session`` or ``Connection``. It is flushed first; its objects are
            expired afterwards, and so show what the handlers have written.
        queue: The queue whose handlers are to run.
        limit: The most attempts; a job that chains itself would go on for good.
        engines: Others that the handlers use, for the same database.

    Returns:
        One record for each attempt, in their order.

    Raises:
        TypeError: The session's driver can't serve the queue's engine.
        LifecycleError: A worker of this queue is running; or an async handler is to run inside of a running loop.
        AssertionError: There were more attempts than *limit*.
    """
    with plain_tasks(queue) as run_task:
        return _drain(place_of("drain", session), queue, engines, run_task, limit)


async def adrain(
    session: AsyncSessionLike, queue: Queue, *, limit: int = LIMIT, engines: Sequence[AnyEngine] = ()
) -> list[AttemptRecord]:
    """
    `drain`, for an async session; async handlers run in the running loop.

    What the objects of the session have loaded is loaded anew.
    """
    return await arun("adrain", session, lambda place: _drain(place, queue, engines, in_this_loop, limit))


def run_job(
    session: SessionLike, queue: Queue, job: Job | UUID | str, *, engines: Sequence[AnyEngine] = ()
) -> AttemptRecord:
    """
    Make one attempt at *job*, whether it is due or not, in the transaction of *session*; return what happened.

    Otherwise as `drain`. Jobs that it chains are enqueued, and not run.

    Args:
        session: As for `drain`.
        queue: The queue that has a handler for it.
        job: A new `Job`, which is enqueued first; a stored one; or its id.
        engines: As for `drain`.

    Raises:
        JobNotFound: There is no job with this id.
        RegistrationError: The queue has no handler for its topic.
        LifecycleError: It is over, or held by somebody else; otherwise as for `drain`.
    """
    with plain_tasks(queue) as run_task:
        return _run_job(place_of("run_job", session), queue, job, engines, run_task)


async def arun_job(
    session: AsyncSessionLike, queue: Queue, job: Job | UUID | str, *, engines: Sequence[AnyEngine] = ()
) -> AttemptRecord:
    """
    `run_job`, for an async session.
    """
    return await arun("arun_job", session, lambda place: _run_job(place, queue, job, engines, in_this_loop))


# -- how tasks are run


@contextmanager
def plain_tasks(queue: Queue) -> Iterator[RunTask]:
    """
    Lend what runs tasks in a loop that lasts as long as the block, made with the first one.
    """
    if _is_in_loop() and any(handler.is_async for handler in parts_of(queue).handlers.values()):
        raise LifecycleError(
            "async handlers can't be run by a plain call inside of a running loop: await the async one"
        )
    runners: list[asyncio.Runner] = []
    with ExitStack() as stack:

        def run_task(start: StartTask) -> None:
            if not runners:
                runners.append(stack.enter_context(asyncio.Runner(loop_factory=asyncio.new_event_loop)))
            runners[0].run(_to_its_end(start))

        yield run_task


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def in_this_loop(start: StartTask) -> None:
    """
    Run a task of its own, which an interruption can cancel without canceling the test's.
    """
    await_only(_to_its_end(start))


async def _to_its_end(start: StartTask) -> None:
    await start(asyncio.get_running_loop())


# -- the core


@contextmanager
def routed(
    place: Place, queue: Queue, engines: Sequence[AnyEngine], run_task: RunTask
) -> Iterator[Callable[[Surroundings], StandIn]]:
    """
    Lend what makes stand-ins for the queue's worker, on the connection of *place*.
    """
    if queue.health() is not None:
        raise LifecycleError("a worker of this queue is running, and would run its handlers too: stop it first")
    parts = parts_of(queue)
    with place.settled() as connection:
        shared, routes = route([connection.engine, parts.engine, *engines], connection)
        with routes:
            yield partial(StandIn, queue, parts, shared, run_task)


def _drain(
    place: Place, queue: Queue, engines: Sequence[AnyEngine], run_task: RunTask, limit: int
) -> list[AttemptRecord]:
    with routed(place, queue, engines, run_task) as make:
        stand_in = make(faults.active)
        stand_in.reap()
        stand_in.run(limit)
        for topic, number in stand_in.unserved().items():
            log.warning("drain: %d ready jobs of %s were left: %r has no handler for them", number, topic, queue)
        return stand_in.records


def _run_job(
    place: Place, queue: Queue, job: Job | UUID | str, engines: Sequence[AnyEngine], run_task: RunTask
) -> AttemptRecord:
    with routed(place, queue, engines, run_task) as make:
        return run_one(make(faults.active), queue, place.stored(job))


def run_one(stand_in: StandIn, queue: Queue, job_id: UUID) -> AttemptRecord:
    """
    Make one attempt at a stored job, and return what became of it.
    """
    stand_in.reap()
    found = stand_in.find(job_id)
    if found is None:
        raise JobNotFound(job_id)
    state, topic = found
    if topic not in queue.topics:
        raise RegistrationError(f"{queue!r} has no handler for {topic!r}, the topic of job {job_id}")
    if state not in CLAIMABLE:
        raise LifecycleError(f"job {job_id} is {state}: only one that is pending or failed can be run")
    stand_in.run_one(job_id)
    if not stand_in.records:
        raise LifecycleError(f"job {job_id} can't be claimed: another transaction holds its row")
    return stand_in.records[-1]
