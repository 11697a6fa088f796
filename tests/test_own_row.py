"""
A transactional handler that changes its own job's row, in the transaction that it was lent.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from tests.queues import MakeQueue, all_settled, count, probe_table
from tests.test_leases import add
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
