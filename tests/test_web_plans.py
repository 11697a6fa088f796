"""
What the dashboard reads of a table with a million jobs that are over, 50,000 of them of the last day.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest
from sqlalchemy import Engine, event

from sqlalchemy_brooq.search import JobQuery
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, TERMINAL, JobState
from sqlalchemy_brooq.web.reading import Reading
from tests.catalogs import run_sql
from tests.plans import job_scans
from tests.queues import on
from tests.waiting import eventually

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DEAD = frozenset({JobState.DEAD})
INDEXES: Final = {"job_pkey", "job_ready", "job_ready_topic", "job_leased", "job_terminal", "job_idempotency"}
ENOUGH: Final = 4_000
"""Pages of 8 KiB that an answer may read: the jobs of a day fill about 1,500. The table has 30,000."""
TENTH: Final = 0.1
"""Seconds that a page may take."""

QUERIES: Final = {
    "all": JobQuery(),
    "topic": JobQuery(topics=("history-3",)),
    "no such topic": JobQuery(topics=("nothing",)),
    "two topics": JobQuery(topics=("history-3", "nothing")),
    "waiting": JobQuery(states=CLAIMABLE),
    "running": JobQuery(states=HELD),
    "over": JobQuery(states=TERMINAL),
    "dead": JobQuery(states=DEAD),
    "dead of a topic": JobQuery(states=DEAD, topics=("history-0",)),
    "dead of none": JobQuery(states=DEAD, topics=("nothing",)),
    "dead and failed": JobQuery(states=DEAD | {JobState.FAILED}),
    "key": JobQuery(key="key-999983"),
    "no such key": JobQuery(key="nothing"),
    "key of a topic": JobQuery(key="key-999983", topics=("history-3",)),
    "new": JobQuery(created_since=HOUR),
    "of one hour": JobQuery(created_since=HOUR * 20, created_until=HOUR * 19),
    "older": JobQuery(created_until=HOUR * 12),
    "ended lately": JobQuery(ended_since=HOUR),
    "ended long ago": JobQuery(ended_since=DAY * 11, ended_until=DAY * 10),
}


class Watched:
    """
    A reading whose statements are noted.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        ttls = dict.fromkeys(TERMINAL, timedelta(days=30))
        self.statements: list[tuple[str, Any]] = []
        event.listen(engine, "before_cursor_execute", self._note)
        self.reading = Reading(on(engine), ttls=ttls, budget=timedelta(seconds=20))

    def _note(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        self.statements.append((statement, parameters))

    def fresh(self) -> Reading:
        """
        Return the reading with nothing kept from before.
        """
        self.reading._kept.clear()
        return self.reading

    def check(self, ask: Callable[[], Any], enough: int = ENOUGH) -> None:
        """
        Ask, and look at how the server goes about it.
        """
        self.statements.clear()
        assert ask().reason is None
        asked = [pair for pair in self.statements if "set_config" not in pair[0]]
        for statement, parameters in asked:
            with self.engine.connect() as connection:
                explained = connection.exec_driver_sql(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
                )
                plan = explained.scalar_one()[0]["Plan"]
            assert job_scans(plan) <= INDEXES, (job_scans(plan), statement)
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < enough, statement


@pytest.fixture(scope="module")
def watched(history_of_module: Engine) -> Watched:
    return Watched(history_of_module)


def asks(reading: Reading) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "holders", reading.holders
    yield "retention", reading.retention
    yield "in flight", partial(reading.in_flight, 20)
    yield "died", partial(reading.died, 20)
    for name, query in QUERIES.items():
        yield f"jobs: {name}", partial(reading.jobs, query)
        if name != "all":  # of which the first ones are counted, wherever they are
            yield f"count: {name}", partial(reading.count, query)


def overview(watched: Watched) -> None:
    """
    Ask what the first page asks.
    """
    reading = watched.fresh()
    for answer in (
        *(reading.topics(), reading.throughput(HOUR, 60), reading.throughput(DAY, 48)),
        *(reading.holders(), reading.in_flight(20), reading.died(20)),
    ):
        assert answer.reason is None


def test_whatever_is_asked_is_read_through_partial_indexes(watched: Watched) -> None:
    for _, ask in asks(watched.reading):
        watched.check(ask)
    watched.check(lambda: watched.fresh().topics())
    watched.check(lambda: watched.fresh().throughput(HOUR, 60))
    watched.check(lambda: watched.fresh().throughput(DAY, 48))
    watched.check(lambda: watched.fresh().throughput(DAY, 48, "history-3"))


def test_a_page_that_follows_is_read_as_the_first_one(watched: Watched) -> None:
    for query in QUERIES.values():
        first = watched.reading.jobs(query, limit=20)
        if first.value is not None and first.value.next is not None:
            watched.check(partial(watched.reading.jobs, query, first.value.next, 20))


def test_every_page_takes_less_than_a_tenth_of_a_second(watched: Watched) -> None:
    pages = {"overview": lambda: overview(watched), **dict(asks(watched.reading))}
    for name, ask in pages.items():
        # What else goes on at this machine takes its time as well: one time that is right will do.
        eventually(partial(is_quick, ask), 60.0, f"{name} always took longer")


def test_a_key_alone_is_looked_for_topic_by_topic(engine: Engine) -> None:
    run_sql(
        engine,
        "INSERT INTO job (topic, state, attempts, claimed_at, locked_by, locked_until, idempotency_key)"
        " SELECT 'topic-' || mod(n, 5), 'done', 1, now(), 'w', now(), 'key-' || n FROM generate_series(1, 120000) AS n",
    )
    run_sql(engine, "ANALYZE job")
    watched = Watched(engine)

    for key in ("key-31", "nothing"):
        query = JobQuery(key=key)
        found = watched.reading.jobs(query).value
        assert found is not None
        assert [job.private["key"] for job in found.jobs] == [key] * (key != "nothing")
        # A few pages of the index for each topic, twice; all of it has more than a hundred.
        watched.check(partial(watched.reading.jobs, query), enough=100)
        watched.check(partial(watched.reading.count, query), enough=100)


def is_quick(ask: Callable[[], object]) -> bool:
    begun = time.perf_counter()
    ask()
    return time.perf_counter() - begun < TENTH
