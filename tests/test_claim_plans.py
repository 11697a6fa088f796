"""
What a claim reads, whatever else lies in the table: the read that picks, without the update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Engine, text

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.statements import exchange
from sqlalchemy_brooq.worker.store import request_columns
from sqlalchemy_brooq.worker.turns import Turns
from tests.plans import PLANS, Plan, explained

FIFTY: Final = [f"served-{n}" for n in range(50)]

READY: Final = (
    "INSERT INTO job (id, topic, priority, available_at)"
    # Ids that rise, as those of `new_id` do.
    " SELECT (lpad(to_hex(CAST(:jobs AS bigint)), 16, '0') || lpad(to_hex(n), 16, '0'))::uuid,"
    " :topic || n % :topics, :priority, now() + CAST(:at AS interval) FROM generate_series(1, :jobs) AS n"
)


def add(
    connection: Connection, topic: str, jobs: int, *, topics: int = 1, priority: int = 0, at: str = "-1 minute"
) -> None:
    parameters = {"topic": f"{topic}-", "jobs": jobs, "topics": topics, "priority": priority, "at": at}
    connection.execute(text(READY), parameters)


def picked(connection: Connection, topics: list[str], want: int, mode: str) -> Plan:
    parameters: dict[str, Any] = {"want": want, **request_columns(Turns(topics).request(want))}
    return explained(connection, exchange.picking(), parameters, mode)


@pytest.fixture
def history(history_engine: Engine) -> Iterator[Connection]:
    with history_engine.connect() as connection, connection.begin():
        yield connection


def check(connection: Connection, topics: list[str], *, rows: int = 1, limit: int = 300) -> None:
    """
    Pick one job by every kind of plan, on statistics from before and after what was added.
    """
    for is_fresh in (False, True):
        if is_fresh:
            connection.execute(text("ANALYZE job"))
        for mode in PLANS:
            plan = picked(connection, topics, 1, mode)
            assert plan.rows == rows
            assert plan.buffers < limit, (mode, is_fresh)
            assert plan.scans <= {"job_ready", "job_ready_topic"}, (mode, is_fresh)


def test_history_costs_a_claim_nothing(history: Connection) -> None:
    add(history, "served", 10)

    check(history, ["served-0"])
    check(history, ["nothing-0"], rows=0)


def test_topics_behind_a_million_jobs_of_others_are_reached_at_once(history: Connection) -> None:
    add(history, "other", 1_000_000, topics=20, at="-1 day")
    history.execute(text("INSERT INTO job (topic, priority) VALUES ('served-9', 0)"))

    check(history, ["served-9"])
    check(history, ["served-9", "nothing-0"])
    check(history, FIFTY, limit=1000)


def test_a_million_future_jobs_cost_a_claim_nothing(history: Connection) -> None:
    add(history, "served", 1_000_000, topics=20, at="1 day")
    add(history, "served", 10)

    check(history, ["served-0"])
    check(history, FIFTY)
    check(history, ["served-5"], rows=0)


def test_one_job_among_fifty_topics_is_found_at_once(history: Connection) -> None:
    add(history, "served", 10_000, topics=50)
    check(history, FIFTY)


def test_the_last_of_fifty_topics_is_found_at_once(history: Connection) -> None:
    # A level at which nothing is ready is not asked topic by topic.
    history.execute(text("INSERT INTO job (topic, priority) VALUES ('served-9', -2)"))
    check(history, FIFTY)
    check(history, [topic for topic in FIFTY if topic != "served-9"], rows=0)


def test_a_claim_goes_on_behind_a_mark(history: Connection) -> None:
    add(history, "served", 100_000)
    history.execute(text("ANALYZE job"))
    moment = history.scalar(text("SELECT available_at FROM job WHERE topic = 'served-0' LIMIT 1"))
    ids = history.scalars(text("SELECT id FROM job WHERE topic = 'served-0' ORDER BY id")).all()
    turns = Turns(["served-0"])
    request = turns.request(1)
    turns.learn(request, [Claim(ids[90_000], "served-0", None, 1, 0, 0, moment, moment, moment, "w", moment)])
    parameters: dict[str, Any] = {"want": 1, **request_columns(turns.request(1, from_left=False))}
    history.execute(text("UPDATE job SET state = 'done' WHERE topic = 'served-0' AND id < :id"), {"id": ids[90_000]})
    for mode in PLANS:
        plan = explained(history, exchange.picking(), parameters, mode)
        assert plan.rows == 1
        assert plan.buffers < 300, mode
