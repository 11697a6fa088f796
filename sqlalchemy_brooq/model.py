"""
The table ``job`` as a declarative model: columns, CHECKs and partial indexes.

No behaviour beyond the validation of what a producer may say. The revisions
under ``migrations`` build the same table; a test compares the two catalogs.
"""

from __future__ import annotations

from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from typing import Any, ClassVar, Final, cast
from uuid import UUID

from sqlalchemy import (
    DDL,
    CheckConstraint,
    DateTime,
    Index,
    Integer,
    Interval,
    MetaData,
    SmallInteger,
    Table,
    Text,
    Uuid,
    event,
    func,
    literal,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from sqlalchemy_brooq import payload as payloads
from sqlalchemy_brooq.durations import parse_duration, shown
from sqlalchemy_brooq.errors import InvalidJob
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.protection import Protected, guard
from sqlalchemy_brooq.vocabulary import CLAIMABLE, MAX_NAME, PRIORITIES, TERMINAL, JobState

REVISION: Final = "brooq0001"
"""The revision of ``migrations`` that this model is."""
VERSION_MARK: Final = "sqlalchemy-brooq: "
"""What the table's comment begins with; the revision follows."""

#: Version 7 for rows inserted with plain SQL; as PostgreSQL prints it back, so that a comparison finds no change.
ID_DEFAULT: Final = (
    "(encode(set_bit(set_bit(OVERLAY(uuid_send(gen_random_uuid()) PLACING"
    ' "substring"(int8send((floor((EXTRACT(epoch FROM clock_timestamp()) * (1000)::numeric)))::bigint), 3)'
    " FROM 1 FOR 6), (52)::bigint, 1), (53)::bigint, 1), 'hex'::text))::uuid"
)
STORAGE: Final = {
    "autovacuum_vacuum_scale_factor": "0.02",
    "autovacuum_vacuum_threshold": "100",
    "fillfactor": "70",
}
MAX_DELAY: Final = timedelta(days=36_500)
"""A century: the sum with any clock's time is a timestamp that drivers can read."""
_ALPHABET: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-_")


class Later(FunctionElement[datetime]):
    """
    The moment *delay* after the transaction began: the ``available_at`` of a delayed job, until it is written.

    An expression, so that whatever writes the object (``session.merge()`` of it, say) leaves the sum to the database.
    """

    inherit_cache = True
    type = DateTime(timezone=True)

    def __init__(self, delay: timedelta) -> None:
        super().__init__(literal(delay, Interval()))
        self.delay = delay


@compiles(Later)
def _compile_later(element: Later, compiler: SQLCompiler, **options: Any) -> str:
    return f"now() + {compiler.process(element.clauses, **options)}"


class Base(DeclarativeBase):
    """
    The declarative base of this library's own table.
    """

    metadata = MetaData()
    type_annotation_map: ClassVar[dict[Any, Any]] = {str: Text, datetime: DateTime(timezone=True)}


def _states(states: frozenset[JobState]) -> str:
    """
    Return *states* as SQL literals in the order of their declaration.
    """
    return ", ".join(f"'{state}'" for state in JobState if state in states)


READY_PREDICATE: Final = f"state IN ({_states(CLAIMABLE)})"
# Every job is at some level. Whoever asks for one topic's jobs doesn't say so, and the planner can't take the index of
# all topics for that: where its figures are old it would, and walk over a million jobs of others.
LEVEL_PREDICATE: Final = f"{READY_PREDICATE} AND priority >= {PRIORITIES[0]}"
LEASED_PREDICATE: Final = "state = 'processing' AND locked_until IS NOT NULL"
TERMINAL_PREDICATE: Final = f"state IN ({_states(TERMINAL)})"
KEYED_PREDICATE: Final = "idempotency_key IS NOT NULL"


class Job(Protected, Base):
    """
    One job: a row of ``job``, and what a producer hands in.

    Building one checks it and copies its payload; nothing is sent. ``session.add(job)`` or
    `enqueue` makes it part of the session's transaction.

    Args:
        topic: What kind of work; picks the handler. 1 to 255 of ``a-z 0-9 . - _``, beginning with a letter or digit.
        payload: Any JSON value, for the handler alone; ``None`` is JSON's null. An object of a dataclass, a msgspec
            Struct or a pydantic model is written as JSON, also one inside of a list or a dict.
        idempotency_key: At most one job of this topic has it, for as long as its row lives. ``""`` means none.
        available_at: Not before this moment; a naive ``datetime`` is refused.
        delay: Not before this long after the enqueuing transaction began, by the database's clock.
            A ``timedelta``, or text with a unit such as ``"30s"``.
        priority: Higher goes first; -2 to 2.

    Raises:
        InvalidJob: An argument breaks its rule, or both *available_at* and *delay* are given.
        PayloadError: ``jsonb`` can't hold the payload.
    """

    __tablename__ = "job"
    __allow_unmapped__ = True  # for the attributes below the columns
    __table_args__ = (
        CheckConstraint(f"state IN ({_states(frozenset(JobState))})", name="job_state"),
        CheckConstraint(f"priority BETWEEN {PRIORITIES[0]} AND {PRIORITIES[-1]}", name="job_priority"),
        CheckConstraint(
            "state <> 'processing' OR (locked_by IS NOT NULL AND locked_until IS NOT NULL AND claimed_at IS NOT NULL)",
            name="job_lease",
        ),
        {"comment": VERSION_MARK + REVISION},
    )

    # A flush tells the rows of one INSERT apart by ids of the client's; otherwise it would send one for each job.
    id: Mapped[UUID] = mapped_column(
        Uuid, primary_key=True, default=new_id, insert_sentinel=True, server_default=text(ID_DEFAULT)
    )
    topic: Mapped[str]
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    payload: Mapped[Any] = mapped_column(JSONB(none_as_null=False), nullable=False, server_default=text("'{}'::jsonb"))
    state: Mapped[str] = mapped_column(server_default=text("'pending'::text"))
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    requeues: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    available_at: Mapped[datetime] = mapped_column(server_default=func.now())
    claimed_at: Mapped[datetime | None]
    locked_by: Mapped[str | None]
    locked_until: Mapped[datetime | None]
    last_error: Mapped[str | None]
    result: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    idempotency_key: Mapped[str | None]
    meta: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())

    created: bool | None = None
    """After the flush: False where a job with this topic and key existed already. ``None`` before."""

    def __init__(
        self,
        topic: str,
        payload: Any = payloads.EMPTY,
        *,
        idempotency_key: str | None = None,
        available_at: datetime | None = None,
        delay: timedelta | str | None = None,
        priority: int = 0,
    ) -> None:
        if available_at is not None and delay is not None:
            raise InvalidJob(
                f"available_at={shown(available_at)} and delay={shown(delay)} exclude each other: give one of them"
            )
        values = {
            "id": new_id(),
            "topic": checked_topic(topic),
            "payload": {} if payload is payloads.EMPTY else payloads.copied(payload),
            "priority": checked_priority(priority),
            "idempotency_key": checked_key(idempotency_key),
        }
        if available_at is not None:
            values["available_at"] = checked_moment(available_at)
        if delay is not None:
            values["available_at"] = Later(checked_delay(delay))
        # Past the instrumentation, which has nothing to track before there is a row, and would check all of it again.
        self.__dict__.update(values)


