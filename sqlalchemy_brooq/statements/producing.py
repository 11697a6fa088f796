"""
The producer's statements: enqueue, find what was there already, cancel, replay, and wake the workers.

They run in the consumer's transaction, on the consumer's driver. Jobs are handed in as one array a column, so that
any number of them is one statement text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Executable,
    Interval,
    Select,
    SmallInteger,
    Text,
    Uuid,
    cast,
    column,
    delete,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, Insert, insert
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.selectable import TableValuedAlias

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import entering, in_states, leaving
from sqlalchemy_brooq.statements.shapes import MOMENT
from sqlalchemy_brooq.vocabulary import CHANNEL, TERMINAL, Event

#: What a producer says about a job; ``payload`` and ``meta`` are JSON text.
GIVEN: Final[dict[str, Any]] = {
    "id": Uuid(),
    "topic": Text(),
    "priority": SmallInteger(),
    "payload": Text(),
    "available_at": MOMENT,
    "delay": Interval(),
    "idempotency_key": Text(),
    "meta": Text(),
}
_UTC: Final[ColumnElement[str]] = literal_column("'UTC'")
_MOMENTS: Final = (JOB.c.id, JOB.c.available_at, JOB.c.created_at)
COPIED: Final = ("id", "topic", "priority", "payload", "meta")
"""The columns of `CopyJobs`, in order; the others have their defaults."""


def _given(names: Collection[str], *, numbered: bool = False) -> TableValuedAlias:
    """
    Return rows made of the array parameters *names*; if *numbered*, the column ``n`` counts them.

    The casts are for drivers that write parameters into the text: there an array of NULLs has no type.
    """
    arrays = [cast(bind(name, type_=ARRAY(GIVEN[name])), ARRAY(GIVEN[name])) for name in names]
    typed: list[Any] = [column(name, GIVEN[name]) for name in names]
    number = {"with_ordinality": "n"} if numbered else {}
    return func.unnest(*arrays).table_valued(*typed, name="given", **number).render_derived()


def _payloads() -> TableValuedAlias:
    """
    Return rows made of the parameter ``payloads``, a JSON array; the column ``n`` counts them.

    As an array of texts, each quotation mark would be escaped by the driver, one by one.
    """
    documents = func.jsonb_array_elements(cast(bind("payloads", type_=Text), JSONB))
    return documents.table_valued(column("payload", JSONB), with_ordinality="n", name="document").render_derived()


@cache
def insert_job(*extra: str, moments: bool) -> Executable:
    """
    Insert one job as `insert_jobs` does, which takes the server half as long again.

    Without *moments* there is no answer but the number of rows: reading one back takes longer than that.
    Parameters: `GIVEN`, and the values of *extra*.
    """
    given = {name: cast(bind(name, type_=kind), kind) for name, kind in GIVEN.items()}
    written = _written({**given, "payload": cast(given["payload"], JSONB)}, extra)
    statement = _insert(written, select(*written.values()))
    return statement.returning(*_MOMENTS) if moments else statement.execution_options(preserve_rowcount=True)


@cache
def insert_jobs(*, moments: bool) -> Executable:
    """
    Insert the jobs whose id and key are free, and answer with the ids of those, in no promised order.

    A job that somebody else is about to insert is waited for. With no target of its own, ``ON CONFLICT`` answers to
    the key's index and to the primary key: one object given twice is no error. They go in the order in which they are
    given. Parameters: the arrays of `GIVEN`, and instead of ``payload`` the text ``payloads``, a JSON array.

    Args:
        moments: Whether the answer has ``available_at`` and ``created_at`` as well.
    """
    given = _given([name for name in GIVEN if name != "payload"], numbered=True)
    documents = _payloads()
    written = _written({**given.c, "payload": documents.c.payload})
    rows = select(*written.values()).where(given.c.n == documents.c.n).order_by(given.c.n)
    return _insert(written, rows).returning(*(_MOMENTS if moments else _MOMENTS[:1]))


def _written(given: Mapping[str, ColumnElement[Any]], extra: Collection[str] = ()) -> dict[str, ColumnElement[Any]]:
    """
    Return what a job's columns get, of what was *given*; the others have their defaults.
    """
    # Without a zone, since in one that has summer time a day may have 23 hours.
    later = func.timezone(_UTC, func.timezone(_UTC, func.now()) + given["delay"])
    return {
        **{name: given[name] for name in ("id", "topic", "priority", "payload", "idempotency_key")},
        "meta": cast(given["meta"], JSONB),
        "available_at": func.coalesce(given["available_at"], later, func.now()),
        **{name: bind(name, type_=JOB.c[name].type) for name in extra},
    }


def _insert(columns: Iterable[str], rows: Select[Any]) -> Insert:
    """
    Insert *rows* unless they are there.
    """
    return insert(JOB).from_select(list(columns), rows, include_defaults=False).on_conflict_do_nothing()


class CopyJobs(ClauseElement):
    """
    Write jobs of which only `COPIED` was given, as lines in COPY's text format.

    For the driver to run: SQLAlchemy has no COPY. It knows no conflicts: an id that is taken is an error.
    """

    inherit_cache = True


@compiles(CopyJobs)
def _compile_copy_jobs(_element: CopyJobs, compiler: SQLCompiler, **_options: Any) -> str:
    table = compiler.process(JOB, asfrom=True)  # where a schema_translate_map says
    return f"COPY {table} ({', '.join(COPIED)}) FROM STDIN"


@cache
def delete_unclaimed() -> Executable:
    """
    Delete jobs that no worker has claimed yet. Parameter: the array ``id``.
    """
    given = _given(("id",))
    return delete(JOB).where(JOB.c.id.in_(select(given.c.id)), JOB.c.claimed_at.is_(None))


@cache
def find_jobs() -> Executable:
    """
    Find the rows that stood in the way of an insert: pairs of the id that was given and the id that is there.

    A statement of its own: the one that met the conflict can't see what was committed after it began. One lookup a
    row, so that no plan reads the whole table. Parameters: the arrays ``id``, ``topic``, ``idempotency_key``.
    """
    given = _given(("id", "topic", "idempotency_key"))
    by_key = select(JOB.c.id).where(JOB.c.topic == given.c.topic, JOB.c.idempotency_key == given.c.idempotency_key)
    by_id = select(JOB.c.id).where(JOB.c.id == given.c.id)
    there = by_key.union_all(by_id).limit(1).lateral("there")
    return select(given.c.id.label("given"), there.c.id).select_from(given.join(there, true()))


@cache
def cancel_job() -> Executable:
    """
    Call a job off unless it is over, and answer with ``updated_at`` and who held it; no row: over, or not there.

    Parameter: ``job_id``.
    """
    return (
        update(JOB)
        .where(JOB.c.id == bind("job_id", type_=Uuid), leaving(Event.CANCELED))
        .values(state=entering(Event.CANCELED), updated_at=func.now())
        .returning(JOB.c.updated_at, JOB.c.locked_by)
    )


@cache
def find_job() -> Executable:
    """
    Answer with ``updated_at`` and ``state`` of a job. Parameter: ``job_id``.
    """
    return select(JOB.c.updated_at, JOB.c.state).where(JOB.c.id == bind("job_id", type_=Uuid))


@cache
def replay_job() -> Executable:
    """
    Insert a new job made from one that is over, and answer with its topic; no row means that it can't be.

    The payload never leaves the database: decoding it here could change a number.
    Parameters: ``job_id``, and ``id``, ``key`` and ``meta`` of the new one.
    """
    copied = {
        "id": bind("id", type_=Uuid),
        "topic": JOB.c.topic,
        "priority": JOB.c.priority,
        "payload": JOB.c.payload,
        "idempotency_key": bind("key", type_=Text),
        "meta": cast(bind("meta", type_=Text), JSONB),
    }
    original = select(*copied.values()).where(JOB.c.id == bind("job_id", type_=Uuid), in_states(TERMINAL))
    return (
        insert(JOB)
        .from_select(list(copied), original, include_defaults=False)
        .on_conflict_do_nothing()
        .returning(JOB.c.topic)
    )


@cache
def find_replay() -> Executable:
    """
    Answer with the topic and state of a job, and the id of the one that replays it. Parameters: ``job_id``, ``key``.
    """
    replay = JOB.alias("replay")
    same = (replay.c.topic == JOB.c.topic) & (replay.c.idempotency_key == bind("key", type_=Text))
    return (
        select(JOB.c.topic, JOB.c.state, replay.c.id)
        .select_from(JOB.outerjoin(replay, same))
        .where(JOB.c.id == bind("job_id", type_=Uuid))
    )


@cache
def notify() -> Executable:
    """
    Wake the workers when the transaction commits. Parameter: the array ``wakeups``.
    """
    wakeups = cast(bind("wakeups", type_=ARRAY(Text)), ARRAY(Text))
    return select(func.pg_notify(CHANNEL, func.unnest(wakeups)))


@cache
def default_isolation() -> Executable:
    """
    Answer with the isolation level of a statement that is sent with no transaction around it.
    """
    return select(func.current_setting("default_transaction_isolation"))
