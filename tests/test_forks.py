"""
A queue in forked processes: built before the fork and started after it, and never on a connection of the parent's.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.worker.connection import PrivateConnection
from tests.programs import await_line, program
from tests.queues import MakeQueue, all_settled
from tests.waiting import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # its children do nothing with threads


@contextmanager
def forked(body: Callable[[], object]) -> Iterator[int]:
    """
    Run *body* in a forked child, and fail unless it has ended well at the end of the block.
    """
    pid = os.fork()
    if not pid:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    try:
        yield pid
        _, status = eventually(lambda: (found := os.waitpid(pid, os.WNOHANG)) != (0, 0) and found, 30.0) or (0, -1)
        assert status == 0
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def enqueue(engine: Engine, number: int, topic: str = "t") -> None:
    with Session(engine) as session, session.begin():
        brooq.enqueue_many(session, [brooq.Job(topic) for _ in range(number)])


def backends(engine: Engine) -> dict[int, set[int]]:
    """
    Return which process has run its jobs on which server sessions.
    """
    found: dict[int, set[int]] = {}
    with engine.connect() as connection:
        for process, backend in connection.execute(text("SELECT result->0, result->1 FROM job WHERE state = 'done'")):
            found.setdefault(process, set()).add(backend)
    return found


def test_a_queue_built_before_a_fork_works_in_the_child(
    make_queue: MakeQueue, engine: Engine, engine_kind: str
) -> None:
    queue = make_queue(engine)
    queue.handler("t", keep_result=True)(lambda _: [os.getpid(), 0])
    enqueue(engine, 20)  # it has a connection in its pool from now on

    def child() -> None:
        own = create_engine(engine.url)
        with queue:
            eventually(all_settled(own))

    with forked(child) as pid:
        pass

    assert backends(engine).keys() == {pid}


def test_a_connection_that_was_in_the_pool_at_the_fork_stays_the_parents(make_queue: MakeQueue, engine: Engine) -> None:
    queue = make_queue(engine)

    @queue.handler("t", transactional=True, keep_result=True)
    def told(claim: brooq.Claim, session: Session) -> list[int]:
        return [os.getpid(), session.execute(text("SELECT pg_backend_pid()")).scalar_one()]

    enqueue(engine, 400)
    with engine.connect() as connection:
        pooled = connection.scalar(text("SELECT pg_backend_pid()"))

    def work() -> None:
        with queue:
            eventually(lambda: len(backends(engine)) > 1 and all_settled(engine)(), 20.0)

    with forked(work), forked(work), engine.connect() as connection:
        assert connection.scalar(text("SELECT pg_backend_pid()")) == pooled

    found = backends(engine)
    assert len(found) == 2
    assert not set.intersection(*found.values())
    assert pooled not in set.union(*found.values())


def test_an_async_engine_with_pooled_connections_is_not_shared_either(
    make_queue: MakeQueue, engine: Engine, async_engine_url: URL
) -> None:
    asyncs = create_async_engine(async_engine_url)
    queue = make_queue(asyncs)
    inherited = queue._plain_source()
    with inherited.connect() as connection:
        pooled = connection.scalar(text("SELECT pg_backend_pid()"))

    def child() -> None:
        with inherited.connect() as connection:
            assert connection.scalar(text("SELECT pg_backend_pid()")) != pooled
        assert asyncs.sync_engine.pool is not pool

    pool = asyncs.sync_engine.pool
    with forked(child):
        pass

    with inherited.connect() as connection:
        assert connection.scalar(text("SELECT pg_backend_pid()")) == pooled
    queue.close()


def test_what_a_child_does_to_a_connection_of_its_parents_stays_in_the_child(engine: Engine) -> None:
    private = PrivateConnection(engine)

    def child() -> None:
        private.cut_off()
        private.drop()

    with private.transaction(limit=10) as connection:
        connection.execute(text("INSERT INTO job (topic) VALUES ('t')"))
        with forked(child):
            pass

    private.close()
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM job")) == 1


FORKING = """
import os, sys
import sqlalchemy as sa, sqlalchemy_brooq as brooq
from tests.waiting import eventually

engine = sa.create_engine(sys.argv[1])
queue = brooq.Queue(engine, brooq.Config(poll_interval="20ms", reaper_period="50ms"))
done = []
queue.handler("t")(lambda claim: done.append(claim.id))


def sessions():
    with engine.connect() as connection:
        return set(connection.scalars(sa.text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")))


with queue:
    eventually(lambda: len(sessions()) >= 5)
    before = sessions()
    if not (pid := os.fork()):
        assert queue.health() is None
        assert queue.stop() is None
        engine.connect().close()
        sys.exit()  # leaves the block, and ends as any program does, with all that is finalized then
    assert os.waitpid(pid, 0)[1] == 0
    with queue.begin() as session:
        session.add(brooq.Job("t"))
    eventually(lambda: done)
    assert before <= sessions()
    print("failures", [loop for loop in queue.health().loops if loop.failures], flush=True)
"""


def test_a_fork_of_a_process_with_a_running_queue_does_not_touch_it(database_url: URL) -> None:
    with program(FORKING, database_url) as process:
        await_line(process, "failures []")
        assert process.wait(10) == 0
