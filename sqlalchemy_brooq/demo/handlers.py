"""
What the shop's workers do: the queue and its handlers, as a consumer would write them.

One handler of each kind: plain, ``async def``, transactional, one that keeps its result, one that runs for long and
listens for an interruption.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import URL, Engine, NullPool, create_engine, func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo.catalogue import UNREACHABLE
from sqlalchemy_brooq.demo.models import LedgerEntry, Order, OrderLine, Product, SentMail, StockNote

SLOTS: Final = 4
LEASE: Final = timedelta(seconds=4)
"""Short, so that one needn't wait long for what a killed worker held."""
CONFIG: Final = brooq.Config(
    workers=SLOTS,
    lease=LEASE,
    reaper_period="500ms",
    poll_interval="500ms",
    backoff_base="250ms",
    backoff_max="2s",
    shutdown_grace="5s",
)
MAIL_ATTEMPTS: Final = 4
SHELVES: Final = 40

_WORK: Final = 0.03
"""Seconds that writing an invoice takes."""
_ON_THE_WIRE: Final = 0.08
"""Seconds that a mail takes to the mail server."""
_ONE_SHELF: Final = 0.25
"""Seconds that it takes to count one."""


def shop_engine(url: URL) -> Engine:
    """
    Return the engine of a program of the shop.
    """
    return create_engine(url, pool_pre_ping=True)


def build_queue(engine: Engine) -> brooq.Queue:
    """
    Return the shop's queue with all its handlers, ready to be started.
    """
    queue = brooq.Queue(engine, CONFIG)
    # For the async handler alone; without a pool there is nothing that would have to be closed in its event loop.
    outside = create_async_engine(engine.url.set(drivername="postgresql+psycopg_async"), poolclass=NullPool)
    options = brooq.HandlerOptions
    queue.register("invoice.write", partial(write_invoice, engine), options(keep_result=True))
    queue.register("ledger.post", post_to_ledger, options(transactional=True))
    queue.register("email.send", partial(send_mail, outside), options(max_attempts=MAIL_ATTEMPTS))
    queue.register("stock.count", partial(count_stock, engine))
    queue.register("report.day", partial(report, engine), options(keep_result=True))
    return queue


def write_invoice(engine: Engine, claim: brooq.Claim) -> dict[str, str]:
    """
    Add an order up, and chain the mail to the customer: it exists once this job is done, and never before.
    """
    number = claim.payload["order"]
    with Session(engine) as session:
        order = session.get_one(Order, number)
        total, email = order.total, order.email
    claim.wait(_WORK)
    mail = {**claim.payload, "to": email, "subject": f"Your order {number}: {total} EUR"}
    claim.chain(brooq.Job("email.send", mail, idempotency_key=f"invoice-{number}"))
    return {"invoice": f"R-{number}", "total": str(total)}


def post_to_ledger(claim: brooq.Claim, session: Session) -> None:
    """
    Book the money and take the goods off the shelves, in the transaction that also writes the job as done.
    """
    order = session.get_one(Order, claim.payload["order"])
    session.add(LedgerEntry(order_number=order.number, amount=order.total))
    session.flush()
    claim.wait(_pause(claim))
    for line in sorted(order.lines, key=lambda line: line.product_id):  # in one order, so that two can't deadlock
        taken = update(Product).where(Product.id == line.product_id).values(stock=Product.stock - line.quantity)
        session.execute(taken, execution_options={"synchronize_session": False})


async def send_mail(outside: AsyncEngine, claim: brooq.Claim) -> None:
    """
    Hand a mail to the mail server, which is in a bad mood at times.
    """
    await asyncio.sleep(_ON_THE_WIRE)
    answer_of_mail_server(claim.payload, delivery=claim.attempt - claim.requeues)
    async with AsyncSession(outside) as session, session.begin():
        mail = claim.payload
        session.add(
            SentMail(job_id=claim.id, order_number=mail["order"], recipient=mail["to"], subject=mail["subject"])
        )
    await asyncio.sleep(_pause(claim))


def answer_of_mail_server(mail: Mapping[str, Any], delivery: int) -> None:
    """
    Return if the mail server takes *mail*.

    Args:
        mail: The payload of the job.
        delivery: Which try this is, from 1.

    Raises:
        RetryLater: It is busy, and says for how long.
        ConnectionResetError: It hung up.
        ValueError: There is no such mailbox.
    """
    if mail["to"] == UNREACHABLE.email:
        raise ValueError("550 there is no such mailbox")
    if delivery > failures_of(mail["order"], _pause_of(mail)):
        return
    if delivery == 1:
        raise brooq.RetryLater(timedelta(milliseconds=300), "451 busy, try again in 0.3 s")
    raise ConnectionResetError("mail server hung up")


def failures_of(order: int, pause: float) -> int:
    """
    Return how often the mail server fails before it takes the mail about *order*.

    Each fifth one fails once and each seventh twice, but for those that pause: there a worker will be killed.
    """
    if pause:
        return 0
    return 2 if order % 7 == 0 else int(order % 5 == 0)


def count_stock(engine: Engine, claim: brooq.Claim) -> None:
    """
    Count shelf after shelf, for ten seconds, unless somebody calls it off.
    """
    try:
        for shelf in range(1, SHELVES + 1):
            claim.wait(_ONE_SHELF)
            _take_note(engine, claim, f"shelf {shelf} counted")
    except brooq.Interruption as cause:
        _take_note(engine, claim, f"put the pencil down: {type(cause).__name__}")
        raise


def _take_note(engine: Engine, claim: brooq.Claim, note: str) -> None:
    with Session(engine) as session, session.begin():
        session.add(StockNote(job_id=claim.id, note=note))


def report(engine: Engine, _claim: brooq.Claim) -> dict[str, object]:
    """
    Return the figures of the day; the job's row keeps them.
    """
    sold = func.sum(OrderLine.quantity)
    turnover = select(func.count(), func.sum(LedgerEntry.amount))
    best = (
        select(Product.name, sold)
        .join(OrderLine, OrderLine.product_id == Product.id)
        .group_by(Product.id)
        .order_by(sold.desc(), Product.id)
        .limit(1)
    )
    with Session(engine) as session:
        entries, amount = session.execute(turnover).one()
        name, pieces = session.execute(best).one()
    return {"orders": entries, "turnover": str(amount), "best seller": name, "pieces": pieces}


def _pause(claim: brooq.Claim) -> float:
    return _pause_of(claim.payload)


def _pause_of(payload: Mapping[str, Any]) -> float:
    return float(payload.get("pause", 0))
