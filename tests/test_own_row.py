"""
A transactional handler and the connection it was lent: its own job's row changed in it, and its server frozen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from tests.queues import MakeQueue, add, all_settled, count, probe_table
from tests.waiting import eventually, row

DEEDS: dict[str, Callable[[Session, brooq.Claim], object]] = {
    "cancel": lambda session, claim: brooq.cancel(session, claim.id),
    "delete": lambda session, claim: session.execute(text("DELETE FROM job WHERE id = :id"), {"id": claim.id}),
    "done": lambda session, claim: session.execute(
        text("UPDATE job SET state = 'done' WHERE id = :id"), {"id": claim.id}
    ),
}


@pytest.mark.parametrize("name", DEEDS)
def test_it_is_rolled_back_and_told_what_to_do_instead(engine: Engine, make_queue: MakeQueue, name: str) -> None:
    probe_table(engine)
    (job_id,) = add(engine, brooq.Job("t"))
    queue = make_queue(engine, max_attempts=2)

    @queue.handler("t", transactional=True)
    def handle(claim: brooq.Claim, session: Session) -> None:
        session.execute(text("INSERT INTO probe (n) VALUES (1)"))
        DEEDS[name](session, claim)

    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"]) == ("dead", 2, 0)
    assert "raise brooq.CancelJob" in found["last_error"]
    assert count(engine) == 0


def test_a_server_that_freezes_while_it_settles_is_left_behind(
    postgres_server: LocalPostgres, make_queue: MakeQueue
) -> None:
    # A server of its own: of another one, the number could be that of any process here.
    migrate(postgres_server.url())
    engine, worker_engine = (create_engine(postgres_server.url()) for _ in range(2))
    (job_id,) = add(engine, brooq.Job("t"))
    frozen: list[int] = []
    queue = make_queue(worker_engine, lease="2s", max_attempts=5)

    @queue.handler("t", transactional=True)
    def handle(claim: brooq.Claim, session: Session) -> None:
        if not frozen:
            frozen.append(session.execute(text("SELECT pg_backend_pid()")).scalar_one())
            os.kill(frozen[0], signal.SIGSTOP)

    queue.start()
    try:
        eventually(all_settled(engine), timeout=20)
        found = row(engine, job_id)
        assert (found["state"], found["attempts"]) == ("done", 2)
        assert found["last_error"].startswith("OperationalError")
    finally:
        os.kill(frozen[0], signal.SIGCONT)
        queue.close()
        worker_engine.dispose()
        engine.dispose()
