"""
The long history that plans are looked at on is what `tests.history` says.
"""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Engine, func, select

from sqlalchemy_brooq import Job
from tests.history import HISTORY, HISTORY_DAYS, HISTORY_TOPICS


def test_a_history_has_a_million_terminal_jobs_of_twenty_topics(history_engine: Engine) -> None:
    groups = select(Job.state, Job.topic, func.count()).group_by(Job.state, Job.topic)
    states: Counter[str] = Counter()
    topics: Counter[str] = Counter()
    with history_engine.connect() as connection:
        for state, topic, jobs in connection.execute(groups):
            states[state] += jobs
            topics[topic] += jobs

    assert states == {"done": HISTORY * 97 // 100, "dead": HISTORY // 50, "canceled": HISTORY // 100}
    assert topics == dict.fromkeys(HISTORY_TOPICS, HISTORY // len(HISTORY_TOPICS))


def test_the_jobs_of_a_history_ended_evenly_until_now_with_ids_that_rise(history_engine: Engine) -> None:
    days = func.floor(func.extract("epoch", func.now() - Job.updated_at) / 86_400)
    pairs = select((Job.id > func.lag(Job.id).over(order_by=Job.updated_at)).label("rises")).subquery()
    with history_engine.connect() as connection:
        by_day = connection.scalars(select(func.count()).select_from(Job).group_by(days).order_by(days)).all()
        rising = connection.scalar(select(func.bool_and(pairs.c.rises)))
        latest = connection.scalar(select(Job.id).order_by(Job.updated_at.desc()).limit(1))

    # Some time passes between the making and the looking: what is left of the first day is more than 20 days old.
    a_day = HISTORY / HISTORY_DAYS
    assert all(0.95 * a_day < jobs < 1.05 * a_day for jobs in by_day[:HISTORY_DAYS]), by_day
    assert rising
    assert latest
    assert latest.version == 7
