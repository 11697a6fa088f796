"""
A consumer's own models, which point at jobs, and what its tests do all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Engine, ForeignKey, Table, event
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job


class Base(DeclarativeBase):
    pass


batch_job = Table(
    "batch_job",
    Base.metadata,
    Column("batch_id", ForeignKey("batch.id"), primary_key=True),
    Column("job_id", ForeignKey(Job.id), primary_key=True),
)


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey(Job.id))
    job: Mapped[Job | None] = relationship(Job)


class Batch(Base):
    __tablename__ = "batch"

    id: Mapped[int] = mapped_column(primary_key=True)
    jobs: Mapped[list[Job]] = relationship(Job, secondary=batch_job)
    group: Mapped[set[Job]] = relationship(Job, secondary=batch_job, overlaps="jobs")


class Entry(Base):
    __tablename__ = "entry"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))


class Parcel(Base):
    """
    A row that can't be without its job, which knows of it.
    """

    __tablename__ = "parcel"

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[UUID] = mapped_column(ForeignKey(Job.id))
    job: Mapped[LoggedJob] = relationship(lambda: LoggedJob, back_populates="parcels")


class LoggedJob(Job):
    """
    A job with a relationship of its own, which the other side doesn't know of.
    """

    entries: Mapped[list[Entry]] = relationship(Entry)
    parcels: Mapped[list[Parcel]] = relationship(Parcel, back_populates="job", cascade="all, delete-orphan")


@pytest.fixture
def shop(engine: Engine) -> Engine:
    """
    The test's database with the consumer's tables, which point at ours.
    """
    Base.metadata.create_all(engine)
    return engine


def keyed(key: str = "K", payload: Any = None) -> Job:
    return Job("t", payload, idempotency_key=key)


def committed(engine: Engine, key: str = "K") -> UUID:
    with Session(engine) as session, session.begin():
        return brooq.enqueue(session, keyed(key, "theirs")).id


def listen(session: Session, name: str, make: Callable[[], None]) -> None:
    event.listen(session, name, lambda *_: make(), once=True)
