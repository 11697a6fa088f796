"""
The life of a job as far as its row knows it: what happened when, and where its time went.

Owns what may be concluded from a row. It tells of the latest attempt alone; what came before is in its counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy_brooq.browse import JobView
from sqlalchemy_brooq.durations import counted
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, TERMINAL, JobState
from sqlalchemy_brooq.web import shown

WIDTH: Final = 1000
"""What the whole life is wide."""
NARROWEST: Final = 8
"""What a part of it is wide at least, however short it was."""
_NOTHING: Final = timedelta(0)
_ENDS: Final = {
    JobState.DONE: "Done",
    JobState.DEAD: "Dead: no attempts left",
    JobState.CANCELED: "Canceled",
}


@dataclass(frozen=True, slots=True)
class Step:
    """
    Something that happened, or is to come.
    """

    kind: str
    """What its mark looks like: a state, or ``enqueued``, ``ready``, ``claimed``."""
    title: str
    at: datetime | None = None
    note: str = ""
    is_ahead: bool = False
    is_alarm: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """
    A stretch of a job's time.
    """

    kind: str
    name: str
    duration: timedelta
    x: int = 0
    width: int = 0


def steps(job: JobView) -> list[Step]:
    """
    Return what happened, in its order.
    """
    found = [Step("enqueued", "Enqueued", job.created_at)]
    if job.claimed_at is None:
        found += _before_any_attempt(job)
    else:
        found += _attempts(job)
    if job.state in TERMINAL:
        found.append(Step(job.state.value, _ENDS[job.state], job.updated_at, _ran(job)))
    return found


def _before_any_attempt(job: JobView) -> Iterator[Step]:
    delayed = job.available_at - job.created_at
    if job.state in CLAIMABLE and not job.is_ready:
        left = shown.brief(job.available_at - job.asked_at)
        yield Step("ready", "Ready", job.available_at, f"in {left}; no worker may claim it before", is_ahead=True)
    elif job.state in CLAIMABLE:
        yield Step("ready", "Ready", job.available_at, f"waits for a worker since {shown.brief(job.waited)}")
    elif delayed > _NOTHING and job.available_at <= job.updated_at:
        yield Step("ready", "Ready", job.available_at)


def _attempts(job: JobView) -> Iterator[Step]:
    """
    Yield what the counts, the lease and the latest claim tell.
    """
    earlier = job.attempts - 1
    if earlier > 0:
        yield Step("failed", counted(earlier, "earlier attempt"), None, "the row keeps the moments of the latest alone")
    if job.requeues:
        yield Step(
            "failed", f"Lease ran out {_times(job.requeues)}", None, "counted apart from failures", is_alarm=True
        )
    waited = job.waited if job.state not in CLAIMABLE else None
    if waited is not None:
        yield Step("ready", "Ready", job.available_at, f"waited {shown.brief(waited)} for a worker")
    if job.claimed_at is not None:
        by = f"by {job.lease.worker}" if job.lease else ""
        yield Step("claimed", f"Claimed for attempt {max(job.attempts, 1)}", job.claimed_at, by)
    if job.state is JobState.FAILED:
        yield Step("failed", "Attempt failed", job.updated_at, _ran(job))
    if job.state in HELD:
        yield from _running(job)
    if job.state in CLAIMABLE:
        yield _next_attempt(job)


def _running(job: JobView) -> Iterator[Step]:
    yield Step("processing", "Running", None, f"for {shown.brief(job.ran)} so far")
    if job.lease is None:
        return
    left = job.lease.until - job.asked_at
    if left > _NOTHING:
        note = f"in {shown.brief(left)}, unless its worker renews it"
        yield Step("lease", "Lease runs out", job.lease.until, note, is_ahead=True)
    else:
        note = f"{shown.brief(-left)} ago; the reaper of any worker returns the job"
        yield Step("lease", "Lease ran out", job.lease.until, note, is_alarm=True)


def _next_attempt(job: JobView) -> Step:
    if job.is_ready:
        note = f"waits for a worker since {shown.brief(job.waited)}"
        return Step("ready", "Ready again", job.available_at, note)
    return Step(
        "ready", "Next attempt", job.available_at, f"in {shown.brief(job.available_at - job.asked_at)}", is_ahead=True
    )


def parts(job: JobView) -> list[Part]:
    """
    Return where its time went, as a bar; nothing of length zero is in it.
    """
    return _laid_out([one for one in _stretches(job) if one.duration > _NOTHING])


def _stretches(job: JobView) -> Iterator[Part]:
    end = job.updated_at if job.state in TERMINAL else job.asked_at
    if job.claimed_at is None:
        ready = min(max(job.available_at, job.created_at), end)
        yield Part("scheduled", "scheduled", ready - job.created_at)
        yield Part("waited", "ready", end - ready)
        return
    if job.state not in CLAIMABLE and job.waited is not None:
        before = "scheduled" if job.attempts <= 1 and not job.requeues else "earlier attempts"
        yield Part("scheduled", before, job.available_at - job.created_at)
        yield Part("waited", "waited", job.waited)
    else:
        yield Part("scheduled", "before the latest attempt", job.claimed_at - job.created_at)
    if job.ran is not None:
        yield Part("ran", "running" if job.state in HELD else "ran", job.ran)
    if job.state in CLAIMABLE:
        yield Part("waited", "since then", end - job.claimed_at - (job.ran or _NOTHING))


def _laid_out(found: Sequence[Part]) -> list[Part]:
    """
    Give each part its place: in proportion, but never too narrow to be seen.
    """
    total = sum((one.duration for one in found), _NOTHING)
    room = WIDTH - NARROWEST * len(found)
    laid, x = [], 0
    for one in found:
        width = NARROWEST + int(room * (one.duration / total))
        laid.append(Part(one.kind, one.name, one.duration, x, width))
        x += width
    return laid


def _ran(job: JobView) -> str:
    return "" if job.ran is None else f"after running for {shown.brief(job.ran)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"
