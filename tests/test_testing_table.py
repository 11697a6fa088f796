"""
One table of handlers, run by the testing kit and by a worker: the rows that they leave are the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job
from sqlalchemy_brooq.testing import adrain, arolled_back, arun_job, drain, interrupt, lose_lease, rolled_back, run_job
from tests.sides import MakeSide, Side, write
from tests.test_transactional import CASES, TAKEN
from tests.waiting import eventually

SLOW: dict[str, Any] = {"backoff_base": "1h", "backoff_max": "2h", "max_attempts": 2}
"""So slow that what failed once stays as it is."""
UNREADABLE = '{"unreadable": true}'
HUGE = 10**200_000
"""JSON, but no jsonb."""


class Way(NamedTuple):
    """
    A way in which a handler can go, registered by a function, and the jobs that it is shown with.
    """

    register: Callable[[Side, str, int], None]
    jobs: Callable[[str], list[Job]] = lambda topic: [Job(topic)]


def ordinary(body: Callable[[brooq.Claim], Any], **options: Any) -> Way:
    return Way(lambda side, topic, n: side.ordinary(topic, body, **options))


def raising(error: BaseException, **options: Any) -> Way:
    def body(claim: brooq.Claim) -> None:
        raise error

    return ordinary(body, **options)


def caused(error: Exception, signal: Exception) -> Way:
    def body(claim: brooq.Claim) -> None:
        raise error from signal

    return ordinary(body)


def transactional(body: Callable[[brooq.Claim, Session, int], Any], **options: Any) -> Way:
    return Way(
        lambda side, topic, n: side.transactional(topic, lambda claim, session: body(claim, session, n), **options)
    )


def in_own_session(deed: Callable[[Session, brooq.Claim, int], Any]) -> Way:
    """
    Do *deed* in a session that the handler opens itself, by the queue.
    """

    def register(side: Side, topic: str, n: int) -> None:
        def handle(claim: brooq.Claim) -> None:
            with side.queue.begin() as session:
                deed(session, claim, n)

        async def ahandle(claim: brooq.Claim) -> None:
            async with side.queue.abegin() as session:
                await session.run_sync(deed, claim, n)

        side.queue.register(topic, ahandle if side.kind == "async" else handle)

    return Way(register)


def on_own_connection(deed: Callable[[Connection, int], Any], **options: Any) -> Way:
    """
    Do *deed* on a connection that the handler takes from the engine itself.
    """

    def register(side: Side, topic: str, n: int) -> None:
        def handle(claim: brooq.Claim) -> None:
            with side.sync_engine.execution_options(**options).connect() as connection:
                deed(connection, n)

        async def ahandle(claim: brooq.Claim) -> None:
            async with side.async_engine.execution_options(**options).connect() as connection:
                await connection.run_sync(deed, n)

        side.queue.register(topic, ahandle if side.kind == "async" else handle)

    return Way(register)


def plain(body: Callable[[brooq.Claim, Side, int], Any]) -> Way:
    """
    Register a plain handler, on an async engine too.
    """
    return Way(lambda side, topic, n: side.queue.register(topic, lambda claim: body(claim, side, n)))


def insert(connection: Connection | Session, n: int) -> None:
    connection.execute(text("INSERT INTO note (n) VALUES (:n)"), {"n": n})


def committing(connection: Connection, n: int) -> None:
    insert(connection, n)
    connection.commit()
    insert(connection, n + 100)  # and is rolled back


def failing_in_between(connection: Connection, n: int) -> None:
    insert(connection, n)
    with pytest.raises(Exception, match="division by zero"):
        connection.execute(text("SELECT 1/0"))
    insert(connection, n + 100)


def chaining(claim: brooq.Claim) -> dict[str, int]:
    claim.chain(Job("chained", {"n": 1}), Job("chained", {"n": 2}, idempotency_key="k", priority=2, delay="1h"))
    claim.chain(Job("chained", {"n": 3}, idempotency_key="k"))
    return {"chained": 2}


def chaining_and_returning(claim: brooq.Claim) -> int:
    claim.chain(Job("chained"))
    return HUGE


def chaining_in_vain(claim: brooq.Claim) -> None:
    chaining(claim)
    raise ValueError("no")


def calling_back(claim: brooq.Claim, side: Side, n: int) -> None:
    claim.on_success(lambda session: insert(session, n))


def Calling(deed: Callable[[Session], Any]) -> Way:  # noqa: N802
    def register(side: Side, topic: str, n: int) -> None:
        def body(claim: brooq.Claim) -> None:
            claim.on_success(side.callback(lambda session: write(session, n)))
            claim.on_success(side.callback(deed))

        side.ordinary(topic, body)

    return Way(register)


def canceling(session: Session, claim: brooq.Claim, n: int) -> None:
    insert(session, n)
    brooq.cancel(session, claim.id)


def enqueuing(session: Session, claim: brooq.Claim, n: int) -> None:
    insert(session, n)
    session.add(Job("chained", {"from": n}, idempotency_key=f"own-{n}"))
    brooq.enqueue(session, Job("chained", {"from": n}, idempotency_key=f"own-{n}"))


def failing(session: Session, claim: brooq.Claim, n: int) -> None:
    enqueuing(session, claim, n)
    session.execute(text("SELECT 1/0"))


def writing(claim: brooq.Claim, session: Session, n: int) -> dict[str, int]:
    write(session, n)
    session.add(Job("chained", {"by": "session"}))
    claim.chain(Job("chained", {"by": "chain"}))
    return {"n": n}


def touching(claim: brooq.Claim, session: Session, n: int) -> None:
    write(session, n)
    brooq.cancel(session, claim.id)


WAYS: dict[str, Way] = {
    "returns": ordinary(lambda claim: {"n": 1}),
    "returns what is kept": ordinary(lambda claim: {"n": [claim.attempt, None]}, keep_result=True),
    "returns what can't be kept": ordinary(lambda claim: object(), keep_result=True),
    "returns what the server refuses": ordinary(lambda claim: HUGE, keep_result=True),
    "returns what the server refuses, with a chain": ordinary(chaining_and_returning, keep_result=True),
    "fails": raising(ValueError("no\x00" + "x" * 5_000)),
    "fails for the last time": raising(KeyError("order"), max_attempts=1),
    "exits": raising(SystemExit(3)),
    "is canceled by nobody": raising(CancelledError()),
    "RetryLater": raising(brooq.RetryLater(timedelta(minutes=5), "busy")),
    "RetryLater, for too long": raising(brooq.RetryLater(timedelta(days=1))),
    "RetryLater, at once": raising(brooq.RetryLater(timedelta(0)), max_attempts=3),
    "PreserveAttempt": raising(brooq.PreserveAttempt("not my fault"), max_attempts=1),
    "CancelJob": raising(brooq.CancelJob("called off")),
    "a signal as a cause": caused(ValueError("no"), brooq.RetryLater(timedelta(minutes=5))),
    "a signal in a group": raising(ExceptionGroup("two", [ValueError("no"), brooq.CancelJob("called off")])),
    "a cause that nothing caused": raising(brooq.Shutdown("made up")),
    "waits for its time": Way(
        lambda side, topic, n: side.ordinary(topic, lambda claim: None), lambda topic: [Job(topic, delay="1h")]
    ),
    "keys and priorities": Way(
        lambda side, topic, n: side.ordinary(topic, lambda claim: claim.priority, keep_result=True),
        lambda topic: [Job(topic, [n], idempotency_key=f"k{n}", priority=n) for n in range(-2, 3)],
    ),
    "chains": ordinary(chaining, keep_result=True),
    "chains in vain": ordinary(chaining_in_vain),
    "calls back": Calling(lambda session: session.add(Job("chained"))),
    "calls back in vain": Calling(lambda session: session.execute(text("SELECT 1/0"))),
    "calls back with a plain function": plain(calling_back),
    "its own session": in_own_session(enqueuing),
    "its own session, and fails": in_own_session(failing),
    "its own session, and cancels itself": in_own_session(canceling),
    "its own connection": on_own_connection(committing),
    "its own connection, in AUTOCOMMIT": on_own_connection(failing_in_between, isolation_level="AUTOCOMMIT"),
    "transactional": transactional(writing, keep_result=True),
    "transactional, and changes its own row": transactional(touching),
    "an unreadable payload": Way(
        lambda side, topic, n: side.ordinary(topic, lambda claim: None),
        lambda topic: [Job(topic, {"unreadable": True})],
    ),
    "nobody's": Way(lambda side, topic, n: None),
}


def loads(value: str) -> Any:
    if value == UNREADABLE:
        raise ValueError("it can't be read")
    return json.loads(value)


def topic_of(n: int) -> str:
    return f"way.{n}"


def register(side: Side) -> None:
    for n, way in enumerate(WAYS.values()):
        way.register(side, topic_of(n), n)
    for n, case in enumerate(CASES.values()):
        side.transactional(f"case.{n}", _handler(case.deed, 10_000 + n))
    side.ordinary("chained", lambda claim: None)
    side.ordinary("abandoned", lambda claim: claim.requeues, keep_result=True)
    side.ordinary("poisonous", lambda claim: None, max_requeues=1)


def _handler(deed: Callable[[Session], Any], n: int) -> Callable[[brooq.Claim, Session], None]:
    def handle(claim: brooq.Claim, session: Session) -> None:
        write(session, n)
        deed(session)

    return handle


def enqueue(session: Session) -> None:
    """
    Enqueue every way's jobs, and two that a worker left behind that is gone.
    """
    session.execute(text("INSERT INTO note VALUES (:n)"), {"n": TAKEN})
    session.add_all(job for n, way in enumerate(WAYS.values()) for job in way.jobs(topic_of(n)))
    session.add_all(Job(f"case.{n}") for n in range(len(CASES)))
    session.add_all([Job("abandoned"), Job("poisonous")])
    session.flush()
    gone = "state = 'processing', attempts = 1, locked_by = 'gone', claimed_at = now() - interval '1h'"
    session.execute(
        text(f"UPDATE job SET {gone}, locked_until = now() - interval '1s' WHERE topic IN ('abandoned', 'poisonous')")
    )
    session.execute(text("UPDATE job SET attempts = 2, requeues = 1 WHERE topic = 'poisonous'"))


ROWS = text("""
    SELECT topic, payload, state, attempts, requeues, priority, last_error, result, idempotency_key, created_at,
        claimed_at, locked_by, locked_until, available_at, updated_at, available_at <= updated_at AS was_due,
        (SELECT topic FROM job chainer WHERE chainer.id::text = job.meta ->> 'chained_by') AS chained_by
    FROM job ORDER BY topic, payload, id
