"""
The till: places orders in transactions that enqueue their jobs.

This is the producer's side, as a consumer would write it: jobs are added to the session, like every other object.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sqlalchemy import Engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo.catalogue import Form
from sqlalchemy_brooq.demo.models import Order, OrderLine


class PaymentRefused(Exception):  # noqa: N818 - names what happened
    """
    The customer's bank doesn't pay: nothing of the order may remain.
    """


class Takings(NamedTuple):
    """
    What the till has counted, apart from what the database says.
    """

    placed: int = 0
    refused: int = 0
    repeated: int = 0
    """Forms that had come in before; no second order was made of them."""


def place(session: Session, form: Form) -> bool:
    """
    Place the order of *form* in the transaction of *session*; False if the same form was here before.

    Raises:
        PaymentRefused: Roll back, and there is neither an order nor a job.
    """
    invoice = brooq.Job("invoice.write", payload_of(form), idempotency_key=form.key)
    session.add(invoice)
    session.flush()
    if not invoice.created:
        return False
    session.add(Order(number=form.number, customer=form.customer.name, email=form.customer.email))
    session.add_all(
        OrderLine(order_number=form.number, product_id=product, quantity=quantity) for product, quantity in form.lines
    )
    session.add(brooq.Job("ledger.post", payload_of(form), idempotency_key=form.key))
    session.flush()
    if form.is_refused:
        raise PaymentRefused(f"order {form.number}")
    return True


def payload_of(form: Form) -> dict[str, object]:
    """
    Return what the jobs of *form* need to know; the rest is in the shop's tables.
    """
    return {"order": form.number, **({"pause": form.pause} if form.pause else {})}


class Till:
    """
    Takes forms, and keeps count of what became of them.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.takings = Takings()

    def take(self, form: Form) -> None:
        """
        Handle *form*; the two copies of one that was sent twice are handled at the same moment.
        """
        copies = [form] * (2 if form.is_sent_twice else 1)
        with ThreadPoolExecutor(len(copies)) as clerks:
            answers = list(clerks.map(self._handle, copies))
        placed, refused, repeated = self.takings
        self.takings = Takings(
            placed + answers.count(True), refused + answers.count(None), repeated + answers.count(False)
        )

    def _handle(self, form: Form) -> bool | None:
        """
        Return what `place` returned, or ``None`` where the payment was refused.
        """
        try:
            with Session(self._engine) as session, session.begin():
                return place(session, form)
        except PaymentRefused:
            return None
