"""
A Flask application that enqueues through ``db.session``, in the transaction of the request.

    export DATABASE_URL=postgresql+psycopg://shop@localhost/shop
    brooq-worker migrate
    flask --app flask_app run
    brooq-worker run flask_app:queue    # beside it: the worker, in a process of its own
"""

from __future__ import annotations

import os

from flask import Flask, abort, current_app, jsonify, request
from flask.typing import ResponseReturnValue
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import sqlalchemy_brooq as brooq


class Base(DeclarativeBase):
    pass


app = Flask(__name__)
app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["DATABASE_URL"]
app.config["SHOP"] = "The Shop"
db = SQLAlchemy(app, model_class=Base)


class Order(db.Model):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    confirmation: Mapped[str | None]


with app.app_context():
    db.create_all()
    queue = brooq.Queue(
        db.engine,
        around=app.app_context,  # handlers have `current_app` and `db.session`, as a request has
        session_factory=db.session.session_factory,  # sessions of their own, with the binds of `db.session`
    )


@queue.handler("order.confirm", transactional=True)
def confirm(claim: brooq.Claim, session: Session) -> None:
    order = session.get_one(Order, claim.payload["order"])
    order.confirmation = f"{current_app.config['SHOP']} thanks {order.customer}"
    claim.chain(brooq.Job("mail.send", {"order": order.id}))  # exists if and only if this commits


@queue.handler("mail.send")
def send(claim: brooq.Claim) -> None:
    order = db.session.get_one(Order, claim.payload["order"])
    print(f"to {order.customer}: {order.confirmation}", flush=True)


@app.post("/orders")
def take_order() -> ResponseReturnValue:
    order = Order(customer=request.get_json()["customer"])
    db.session.add(order)
    db.session.flush()  # now the order has an id
    db.session.add(brooq.Job("order.confirm", {"order": order.id}, idempotency_key=f"order-{order.id}"))
    if not order.customer:
        abort(422)  # the session is rolled back: neither order nor job
    db.session.commit()
    return jsonify(id=order.id), 202


@app.get("/orders/<int:number>")
def show_order(number: int) -> ResponseReturnValue:
    order = db.get_or_404(Order, number)
    return jsonify(customer=order.customer, confirmation=order.confirmation)