""")


def rows(connection: Connection | Session) -> list[dict[str, Any]]:
    """
    Return every job's row, without what differs from one run to the next.
    """
    return [dict(_comparable(row)) for row in connection.execute(ROWS)]


def _comparable(row: Any) -> Iterator[tuple[str, Any]]:
    for name, value in row._mapping.items():
        if name in {"claimed_at", "locked_by", "locked_until"}:
            yield name, value is None
        elif name not in {"created_at", "available_at", "updated_at"}:
            yield name, value
    if row.state == "failed":
        wait = row.available_at - row.updated_at
        is_backoff = timedelta(minutes=30) <= wait <= timedelta(hours=1)
        yield "waits", "as long as the backoff" if is_backoff else wait


def notes(connection: Connection | Session) -> list[int]:
    return list(connection.execute(text("SELECT n FROM note ORDER BY n")).scalars())


Left = tuple[list[dict[str, Any]], list[int]]


def by_kit(side: Side) -> Left:
    """
    Run all of it by the kit, and return what that leaves before it is rolled back.
    """
    if side.kind == "async":
        return side.run(_by_async_kit(side))
    with rolled_back(side.queue) as session:
        enqueue(session)
        drain(session, side.queue)
        return rows(session), notes(session)


async def _by_async_kit(side: Side) -> Left:
    async with arolled_back(side.queue) as session:
        await session.run_sync(enqueue)
        await adrain(session, side.queue)
        return await session.run_sync(rows), await session.run_sync(notes)


def by_worker(side: Side) -> Left:
    """
    Run all of it by a worker.
    """
    with Session(side.engine) as session, session.begin():
        enqueue(session)
    side.start()
    eventually(lambda: side.scalar(f"SELECT count(*) FROM job WHERE {UNSETTLED}") == 0, timeout=60)
    with side.engine.connect() as connection:
        return rows(connection), notes(connection)


NOBODYS = topic_of(list(WAYS).index("nobody's"))
UNSETTLED = (
    f"state = 'processing' OR (state IN ('pending', 'failed') AND available_at <= now() AND topic <> '{NOBODYS}')"
)


@pytest.fixture(autouse=True)
def _long_numbers() -> Iterator[None]:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    yield
    sys.set_int_max_str_digits(limit)


def assert_same(kit: Left, worker: Left) -> None:
    for ours, theirs in zip(kit[0], worker[0], strict=True):
        assert ours == theirs
    assert kit[1] == worker[1]


def test_the_kit_leaves_what_a_worker_leaves(make_side: MakeSide) -> None:
    side = make_side(engine_options={"json_deserializer": loads}, reaper_period="50ms", **SLOW)
    register(side)

    kit = by_kit(side)
    assert side.scalar("SELECT count(*) FROM job") == side.scalar("SELECT count(*) FROM note") == 0
    worker = by_worker(side)

    assert len(kit[0]) > len(WAYS) + len(CASES)
    assert_same(kit, worker)


# -- what comes from outside, which the kit does on demand


def obey(error: BaseException) -> None:
    raise error


def end(error: BaseException) -> None:
    pass


def fail(error: BaseException) -> None:
    raise ValueError("no") from error


def call_off(error: BaseException) -> None:
    raise brooq.CancelJob("called off")


REACTIONS = (obey, end, fail, call_off)
"""What a handler may do when it is interrupted."""


class Waiting:
    """
    Handlers that wait until they are interrupted.
    """

    def __init__(self, side: Side) -> None:
        self.begun: set[str] = set()
        for n, reaction in enumerate(REACTIONS):
            side.queue.register(f"plain.{n}", self._plain(reaction))
            side.queue.register(f"async.{n}", self._async(reaction))
        side.queue.register("raise", self._plain(obey), brooq.HandlerOptions(interrupt="raise"))
        handler = self._transactional if side.kind == "plain" else self._atransactional
        side.queue.register("transactional", handler, brooq.HandlerOptions(transactional=True))
        self.topics = sorted(side.queue.topics)

    def _plain(self, reaction: Callable[[BaseException], None]) -> Callable[[brooq.Claim], None]:
        def handle(claim: brooq.Claim) -> None:
            self.begun.add(claim.topic)
            try:
                claim.wait(30)
            except BaseException as error:
                reaction(error)

        return handle

    def _async(self, reaction: Callable[[BaseException], None]) -> Callable[[brooq.Claim], Coroutine[Any, Any, None]]:
        async def handle(claim: brooq.Claim) -> None:
            self.begun.add(claim.topic)
            try:
                await asyncio.sleep(30)
            except BaseException as error:
                reaction(error)

        return handle

    def _transactional(self, claim: brooq.Claim, session: Session) -> None:
        write(session, 1)
        self.begun.add(claim.topic)
        claim.wait(30)

    async def _atransactional(self, claim: brooq.Claim, session: AsyncSession) -> None:
        await session.run_sync(write, 1)
        self.begun.add(claim.topic)
        await asyncio.sleep(30)


def attempts(side: Side, topics: list[str], demand: Callable[[], Any]) -> Left:
    """
    Make one attempt at a job of each topic by the kit, each with a fault on demand; return what is left.
    """
    if side.kind == "async":
        return side.run(_aattempts(side, topics, demand))
    with rolled_back(side.queue) as session:
        for topic in topics:
            with demand():
                run_job(session, side.queue, Job(topic))
        return rows(session), notes(session)


async def _aattempts(side: Side, topics: list[str], demand: Callable[[], Any]) -> Left:
    async with arolled_back(side.queue) as session:
        for topic in topics:
            with demand():
                await arun_job(session, side.queue, Job(topic))
        return await session.run_sync(rows), await session.run_sync(notes)


def test_a_timeout_on_demand_leaves_what_a_workers_leaves(make_side: MakeSide) -> None:
    side = make_side(workers=20, attempt_timeout="200ms", **SLOW)
    waiting = Waiting(side)

    kit = attempts(side, waiting.topics, lambda: interrupt(brooq.AttemptTimeout))
    side.add(*map(Job, waiting.topics))
    side.start()
    eventually(lambda: side.scalar("SELECT count(*) FROM job WHERE state IN ('pending', 'processing')") == 0)

    with side.engine.connect() as connection:
        assert_same(kit, (rows(connection), notes(connection)))


def test_a_shutdown_on_demand_leaves_what_a_workers_leaves(make_side: MakeSide) -> None:
    side = make_side(workers=20, shutdown_grace=timedelta(0), **SLOW)
    waiting = Waiting(side)

    kit = attempts(side, waiting.topics, lambda: interrupt(brooq.Shutdown))
    waiting.begun.clear()
    side.add(*map(Job, waiting.topics))
    side.start()
    eventually(lambda: waiting.begun == {*waiting.topics})
    side.stop()

    with side.engine.connect() as connection:
        assert_same(kit, (rows(connection), notes(connection)))


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_lost_lease_on_demand_leaves_what_a_workers_leaves(make_side: MakeSide, *, is_transactional: bool) -> None:
    side = make_side(**SLOW)
    is_real = False

    def body(claim: brooq.Claim, session: Session | None = None) -> int:
        if is_real and claim.attempt == 1:
            _let_go(side, claim)
        if session is not None:
            write(session, claim.attempt)
        claim.chain(Job("chained", {"by": claim.attempt}))
        return claim.attempt

    (side.transactional if is_transactional else side.ordinary)("t", body, keep_result=True)
    kit = _lost_by_kit(side)
    is_real = True
    side.add(Job("t"))
    side.start()
    eventually(lambda: side.scalar("SELECT count(*) FROM job WHERE state = 'done'") == 1)

    with side.engine.connect() as connection:
        assert_same(kit, (rows(connection), notes(connection)))


def _let_go(side: Side, claim: brooq.Claim) -> None:
    """
    End the lease on a job, and wait until it was claimed again.
    """
    with side.engine.begin() as connection:
        connection.execute(text("UPDATE job SET locked_until = now() - interval '1s'"))
    eventually(lambda: side.scalar("SELECT attempts FROM job WHERE topic = 't'") == 2)


def _lost_by_kit(side: Side) -> Left:
    if side.kind == "async":
        return side.run(_lost_by_async_kit(side))
    with rolled_back(side.queue) as session, lose_lease():
        session.add(Job("t"))
        drain(session, side.queue)
        return rows(session), notes(session)


async def _lost_by_async_kit(side: Side) -> Left:
    async with arolled_back(side.queue) as session:
        session.add(Job("t"))
        with lose_lease():
            await adrain(session, side.queue)
        return await session.run_sync(rows), await session.run_sync(notes)
