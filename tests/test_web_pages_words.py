"""
What the pages are made of, without a browser: words, scales, the life of a job, and the form that looks for jobs.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine
from werkzeug.datastructures import MultiDict

from sqlalchemy_brooq.browse import JobView
from sqlalchemy_brooq.vocabulary import JobState, Lease
from sqlalchemy_brooq.web import Role, charts, create_app, life, shown
from sqlalchemy_brooq.web.charts import Counts, Period
from sqlalchemy_brooq.web.forms import TRAIL, JobForm, Trail
from tests.browsers import TOKEN

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
JOB_ID = UUID("0197a5a0-0000-7000-8000-0000c01dcafe")


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def view(state: JobState, **facts: Any) -> JobView:
    plain: dict[str, Any] = {
        "id": JOB_ID,
        "topic": "t",
        "priority": 0,
        "attempts": 0,
        "requeues": 0,
        "available_at": NOON,
        "claimed_at": None,
        "lease": None,
        "created_at": NOON,
        "updated_at": NOON,
        "asked_at": NOON + seconds(60),
    }
    return JobView(state=state, **{**plain, **facts})


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (None, "\N{EN DASH}"),
        (0, "0s"),
        (0.0004, "1ms"),
        (0.25, "250ms"),
        (1.25, "1.25s"),
        (9.5, "9.5s"),
        (59, "59s"),
        (61, "1m 1s"),
        (3600, "1h"),
        (3725, "1h 2m"),
        (timedelta(days=3, hours=4, minutes=5), "3d 4h"),
        (-5, "0s"),
    ],
)
def test_a_duration_is_brief(duration: Any, text: str) -> None:
    assert shown.brief(duration) == text


@given(st.text())
def test_no_text_brings_markup_nor_what_cannot_be_seen(value: str) -> None:
    escaped = str(shown.text(value))

    assert re.fullmatch(r'(?:[^<>"\']|<span class="unseen">U\+[0-9A-F]{4,6}</span>)*', escaped, re.DOTALL)
    assert not any(shown._is_unseen(character) for character in escaped)


def test_what_turns_the_direction_of_text_is_named_instead() -> None:
    assert shown.text("a\u202eb") == 'a<span class="unseen">U+202E</span>b'


@pytest.mark.parametrize(("part", "text"), [(None, "–"), (0, "0%"), (0.0004, "<0.1%"), (0.073, "7.3%"), (1.0, "100%")])  # noqa: RUF001 - what is shown
def test_a_share_that_is_not_zero_never_looks_like_it(part: float | None, text: str) -> None:
    assert shown.share(part) == text


@given(st.integers(0, 10**15))
def test_a_scale_ends_at_a_round_number_not_far_above_the_most(most: int) -> None:
    top = charts.nice(most)

    assert most <= top <= max(2 * most, 1)
    assert re.fullmatch("[124680]0*", str(top)) or top == 10 ** (len(str(top)) - 1)


@given(st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=1, max_size=8))
def test_each_bucket_with_a_dead_job_has_a_bar_that_is_seen(counts: list[tuple[int, int, int]]) -> None:
    done, dead, canceled = (list(each) for each in zip(*counts, strict=True))
    period = Period("Last hour", timedelta(hours=1), len(counts))
    moments = [NOON + period.length / len(counts) * n for n in range(len(counts))]

    chart = charts.chart(period, moments, Counts(done, dead, canceled))

    heights = [
        int(bottom) - int(ceiling)
        for bottom, ceiling in re.findall(r"M[\d.]+ (\d+)V(\d+)h", chart.died.paths.get("dead", ""))
    ]
    assert len(heights) == sum(map(bool, dead))
    assert all(3 <= height <= charts.HEIGHT for height in heights)
    assert f"{sum(dead):,} dead" in chart.summary


def test_a_chart_says_its_peak_and_its_times() -> None:
    period = Period("Last hour", timedelta(hours=1), 4)
    moments = [NOON + timedelta(minutes=15 * n) for n in range(4)]

    chart = charts.chart(period, moments, Counts([1, 30, 0, 2], [0, 0, 1, 0], [0, 0, 0, 0]))

    assert chart.summary == "Last hour: 33 done, 1 dead, 0 canceled; the most in 15m: 30, at 12:15 UTC"
    assert chart.ticks == ["12:00", "12:15", "12:30", "12:45", "now"]
    assert chart.ended.top == 40
    assert [bucket.label for bucket in chart.buckets[:2]] == ["12:00 to 12:15", "12:15 to 12:30"]


LIVES: list[tuple[JobView, list[str]]] = [
    (view(JobState.PENDING), ["Enqueued", "Ready"]),
    (view(JobState.PENDING, available_at=NOON + seconds(90)), ["Enqueued", "Ready"]),
    (view(JobState.CANCELED), ["Enqueued", "Canceled"]),
    (
        view(JobState.PROCESSING, attempts=1, claimed_at=NOON + seconds(5), lease=Lease("w", NOON + seconds(65))),
        ["Enqueued", "Ready", "Claimed for attempt 1", "Running", "Lease runs out"],
    ),
    (
        view(JobState.PROCESSING, attempts=1, claimed_at=NOON + seconds(5), lease=Lease("w", NOON + seconds(55))),
        ["Enqueued", "Ready", "Claimed for attempt 1", "Running", "Lease ran out"],
    ),
    (
        view(JobState.FAILED, attempts=2, claimed_at=NOON + seconds(5), updated_at=NOON + seconds(6)),
        ["Enqueued", "1 earlier attempt", "Claimed for attempt 2", "Attempt failed", "Ready again"],
    ),
    (
        view(JobState.PENDING, attempts=1, requeues=1, claimed_at=NOON, available_at=NOON + seconds(50)),
        ["Enqueued", "Lease ran out once", "Claimed for attempt 1", "Ready again"],
    ),
    (
        view(
            JobState.DEAD,
            attempts=3,
            claimed_at=NOON + seconds(20),
            available_at=NOON + seconds(10),
            lease=Lease("w", NOON + seconds(80)),
            updated_at=NOON + seconds(30),
        ),
        ["Enqueued", "2 earlier attempts", "Ready", "Claimed for attempt 3", "Dead: no attempts left"],
    ),
]


@pytest.mark.parametrize(("job", "titles"), LIVES)
def test_a_life_is_told_as_far_as_the_row_knows_it(job: JobView, titles: list[str]) -> None:
    assert [step.title for step in life.steps(job)] == titles


@pytest.mark.parametrize("job", [job for job, _ in LIVES])
def test_the_parts_of_a_life_fill_it_and_none_is_too_narrow_to_be_seen(job: JobView) -> None:
    parts = life.parts(job)

    end = job.updated_at if job.state in ("canceled", "dead") else job.asked_at
    assert sum((part.duration for part in parts), timedelta()) == end - job.created_at
    assert all(part.width >= life.NARROWEST for part in parts)
    assert sum(part.width for part in parts) <= life.WIDTH


@given(st.integers(1, 40))
def test_a_trail_leads_back_as_far_as_it_is_remembered_and_never_to_a_wrong_page(pages: int) -> None:
    trail = Trail()
    for number in range(1, pages):
        trail = Trail.of({name: str(value) for name, value in trail.on(f"cursor{number}").arguments.items()})
    assert trail.number == pages
    steps = 0
    while (back := trail.back) is not None:
        assert back.number == trail.number - 1
        assert back.after == (f"cursor{back.number - 1}" if back.number > 1 else None)
        trail, steps = back, steps + 1

    assert steps == min(pages - 1, TRAIL if pages - 1 <= TRAIL else TRAIL - 1)


def test_a_form_repeats_what_was_filled_in_and_nothing_else() -> None:
    given = MultiDict(
        [("topic", " a "), ("key", ""), ("state", "done"), ("state", "dead"), ("clock", "ended"), ("x", "y")]
    )

    form = JobForm.of(given)

    assert form.arguments == {"topic": "a", "state": ["done", "dead"]}
    assert not form.cancelable
    assert form.replayable == {"done", "dead"}


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("state=gone", "gone is no state"),
        ("within=7", "has a number with no unit"),
        ("since=yesterday", "yesterday is no moment"),
        ("path=a", "which value is looked for"),
        ("value=1", "needs the path"),
        ("clock=eaten&within=1h", "eaten is no clock"),
        ("after=nonsense", "this is no cursor"),
        ("state=pending&clock=ended&within=1h", "pending is not"),
        ("within=1h&since=2026-01-01T00:00", "give one of the two"),
        ("since=0001-01-01T00:00%2B14:00", "is no moment"),
        ("topic=%00", "NUL"),
    ],
)
def test_a_question_that_cannot_be_asked_is_answered_with_what_is_wrong(
    engine: Engine, question: str, words: str
) -> None:
    client = create_app(engine, anonymous=Role.READ).test_client()

    answer = client.get(f"/jobs?{question}")

    assert answer.status_code == 422
    assert words in answer.text
    assert 'id="f-find"' in answer.text


@pytest.mark.parametrize("path", ["/parts/nothing", "/jobs/0197a5a0-0000-7000-8000-00000000fa11", "/jobs/1"])
def test_what_is_not_there_is_a_page_that_says_so(engine: Engine, path: str) -> None:
    answer = create_app(engine, anonymous=Role.READ).test_client().get(path)

    assert answer.status_code == 404
    assert "<h1>Not Found</h1>" in answer.text


@pytest.mark.parametrize("target", ["//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nb", "jobs"])
def test_a_login_leads_nowhere_else(engine: Engine, target: str) -> None:
    client = create_app(engine, token=TOKEN).test_client()
    token = re.search(r'name="csrf_token" value="([^"]+)"', client.get("/login").text)
    assert token is not None

    answer = client.post("/login", data={"csrf_token": token[1], "token": TOKEN, "next": target})

    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
