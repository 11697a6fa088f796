"""
A program as a consumer writes it, with public names only: from enqueue to ``done``.

The release check runs it beside what it has built, and nothing else of ours; the tests run it with the checkout.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from uuid import UUID

from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlalchemy_brooq as brooq

engine = create_engine(os.environ["DATABASE_URL"])
queue = brooq.Queue(engine, brooq.Config(workers=2, poll_interval="200ms", retention_ttl=0))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    is_posted: Mapped[bool] = mapped_column(default=False)


@queue.handler("order.confirm", keep_result=True)
def confirm(claim: brooq.Claim) -> str:
    if claim.attempt == 1:
        raise brooq.RetryLater(timedelta(0))
    return f"order {claim.payload['order']} is confirmed"


@queue.handler("order.post", transactional=True)
def post(claim: brooq.Claim, session: Session) -> None:
    session.get_one(Order, claim.payload["order"]).is_posted = True


def main() -> None:
    result = brooq.migrations.migrate(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        confirming, posting = brooq.Job("order.confirm", {"order": 7}), brooq.Job("order.post", {"order": 7})
        session.add_all([Order(number=7), confirming, posting])
        ids = [confirming.id, posting.id]

    with queue:
        jobs = finished(ids)
    with Session(engine) as session:
        is_posted = session.get_one(Order, 7).is_posted

    print(f"version {version('sqlalchemy-brooq')} in {Path(brooq.__file__).parent}: {result.message}")
    for job in jobs:
        print(f"{job.topic} {job.state} after {job.attempts} attempts: {job.result}")
    expected = [("order.confirm", 2, "order 7 is confirmed"), ("order.post", 1, None)]
    if [(job.topic, job.attempts, job.result) for job in jobs] != expected or not is_posted or not plugins():
        sys.exit("that is not what was to happen")


def finished(ids: list[UUID]) -> list[brooq.Job]:
    """
    Wait until these jobs are done, and return them.
    """
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with Session(engine) as session:
            jobs = session.scalars(select(brooq.Job).where(brooq.Job.id.in_(ids)).order_by(brooq.Job.topic)).all()
        if all(job.state == brooq.JobState.DONE for job in jobs):
            return list(jobs)
        time.sleep(0.05)
    sys.exit("the jobs were not done within 30 seconds")


def plugins() -> bool:
    """
    Whether pytest and alembic would find what is there for them.
    """
    groups = ("pytest11", "alembic.plugins")
    found = [point for group in groups for point in entry_points(group=group) if "brooq" in point.name]
    return len(found) == len(groups) and all(find_spec(point.module) for point in found)


if __name__ == "__main__":
    main()
