"""
What every door does with a job: check it for the last time, and write it unless it is there.

Works on a connection and on values read from `Job` objects; knows no session and changes no object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, CursorResult, Dialect

from sqlalchemy_brooq.errors import BrooqError, InvalidJob
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.model import JOB, Job, Later, checked_topic
from sqlalchemy_brooq.payload import Serializer, encoded
from sqlalchemy_brooq.statements.producing import GIVEN, find_jobs, insert_job, insert_jobs

SLICE: Final = 1_000
"""Jobs a statement."""
_ROUNDS: Final = 50
"""How often a job is looked for whose key is taken and given back all the time."""
_FOUND_BY: Final = ("id", "topic", "idempotency_key")
_ENGINE_COLUMNS: Final = frozenset(JOB.c.keys()) - GIVEN.keys()


class Draft(NamedTuple):
    """
    What is to be written of a job: `GIVEN`, and whatever else its object was given.
    """

    id: UUID
    topic: str
    priority: int
    payload: str
    available_at: datetime | None
    delay: timedelta | None
    idempotency_key: str | None
    meta: str | None
    extra: Mapping[str, Any]


class Answer(NamedTuple):
    """
    What became of a draft: the row that is there now, and whether it was written by us.
    """

    id: UUID
    created: bool
    available_at: datetime | None = None
    created_at: datetime | None = None


def serializer_of(dialect: Dialect) -> Serializer | None:
    """
    Return the engine's ``json_serializer``; SQLAlchemy's own JSON types read it from the same place.
    """
    serializer: Serializer | None = getattr(dialect, "_json_serializer", None)
    return serializer


def draft(job: Job, serializer: Serializer | None) -> Draft:
    """
    Read *job* and check what may have changed since it was built.

    Raises:
        InvalidJob: It has no topic, or an id that is none.
        PayloadError: ``jsonb`` can't hold the payload, or the serializer refuses it.
    """
    values = job.__dict__
    job_id = values.get("id") or values.setdefault("id", new_id())
    if not isinstance(job_id, UUID):
        raise InvalidJob(f"id {job_id!r} is refused: a UUID")
    moment, meta = values.get("available_at"), values.get("meta")
    delay = moment.delay if isinstance(moment, Later) else None
    extra = {name: values[name] for name in values.keys() & _ENGINE_COLUMNS if values[name] is not None}
    return Draft(
        job_id,
        values.get("topic") or checked_topic(values.get("topic", "")),
        values.get("priority", 0),
        encoded(values.get("payload", {}), serializer),
        None if delay is not None else moment,
        delay,
        values.get("idempotency_key"),
        None if meta is None else encoded(meta),
        extra,
    )


def write(connection: Connection, drafts: Sequence[Draft], *, moments: bool = False) -> dict[UUID, Answer]:
    """
    Write *drafts* and return what became of each, by its own id.

    Keyed ones go in the order of their keys, so that two transactions that write the same keys can't
    wait for each other; within one key the first given is the one that is written.

    Args:
        connection: In the consumer's transaction.
        drafts: Checked jobs, no id twice.
        moments: Whether the answers of created ones tell ``available_at`` and ``created_at``.
    """
    keyed = sorted((one for one in drafts if one.idempotency_key), key=_key)
    ordered = [*(one for one in drafts if not one.idempotency_key), *keyed]
    answers: dict[UUID, Answer] = {}
    for batch in _batches(ordered):
        answers.update(_write(connection, batch, moments=moments))
    return answers


def _batches(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """
    Yield what goes into one statement: the usual ones together, one that was given more than usual alone.
    """
    usual = [one for one in drafts if not one.extra]
    for start in range(0, len(usual), SLICE):
        yield usual[start : start + SLICE]
    if len(usual) < len(drafts):
        yield from ([one] for one in drafts if one.extra)


def _key(one: Draft) -> tuple[str, str]:
    return one.topic, one.idempotency_key or ""


def _write(connection: Connection, drafts: Sequence[Draft], *, moments: bool) -> dict[UUID, Answer]:
    """
    Insert and look up in turns: a row that stood in the way may be gone when it is looked for.
    """
    answers: dict[UUID, Answer] = {}
    missing = drafts
    for _ in range(_ROUNDS):
        for row in _inserted(connection, missing, moments=moments):
            answers[row[0]] = Answer(row[0], True, *row[1:])
        missing = [one for one in missing if one.id not in answers]
        if not missing:
            return answers
        for given, there in connection.execute(find_jobs(), _arrays(missing, _FOUND_BY)):
            answers[given] = Answer(there, False)
        missing = [one for one in missing if one.id not in answers]
        if not missing:
            return answers
    raise BrooqError(
        f"job {missing[0].id} of topic {missing[0].topic} can be neither inserted nor found, {_ROUNDS} times over:"
        " either a unique index that isn't this library's refuses it, or a row with its key comes and goes"
    )


def _inserted(connection: Connection, drafts: Sequence[Draft], *, moments: bool) -> CursorResult[Any]:
    if len(drafts) > 1:
        return connection.execute(insert_jobs(moments=moments), _arrays(drafts, GIVEN))
    values = drafts[0]._asdict()
    extra = values.pop("extra")
    return connection.execute(insert_job(*sorted(extra), moments=moments), {**values, **extra})


def _arrays(drafts: Sequence[Draft], names: Iterable[str]) -> dict[str, list[Any]]:
    columns = dict(zip(Draft._fields, zip(*drafts, strict=True), strict=True))
    return {name: list(columns[name]) for name in names}