JOB: Final = cast(Table, Job.__table__)

Index("job_ready", Job.priority.desc(), Job.available_at, Job.id, postgresql_where=text(LEVEL_PREDICATE))
Index(
    "job_ready_topic", Job.topic, Job.priority.desc(), Job.available_at, Job.id, postgresql_where=text(READY_PREDICATE)
)
Index("job_idempotency", Job.topic, Job.idempotency_key, unique=True, postgresql_where=text(KEYED_PREDICATE))
Index("job_leased", Job.locked_until, postgresql_where=text(LEASED_PREDICATE))
Index("job_terminal", Job.updated_at, postgresql_where=text(TERMINAL_PREDICATE))

# SQLAlchemy 2.0 has no construct for storage parameters.
event.listen(
    JOB,
    "after_create",
    # Untyped in SQLAlchemy itself.
    DDL(  # type: ignore[no-untyped-call]
        f"ALTER TABLE %(fullname)s SET ({', '.join(f'{name} = {value}' for name, value in STORAGE.items())})"
    ),
)

metadata = Base.metadata


def checked_topic(topic: str) -> str:
    """
    Return *topic* as plain text if it follows the grammar; raise `InvalidJob` otherwise.
    """
    if isinstance(topic, str) and 0 < len(topic) <= MAX_NAME and _ALPHABET.issuperset(topic) and topic[0] not in ".-_":
        return str.__str__(topic)  # a StrEnum is text, and drivers differ on it
    length = f" ({len(topic)} characters)" if isinstance(topic, str) and len(topic) > MAX_NAME else ""
    raise InvalidJob(
        f"topic {shown(topic)}{length} is refused: 1 to {MAX_NAME} characters of a-z 0-9 . - _ ,"
        " beginning with a letter or digit"
    )


