"""
The JSON API: what there is at which address.

Owns the shape of its answers, which `openapi` describes. What a program asks for, `asking` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, TypeVar
from uuid import UUID

from flask import Blueprint, Response, request
from werkzeug.exceptions import BadRequest, Conflict, UnsupportedMediaType

from sqlalchemy_brooq.browse import TooSlow, iso
from sqlalchemy_brooq.documents import to_json
from sqlalchemy_brooq.durations import format_duration
from sqlalchemy_brooq.errors import JobNotFound
from sqlalchemy_brooq.overview import TopicOverview
from sqlalchemy_brooq.search import InvalidQuery, JobQuery
from sqlalchemy_brooq.statements.searching import Since
from sqlalchemy_brooq.web import asking, current
from sqlalchemy_brooq.web.asking import (
    BUCKETS,
    FILTER,
    LONGEST_PAGE,
    MOST_BUCKETS,
    PAGE,
    PAYLOAD,
    duration,
    number,
    single,
)
from sqlalchemy_brooq.web.openapi import document
from sqlalchemy_brooq.web.reading import MOST, Answer, Changes

T = TypeVar("T")

PERIOD: Final = timedelta(hours=1)

api = Blueprint("api", __name__, url_prefix="/api")

Change = Callable[..., Changes]


@api.get("/openapi.json")
def show_document() -> Response:
    """
    Describe all of this.
    """
    _arguments()
    return _answered(document(request.root_path))


@api.get("/topics")
def list_topics() -> Response:
    """
    Tell how each topic does.
    """
    _arguments()
    return _answered({"topics": [_topic(one) for one in _known(current.reading().topics())]})


@api.get("/throughput")
def show_throughput() -> Response:
    """
    Tell what ended when.
    """
    given = _arguments("period", "buckets", "topic")
    period = single(given, "period", duration)
    period = PERIOD if period is None else period
    buckets = single(given, "buckets", number(1, MOST_BUCKETS)) or BUCKETS
    if period < timedelta(milliseconds=1) * buckets:
        raise InvalidQuery(
            f"period: {format_duration(period)} is too short for {buckets} buckets, of a millisecond each"
        )
    query = asking.query_of({"topic": given.get("topic", [])})
    if len(query.topics) > 1:
        raise InvalidQuery("topic: one is taken here, or none for all")
    found = _known(current.reading().throughput(period, buckets, query.topics[0] if query.topics else None))
    return _answered(
        {
            "width_seconds": found.width.total_seconds(),
            "moments": [iso(moment) for moment in found.moments],
            "topics": {topic: asdict(series) for topic, series in found.topics.items()},
        }
    )


@api.get("/holders")
def list_holders() -> Response:
    """
    Tell who holds leases.
    """
    _arguments()
    holders = _known(current.reading().holders())
    moments = ("oldest", "until", "asked_at")
    return _answered(
        {"holders": [asdict(one) | {name: iso(getattr(one, name)) for name in moments} for one in holders]}
    )


@api.get("/retention")
def show_retention() -> Response:
    """
    Tell what retention is about.
    """
    _arguments()
    found = _known(current.reading().retention())
    return _answered(
        {
            "ttl_seconds": None
            if found.ttls is None
            else {end: ttl.total_seconds() for end, ttl in found.ttls.items()},
            "rows": found.rows,
            "oldest_end": iso(found.oldest_end),
            "due": found.due,
            "held_by": [asdict(one) for one in found.held_by],
        }
    )


@api.get("/jobs")
def list_jobs() -> Response:
    """
    List jobs, page by page.
    """
    given = _arguments(*FILTER, PAYLOAD, "include", "limit", "after")
    limit = single(given, "limit", number(1, LONGEST_PAGE)) or PAGE
    after = single(given, "after", str)
    page = _known(current.reading().jobs(asking.query_of(given), after, limit, private=asking.included(given)))
    return _answered(
        {"jobs": [job.facts() for job in page.jobs], "next": page.next, "ended_since": _since(page.period)}
    )


@api.get("/jobs/<uuid:job_id>")
def show_job(job_id: UUID) -> Response:
    """
    Tell all about one job.
    """
    _arguments()
    return _answered(current.reading().job(job_id, pretty=False).all_facts())


@api.post("/jobs/cancel")
def cancel_jobs() -> Response:
    """
    Cancel jobs.
    """
    return _changed(current.reading().cancel, current.reading().cancelable)


@api.post("/jobs/replay")
def replay_jobs() -> Response:
    """
    Replay jobs that are over.
    """
    return _changed(current.reading().replay, current.reading().replayable)


@api.post("/jobs/<uuid:job_id>/cancel")
def cancel_job(job_id: UUID) -> Response:
    """
    Cancel one job.
    """
    _arguments()
    return _changed_one(job_id, current.reading().cancel([job_id], who=current.who()))


@api.post("/jobs/<uuid:job_id>/replay")
def replay_job(job_id: UUID) -> Response:
    """
    Replay one job that is over.
    """
    _arguments()
    return _changed_one(job_id, current.reading().replay([job_id], who=current.who()))


def _changed(change: Change, judged: Callable[[JobQuery], JobQuery]) -> Response:
    """
    Do to jobs what the body orders, or count those that it would be done to.
    """
    _arguments()
    order = asking.order_of(_body())
    if not isinstance(order.which, JobQuery):
        return _answered(_counts(change(order.which, who=current.who())))
    if order.expected is not None:
        return _answered(_counts(change(order.which, who=current.who(), expected=order.expected)))
    query = judged(order.which)
    counts = _known(current.reading().count(query))
    total = sum(counts.values())
    return _answered(
        {
            "expected": min(total, MOST),
            "is_more": total > MOST,
            "states": counts,
            "ended_since": _since(query.period),
        }
    )


def _changed_one(job_id: UUID, changes: Changes) -> Response:
    """
    Tell what became of the one job that was to be changed.
    """
    counts = changes.counts
    if counts.missing:
        raise JobNotFound(job_id)
    if counts.unfit:
        raise Conflict("only a job that is done, dead or canceled can be replayed")
    if counts.held:
        raise Conflict("a transaction of somebody else's holds this job: try again when it is over")
    return _answered(_counts(changes))


def _body() -> object:
    if request.mimetype != "application/json":
        raise UnsupportedMediaType("the body is to be JSON, sent as application/json")
    try:
        return asking.decoded(request.get_data())
    except ValueError as error:
        raise BadRequest(f"the body is no JSON: {error}") from None


def _arguments(*names: str) -> dict[str, list[str]]:
    return asking.arguments(request.query_string, names)


def _known(answer: Answer[T]) -> T:
    """
    Return what was found; raise `TooSlow` where it isn't known.
    """
    if answer.value is None:
        raise TooSlow(answer.reason or "not known")
    return answer.value


def _topic(one: TopicOverview) -> dict[str, Any]:
    return {
        **asdict(one),
        "failure_share_last_hour": one.failure_share_last_hour,
        "failure_share_last_day": one.failure_share_last_day,
    }


def _counts(changes: Changes) -> dict[str, Any]:
    counts = changes.counts
    replays = {str(old): {"id": str(new.id), "created": new.created} for old, new in changes.replays.items()}
    return {
        "changed": counts.changed,
        "already": counts.already,
        "unfit": counts.unfit,
        "held": counts.held,
        "missing": list(map(str, counts.missing)),
        "replays": replays,
    }


def _since(when: Since | None) -> str | None:
    return format_duration(when) if isinstance(when, timedelta) else iso(when)


def _answered(value: object, code: int = HTTPStatus.OK) -> Response:
    return Response(to_json(value) + "\n", code, mimetype="application/json")
