from __future__ import annotations

import httpx
import pytest
import shop
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq import Job
from sqlalchemy_brooq.testing import (
    acrash_everywhere,
    adrain,
    assert_enqueued,
    crash_everywhere,
    drain,
    enqueued,
)


def test_an_order_is_confirmed_and_counted(client: TestClient, brooq_session: Session) -> None:
    number = client.post("/orders", json={"customer": "Ada"}).json()["id"]
    assert_enqueued(brooq_session, "order.confirm", {"order": number}, key=f"order-{number}")

    records = drain(brooq_session, shop.queue)

    assert [(record.topic, record.outcome) for record in records] == [
        ("order.confirm", "done"),
        ("order.count", "done"),
    ]
    assert client.get(f"/orders/{number}").json() == {
        "customer": "Ada",
        "confirmation": "thank you, Ada",
        "is_counted": True,
    }


def test_an_order_that_is_refused_leaves_nothing(client: TestClient, brooq_session: Session) -> None:
    assert client.post("/orders", json={"customer": ""}).status_code == 422

    assert enqueued(brooq_session) == []


def test_confirming_is_idempotent(brooq_session: Session) -> None:
    order = shop.Order(customer="Ada")
    brooq_session.add(order)
    brooq_session.flush()

    crash_everywhere(shop.confirm, brooq_session, shop.queue, Job("order.confirm", {"order": order.id}))


@pytest.mark.anyio
async def test_an_async_test_does_the_same(async_client: httpx.AsyncClient, session: AsyncSession) -> None:
    number = (await async_client.post("/orders", json={"customer": "Ada"})).json()["id"]

    await adrain(session, shop.queue)

    assert (await async_client.get(f"/orders/{number}")).json()["is_counted"]
    order = await session.get_one(shop.Order, number)
    await acrash_everywhere(shop.count, session, shop.queue, Job("order.count", {"order": order.id}))
