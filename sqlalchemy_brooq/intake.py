"""
What every door does with a job: check it for the last time, and write it unless it is there.

Works on a connection and on values read from `Job` objects; knows no session and changes no object. The one place
that touches a driver's connection, and only for its COPY.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql
from sqlalchemy.util import await_only

from sqlalchemy_brooq.errors import BrooqError, InvalidJob
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.model import JOB, Job, Later, checked_topic
from sqlalchemy_brooq.payload import Serializer, encoded
from sqlalchemy_brooq.statements.producing import (
    GIVEN,
    CopyJobs,
    delete_unclaimed,
    find_jobs,
    insert_job,
    insert_jobs,
)

BATCH: Final = 1_000
"""Jobs a statement."""
BATCH_SIZE: Final = 2**20
"""Characters of their payloads, unless a single one has more."""
COPY_FROM: Final = 100
"""Jobs from which on a COPY is quicker than a statement, with the savepoint that it needs."""
_COPYING: Final = frozenset({"psycopg", "psycopg_async"})
"""Drivers whose COPY we know."""
_UNESCAPED: Final = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call] # in SQLAlchemy itself
"""Writes no percent sign twice: a COPY has no parameters that it could be taken for."""
ROUNDS: Final = 50
"""How often the same is tried before a row that comes and goes, or a change that somebody keeps out, is an error."""
_FOUND_BY: Final = ("id", "topic", "idempotency_key")
_ENGINE_COLUMNS: Final = frozenset(JOB.c.keys()) - GIVEN.keys()
_NO_EXTRA: Final[Mapping[str, Any]] = MappingProxyType({})


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


def draft(job: Job, serializer: Serializer | None) -> Draft:
    """
    Read *job* and check what may have changed since it was built.

    Raises:
        InvalidJob: It has no topic, or an id that is none.
        PayloadError: ``jsonb`` can't hold the payload or the meta, or the serializer refuses the payload.
    """
    values = job.__dict__
    job_id = values.get("id")
    if job_id is None:  # deleted, or set to None, as one does to an object that is to become another row
        job_id = values["id"] = new_id()
    elif not isinstance(job_id, UUID):
        raise InvalidJob(f"id {job_id!r} is refused: a UUID")
    moment, meta = values.get("available_at"), values.get("meta")
    delay = moment.delay if isinstance(moment, Later) else None
    extra = _NO_EXTRA
    if given := values.keys() & _ENGINE_COLUMNS:
        extra = {name: values[name] for name in given if values[name] is not None}
    return Draft(
        job_id,
        values.get("topic") or checked_topic(values.get("topic", "")),
        values.get("priority", 0),
        encoded(values.get("payload", {}), serializer),
        None if delay is not None else moment,
        delay,
        values.get("idempotency_key"),
        None if meta is None else encoded(meta, what="the meta"),
        extra,
    )


def write(
    connection: Connection, drafts: Sequence[Draft], *, moments: bool = False, copying: bool = True
) -> dict[UUID, Answer]:
    """
    Write *drafts* and return what became of each, by its own id.

    Keyed ones go in the order of their keys, so that two transactions that write the same keys can't
    wait for each other; within one key the first given is the one that is written.

    Args:
        connection: In the consumer's transaction.
        drafts: Checked jobs, no id twice.
        moments: Whether the answers of created ones tell ``available_at`` and ``created_at``.
        copying: Whether COPY may be used, which tells no moments.
    """
    if len(drafts) == 1:
        return _write(connection, drafts, moments=moments)
    keyed = sorted((one for one in drafts if one.idempotency_key), key=_key)
    ordered = [*(one for one in drafts if not one.idempotency_key), *keyed]
    answers: dict[UUID, Answer] = {}
    if copying and not moments and connection.dialect.driver in _COPYING:
        answers = _copied(connection, [one for one in ordered if _is_plain(one)])
        ordered = [one for one in ordered if one.id not in answers] if answers else ordered
    for batch in _batches(ordered):
        answers.update(_write(connection, batch, moments=moments))
    return answers


def take_back(connection: Connection, ids: Sequence[UUID]) -> None:
    """
    Delete jobs that were just written.

    One that a worker has claimed stays: where each statement commits by itself, that may have happened. All stay
    where something points at one already.
    """
    with _undone_by_errors(connection):
        for start in range(0, len(ids), BATCH):
            connection.execute(delete_unclaimed(), {"id": ids[start : start + BATCH]})


def _batches(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    """
    Yield what goes into one statement: the usual ones together, one that was given more than usual alone.
    """
    batch: list[Draft] = []
    size = 0
    for one in drafts:
        if one.extra:
            continue
        size += len(one.payload)
        if batch and (len(batch) == BATCH or size > BATCH_SIZE):
            yield batch
            batch, size = [], len(one.payload)
        batch.append(one)
    if batch:
        yield batch
    yield from ([one] for one in drafts if one.extra)


def _key(one: Draft) -> tuple[str, str]:
    return one.topic, one.idempotency_key or ""


def _write(connection: Connection, drafts: Sequence[Draft], *, moments: bool) -> dict[UUID, Answer]:
    """
    Insert and look up in turns: a row that stood in the way may be gone when it is looked for.
    """
    answers: dict[UUID, Answer] = {}
    missing = drafts
    for _ in range(ROUNDS):
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
        f"job {missing[0].id} of topic {missing[0].topic} can be neither inserted nor found, {ROUNDS} times over:"
        " either a unique index that isn't this library's refuses it, or a row with its key comes and goes"
    )


def _inserted(connection: Connection, drafts: Sequence[Draft], *, moments: bool) -> Sequence[Sequence[Any]]:
    """
    Insert *drafts* that are not there, and return their ids; with *moments* those as well.
    """
    if len(drafts) > 1:
        payloads = f"[{','.join(one.payload for one in drafts)}]"
        arrays = _arrays(drafts, GIVEN.keys() - {"payload"})
        return connection.execute(insert_jobs(moments=moments), {**arrays, "payloads": payloads}).all()
    values = drafts[0]._asdict()
    extra = values.pop("extra")
    result = connection.execute(insert_job(*sorted(extra), moments=moments), {**values, **extra})
    return result.all() if moments else [(drafts[0].id,)] * result.rowcount


def _arrays(drafts: Sequence[Draft], names: Iterable[str]) -> dict[str, list[Any]]:
    columns = dict(zip(Draft._fields, zip(*drafts, strict=True), strict=True))
    return {name: list(columns[name]) for name in names}


# -- COPY


def _is_plain(one: Draft) -> bool:
    """
    Whether a job can neither meet another one nor wait for a time, so that there is nothing to ask and to add up.
    """
    return not (one.idempotency_key or one.available_at or one.delay or one.extra)


def _copied(connection: Connection, drafts: Sequence[Draft]) -> dict[UUID, Answer]:
    """
    Write *drafts* by COPY, unless they are few or COPY fails; what is not answered is still to be written.

    It fails where an object was given before, since it knows no conflicts, and where a table has row-level security.
    ``INSERT`` then does what can be done, and its errors are SQLAlchemy's.
    """
    from psycopg import Error

    if len(drafts) < COPY_FROM:
        return {}
    try:
        with _undone_by_errors(connection):
            _copy(connection, drafts)
    except (Error, UnicodeError, _Swallowed):
        return {}
    return {one.id: Answer(one.id, True) for one in drafts}


class _Swallowed(Exception):  # noqa: N818 - names what happened
    """
    A trigger of the consumer's kept a row out.
    """


def _undone_by_errors(connection: Connection) -> contextlib.AbstractContextManager[Any]:
    """
    Return a savepoint; where each statement commits by itself there is none, and no need for one.
    """
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        return contextlib.nullcontext()
    return connection.begin_nested()


def _copy(connection: Connection, drafts: Sequence[Draft]) -> None:
    """
    Send *drafts* by the COPY of the driver's own connection, in the transaction that it is in.
    """
    statement = _copy_statement(connection.get_execution_options().get("schema_translate_map"))
    driver: Any = connection.connection.driver_connection
    try:
        if connection.dialect.is_async:
            written = await_only(_asend(driver, statement, _lines(drafts)))
        else:
            written = _send(driver, statement, _lines(drafts))
    except Exception:
        raise
    except BaseException as broken_off:
        # A cancellation, say. As after a statement of SQLAlchemy's, nobody knows what the connection is busy with.
        connection.invalidate(broken_off)
        raise
    if written != len(drafts):
        raise _Swallowed


def _send(driver: Any, statement: str, parts: Iterable[str]) -> int:
    with driver.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for part in parts:
                copy.write(part)
        return int(cursor.rowcount)


async def _asend(driver: Any, statement: str, parts: Iterable[str]) -> int:
    async with driver.cursor() as cursor:
        async with cursor.copy(statement) as copy:
            for part in parts:
                await copy.write(part)
        return int(cursor.rowcount)


def _copy_statement(schemas: Any) -> str:
    translated = {"schema_translate_map": schemas, "render_schema_translate": True} if schemas else {}
    return str(CopyJobs().compile(dialect=_UNESCAPED, **translated))


def _lines(drafts: Sequence[Draft]) -> Iterator[str]:
    """
    Yield *drafts* as COPY reads them, bit by bit: the server is busy with the last one while the next is written.
    """
    for start in range(0, len(drafts), BATCH):
        yield "".join(map(_line, drafts[start : start + BATCH]))


def _line(one: Draft) -> str:
    meta = r"\N" if one.meta is None else _escaped(one.meta)
    return f"{one.id.hex}\t{one.topic}\t{one.priority}\t{_escaped(one.payload)}\t{meta}\n"


def _escaped(document: str) -> str:
    """
    Return a JSON document as COPY reads it; a serializer of the consumer's may put white space between its parts.
    """
    return document.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
