"""
Takes an order, and enqueues its confirmation in the same transaction: there is never one without the other.

    export DATABASE_URL=postgresql+psycopg://shop@localhost/shop
    brooq-worker migrate
    python plain.py                 # takes an order, and works until it is confirmed
    brooq-worker run plain:queue    # or a worker in a process of its own
"""

from __future__ import annotations

import os
import sys
import threading

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlalchemy_brooq as brooq


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    is_confirmed: Mapped[bool] = mapped_column(default=False)


engine = create_engine(os.environ["DATABASE_URL"])
queue = brooq.Queue(engine)
settled = threading.Event()


# What it writes commits together with the job's outcome: exactly once.
@queue.handler("order.confirm", transactional=True)
def confirm(claim: brooq.Claim, session: Session) -> None:
    order = session.get_one(Order, claim.payload["order"])
    order.is_confirmed = True


# Of a mail, nobody can promise more than once at least: a handler may run again.
@queue.handler("mail.send")
def send(claim: brooq.Claim) -> None:
    print(f"to {claim.payload['to']}: thank you", flush=True)
    settled.set()


def take_order(customer: str) -> int:
    with queue.begin() as session:
        order = Order(customer=customer)
        session.add(order)
        session.flush()  # now the order has an id
        session.add(brooq.Job("order.confirm", {"order": order.id}, idempotency_key=f"order-{order.id}"))
        session.add(brooq.Job("mail.send", {"to": customer}))
        return order.id


def main() -> None:
    Base.metadata.create_all(engine)
    with queue:  # starts the worker of this process, and closes it at the end
        print(f"order {take_order('Ada')}")
        if not settled.wait(10):
            sys.exit("no mail was sent")
    engine.dispose()


if __name__ == "__main__":
    main()
