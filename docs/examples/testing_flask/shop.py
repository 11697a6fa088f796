"""
A Flask application, its jobs, and a payment that must not be made twice.
"""

from __future__ import annotations

import os
from datetime import timedelta

import payments
from flask import Flask, abort, jsonify, request
from flask.typing import ResponseReturnValue
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlalchemy_brooq as brooq


class Base(DeclarativeBase):
    pass


app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
db = SQLAlchemy(app, model_class=Base)


class Order(db.Model):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    is_paid: Mapped[bool] = mapped_column(default=False)
    is_reminded: Mapped[bool] = mapped_column(default=False)


with app.app_context():
    queue = brooq.Queue(db.engine, around=app.app_context, session_factory=db.session.session_factory)


@queue.handler("payment.charge", max_attempts=3)
def charge(claim: brooq.Claim) -> None:
    order = db.session.get_one(Order, claim.payload["order"])
    try:
        # The same key for each attempt, so that a second one is the same payment.
        payments.charge(order.customer, key=str(claim.id))
    except TimeoutError as error:
        raise brooq.RetryLater(timedelta(seconds=30)) from error
    order.is_paid = True
    db.session.commit()


@queue.handler("order.remind", transactional=True)
def remind(claim: brooq.Claim, session: Session) -> None:
    order = session.get_one(Order, claim.payload["order"])
    if order.is_paid:
        raise brooq.CancelJob("it is paid")
    order.is_reminded = True


@app.post("/orders")
def take_order() -> ResponseReturnValue:
    order = Order(customer=request.get_json()["customer"])
    db.session.add(order)
    db.session.flush()  # now the order has an id
    db.session.add(brooq.Job("payment.charge", {"order": order.id}, idempotency_key=f"order-{order.id}"))
    db.session.add(brooq.Job("order.remind", {"order": order.id}, delay="7d"))
    if not order.customer:
        abort(422)  # the session is rolled back: neither order nor jobs
    db.session.commit()
    return jsonify(id=order.id), 202


@app.get("/orders/<int:number>")
def show_order(number: int) -> ResponseReturnValue:
    order = db.get_or_404(Order, number)
    return jsonify(customer=order.customer, is_paid=order.is_paid, is_reminded=order.is_reminded)
