from __future__ import annotations

import payments
import pytest
import shop
from flask.testing import FlaskClient
from sqlalchemy.orm import Session

from sqlalchemy_brooq import Job
from sqlalchemy_brooq.testing import (
    advance,
    assert_enqueued,
    crash_everywhere,
    drain,
    enqueued,
    lose_lease,
)


def test_an_order_is_paid(client: FlaskClient, brooq_session: Session, charged: dict[str, str]) -> None:
    number = client.post("/orders", json={"customer": "Ada"}).get_json()["id"]
    job = assert_enqueued(brooq_session, "payment.charge", {"order": number}, key=f"order-{number}")

    drain(brooq_session, shop.queue)

    assert job.state == "done"
    assert list(charged.values()) == ["Ada"]
    assert client.get(f"/orders/{number}").get_json()["is_paid"]


def test_an_order_that_is_refused_leaves_nothing(client: FlaskClient, brooq_session: Session) -> None:
    assert client.post("/orders", json={"customer": ""}).status_code == 422

    assert enqueued(brooq_session) == []


def test_whoever_has_paid_is_not_reminded(client: FlaskClient, brooq_session: Session, charged: dict[str, str]) -> None:
    number = client.post("/orders", json={"customer": "Ada"}).get_json()["id"]
    drain(brooq_session, shop.queue)

    advance(brooq_session, "7d")
    (reminder,) = drain(brooq_session, shop.queue)

    assert (reminder.topic, reminder.outcome) == ("order.remind", "canceled")
    assert not client.get(f"/orders/{number}").get_json()["is_reminded"]


def test_a_payment_service_that_is_down_is_asked_again(
    client: FlaskClient, brooq_session: Session, charged: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(_customer: str, *, key: str) -> None:
        raise TimeoutError(key)

    client.post("/orders", json={"customer": "Ada"})
    with monkeypatch.context() as broken:
        broken.setattr(payments, "charge", time_out)
        (first,) = drain(brooq_session, shop.queue)
    advance(brooq_session, "30s")
    (second,) = drain(brooq_session, shop.queue)

    assert (first.outcome, second.outcome, second.attempt) == ("failed", "done", 2)
    assert list(charged.values()) == ["Ada"]


def test_a_lost_lease_charges_nobody_twice(
    client: FlaskClient, brooq_session: Session, charged: dict[str, str]
) -> None:
    client.post("/orders", json={"customer": "Ada"})

    with lose_lease("payment.charge"):
        drain(brooq_session, shop.queue)

    assert list(charged.values()) == ["Ada"]


def test_charging_is_idempotent(brooq_session: Session, charged: dict[str, str]) -> None:
    order = shop.Order(customer="Ada")
    brooq_session.add(order)
    brooq_session.flush()

    crash_everywhere(
        shop.charge, brooq_session, shop.queue, Job("payment.charge", {"order": order.id}), outside=charged
    )
