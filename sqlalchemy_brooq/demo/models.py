"""
The shop's own tables: a consumer's schema, beside the queue's in the same database.

Nothing here makes a thing unique that the queue promises to happen once: the ledger and the mail log would take a
second entry, so that a broken promise shows.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import DateTime, ForeignKey, Identity, Numeric, Text, func
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """
    The declarative base of the shop.
    """

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text,
        datetime: DateTime(timezone=True),
        Decimal: Numeric(10, 2),
    }


class Product(Base):
    """
    What is on the shelves.
    """

    __tablename__ = "product"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    price: Mapped[Decimal]
    stock: Mapped[int]


class OrderLine(Base):
    """
    So many of one product, in one order.
    """

    __tablename__ = "order_line"

    order_number: Mapped[int] = mapped_column(ForeignKey("orders.number"), primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey("product.id"), primary_key=True)
    quantity: Mapped[int]
    product: Mapped[Product] = relationship(lazy="joined")


class Order(Base):
    """
    An order that was placed and paid for.
    """

    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    customer: Mapped[str]
    email: Mapped[str]
    placed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    lines: Mapped[list[OrderLine]] = relationship(lazy="selectin")

    @property
    def total(self) -> Decimal:
        """
        What the customer pays.
        """
        return sum((line.quantity * line.product.price for line in self.lines), Decimal(0))


class LedgerEntry(Base):
    """
    Money that came in for an order; written in the transaction of its own job's outcome.
    """

    __tablename__ = "ledger_entry"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    order_number: Mapped[int] = mapped_column(ForeignKey("orders.number"))
    amount: Mapped[Decimal]


class SentMail(Base):
    """
    A mail that left the house: it stands for the outside world, which no transaction of ours takes back.
    """

    __tablename__ = "sent_mail"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[UUID]
    order_number: Mapped[int]
    recipient: Mapped[str]
    subject: Mapped[str]


class StockNote(Base):
    """
    What the one who counts the stock has written down.
    """

    __tablename__ = "stock_note"

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    job_id: Mapped[UUID]
    note: Mapped[str]
    noted_at: Mapped[datetime] = mapped_column(server_default=func.now())
