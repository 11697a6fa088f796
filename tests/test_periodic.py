"""
The scheduler that ``docs/how-to/periodic.md`` builds: one job a slot, whoever enqueues it and whatever the clocks do.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import URL, Engine, delete, event, func, select
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job
from sqlalchemy_brooq.testing import advance, drain
from tests.commands import environment, shown
from tests.pages import blocks
from tests.servers import ROOT
from tests.waiting import eventually

PAGE = ROOT / "docs/how-to/periodic.md"
(SOURCE,) = [block.text for block in blocks(PAGE) if block.text.startswith("# schedule.py")]
BERLIN = ZoneInfo("Europe/Berlin")
SPRING = datetime(2026, 3, 29, tzinfo=UTC)
AUTUMN = datetime(2026, 10, 25, tzinfo=UTC)
NIGHTS = {"spring": SPRING, "autumn": AUTUMN}
EXPRESSIONS = ["30 2 * * *", "*/30 * * * *", "0 3 * * *", "15 1,2,3 * * *", "*/7 2 * * *"]


def page() -> Any:
    module = ModuleType("schedule")
    sys.modules[module.__name__] = module  # where dataclasses look for annotations
    try:
        exec(compile(SOURCE, str(PAGE), "exec"), module.__dict__)  # noqa: S102 - the page's own code is what is tested
    finally:
        del sys.modules[module.__name__]
    return module


schedule = page()


def nightly(cron: str = "30 2 * * *", catch_up: timedelta = timedelta(hours=36), zone: str = "Europe/Berlin") -> Any:
    return schedule.Schedule("nightly", "report.day", cron, zone, catch_up)


def local(slots: Iterator[datetime]) -> list[str]:
    return [f"{slot.astimezone(BERLIN):%d %H:%M %Z}" for slot in slots]


def slots(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return sorted(payload["slot"] for payload in session.scalars(select(Job.payload)))


# -- a change of clocks


@pytest.mark.parametrize("night", NIGHTS.values(), ids=NIGHTS)
def test_a_daily_job_runs_once_on_each_date_also_when_the_clocks_change(night: datetime) -> None:
    found = list(nightly().slots(night - timedelta(days=3), night + timedelta(days=3)))

    dates = [slot.astimezone(BERLIN).date() for slot in found]
    assert dates == [date(night.year, night.month, night.day) + timedelta(days=day) for day in range(-3, 3)]


def test_a_slot_that_the_clocks_skip_is_right_after_the_gap_and_one_they_repeat_is_the_first() -> None:
    day = timedelta(days=1)

    assert local(nightly().slots(SPRING, SPRING + day)) == ["29 03:00 CEST"]
    assert local(nightly().slots(AUTUMN, AUTUMN + day)) == ["25 02:30 CEST"]


def test_an_interval_goes_on_evenly_when_the_clocks_change() -> None:
    every = nightly("*/30 * * * *")
    spring, autumn = (
        local(every.slots(moment, moment + timedelta(hours=2)))
        for moment in (SPRING - timedelta(minutes=30), AUTUMN - timedelta(minutes=30))
    )

    assert spring == ["29 01:00 CET", "29 01:30 CET", "29 03:00 CEST", "29 03:30 CEST"]
    assert autumn == ["25 02:00 CEST", "25 02:30 CEST", "25 02:00 CET", "25 02:30 CET"]


@given(
    cron=st.sampled_from(EXPRESSIONS),
    night=st.sampled_from(sorted(NIGHTS.values())),
    steps=st.lists(st.integers(1, 5_400), min_size=1, max_size=40),
)
def test_however_often_one_looks_the_slots_are_the_same(cron: str, night: datetime, steps: list[int]) -> None:
    one, begin = nightly(cron), night - timedelta(hours=2)
    looks = [begin]
    for step in steps:
        looks.append(looks[-1] + timedelta(seconds=step))

    seen = [slot for since, until in pairwise(looks) for slot in one.slots(since, until)]

    assert seen == list(one.slots(begin, looks[-1]))
    assert len({one.job(slot).idempotency_key for slot in seen}) == len(seen)


# -- two schedulers


def test_two_schedulers_at_once_enqueue_each_slot_once(engine: Engine) -> None:
    every = nightly("*/1 * * * *", catch_up=timedelta(minutes=30))
    together, times = threading.Barrier(2), list[datetime]()

    def run() -> None:
        for _ in range(5):
            together.wait(20)
            with Session(engine) as session, session.begin():
                times.append(schedule.look(session, None, [every]))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    expected = every.slots(min(times) - every.catch_up, max(times))
    assert slots(engine) == [slot.isoformat() for slot in expected]


def test_two_processes_one_of_which_is_killed_and_restarted_lose_no_slot_and_repeat_none(
    engine: Engine, database_url: URL, tmp_path: Path
) -> None:
    every_second = SOURCE.replace('"*/10 * * * *"', '"* * * * * *"').replace("minutes=30", "seconds=10")
    (tmp_path / "schedule.py").write_text(every_second)

    def scheduler() -> subprocess.Popen[bytes]:
        variables = environment({"DATABASE_URL": shown(database_url)})
        return subprocess.Popen([sys.executable, "schedule.py"], cwd=tmp_path, env=variables)

    def counted() -> list[datetime]:
        with Session(engine) as session:
            found = session.scalars(select(Job.payload).where(Job.topic == "stock.count"))
            return sorted(datetime.fromisoformat(payload["slot"]) for payload in found)

    running = [scheduler(), scheduler()]
    try:
        begun = len(eventually(counted))
        running[0].kill()
        running[0].wait()
        running[1].kill()  # and for a moment there is none
        running[1].wait()
        eventually(lambda: datetime.now(UTC) > counted()[-1] + timedelta(seconds=2))
        running[0] = scheduler()
        eventually(lambda: len(counted()) >= begun + 4)
    finally:
        for process in running:
            process.kill()
            process.wait()

    found = counted()
    assert found == [found[0] + timedelta(seconds=second) for second in range(len(found))]


# -- one that was down


def look_at(engine: Engine, moment: datetime, schedules: list[Any], last: datetime | None = None) -> None:
    """
    Look at *moment*, whatever the database's clock says.
    """

    class Clock(Session):
        def scalars(self, *_: Any, **__: Any) -> Any:
            return self

        def one(self) -> datetime:
            return moment

    with Clock(engine) as session, session.begin():
        assert schedule.look(session, last, schedules) == moment


def test_a_scheduler_that_was_down_makes_up_for_the_slots_of_its_window_only(engine: Engine) -> None:
    look_at(engine, datetime(2026, 6, 1, 12, tzinfo=UTC), [nightly(catch_up=timedelta(hours=12))])
    look_at(engine, datetime(2026, 6, 5, 12, tzinfo=UTC), [nightly(catch_up=timedelta(days=2))])

    assert slots(engine) == [f"2026-06-{day:02}T00:30:00+00:00" for day in (1, 4, 5)]


def test_a_look_too_early_finds_nothing_and_the_next_one_the_slot(engine: Engine) -> None:
    slot = datetime(2026, 6, 1, 0, 30, tzinfo=UTC)
    early, late = slot - timedelta(milliseconds=5), slot + timedelta(milliseconds=400)

    look_at(engine, early, [nightly()], slot - timedelta(hours=1))
    assert slots(engine) == []
    look_at(engine, late, [nightly()], early)
    look_at(engine, late + timedelta(seconds=1), [nightly()], late)

    assert slots(engine) == [slot.isoformat()]


def test_a_look_that_is_rolled_back_is_made_again(engine: Engine) -> None:
    moment = datetime(2026, 6, 1, 12, tzinfo=UTC)

    def refuse(_session: Session) -> None:
        raise ConnectionError

    event.listen(Session, "before_commit", refuse)
    try:
        with pytest.raises(ConnectionError):
            look_at(engine, moment, [nightly()])
    finally:
        event.remove(Session, "before_commit", refuse)
    assert slots(engine) == []

    look_at(engine, moment, [nightly()])
    assert len(slots(engine)) == 2  # of the last 36 hours


def test_a_slot_whose_row_is_deleted_within_the_window_is_enqueued_again(engine: Engine) -> None:
    moment = datetime(2026, 6, 1, 12, tzinfo=UTC)
    look_at(engine, moment, [nightly()])
    before = slots(engine)
    with Session(engine) as session, session.begin():
        session.execute(delete(Job))

    look_at(engine, moment, [nightly()])

    assert slots(engine) == before


# -- one that is still running


def test_a_handler_that_finds_another_one_at_work_comes_back_without_spending_an_attempt(engine: Engine) -> None:
    (source,) = [block.text for block in blocks(PAGE) if block.text.startswith("@queue.handler")]
    queue = brooq.Queue(engine)
    names = {"queue": queue, "brooq": brooq, "Session": Session, "select": select, "func": func}
    exec(source, names)  # noqa: S102 - the page's own code is what is tested
    with Session(engine) as session, session.begin():
        session.add(Job("stock.count"))
        with engine.begin() as other:
            other.execute(select(func.pg_advisory_xact_lock(func.hashtext("stock.count"))))
            (first,) = drain(session, queue)
        advance(session, "1m")
        (second,) = drain(session, queue)

        assert [(first.outcome, first.state), (second.outcome, second.attempt)] == [
            ("preserved", "failed"),
            ("done", 1),
        ]