def checked_key(key: str | None) -> str | None:
    """
    Return *key*, ``None`` for the empty one, if PostgreSQL can hold it; raise `InvalidJob` otherwise.
    """
    if key is None or key == "":
        return None
    if not isinstance(key, str):
        raise InvalidJob(f"idempotency_key {shown(key)} is refused: text, or None for no key")
    if len(key) > MAX_NAME:
        raise InvalidJob(f"idempotency_key {shown(key)} has {len(key)} characters: at most {MAX_NAME} are taken")
    if "\x00" in key or not _is_utf8(key):
        raise InvalidJob(f"idempotency_key {shown(key)} is refused: no NUL character and no lone surrogate")
    return str.__str__(key)


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_priority(priority: int) -> int:
    """
    Return *priority* if it is one of the five; raise `InvalidJob` otherwise.
    """
    if isinstance(priority, bool) or not isinstance(priority, int) or priority not in PRIORITIES:
        raise InvalidJob(
            f"priority {shown(priority)} is refused: a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}"
        )
    return int(priority)


def checked_moment(moment: datetime) -> datetime:
    """
    Return *moment* in UTC if it names its time zone; raise `InvalidJob` otherwise.
    """
    if not isinstance(moment, datetime):
        raise InvalidJob(f"available_at {shown(moment)} is refused: a datetime with a time zone")
    try:
        is_naive = moment.utcoffset() is None
    except Exception as error:  # the time zone's own code
        raise InvalidJob(
            f"available_at {shown(moment)} is refused: its time zone tells no offset but raised {type(error).__name__}"
        ) from error
    if is_naive:
        raise InvalidJob(f"available_at {shown(moment)} is naive: give it a time zone, such as datetime.now(UTC)")
    # A year less at either end: PostgreSQL shows it in the session's zone, and drivers read the years 1 to 9999 only.
    if MINYEAR < moment.year < MAXYEAR:
        return moment.astimezone(UTC)
    raise InvalidJob(f"available_at {shown(moment)} is refused: the years {MINYEAR + 1} to {MAXYEAR - 1} are taken")


def checked_delay(delay: timedelta | str) -> timedelta:
    """
    Return *delay* as a ``timedelta``; raise `InvalidJob` if it is negative, or beyond what a timestamp can take.
    """
    try:
        duration = parse_duration(delay)
    except ValueError as error:
        raise InvalidJob(f"delay is refused: {error}") from error
    if duration > MAX_DELAY:
        raise InvalidJob(f"delay {shown(delay)} is refused: at most {MAX_DELAY.days} days are taken")
    return duration


guard(
    Job,
    {
        "topic": checked_topic,
        "priority": checked_priority,
        "payload": payloads.copied,
        "idempotency_key": checked_key,
        "available_at": lambda moment: (
            moment if moment is None or isinstance(moment, Later) else checked_moment(moment)
        ),
    },
)
