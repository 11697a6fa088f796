"""
Objects of models as payloads: by every door they become the JSON that a handler reads them from.
"""

from __future__ import annotations

import asyncio
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job, PayloadError
from sqlalchemy_brooq.payload import encoded
from tests.doors import SESSION_DOORS, Door
from tests.queues import MakeQueue, add, all_settled
from tests.recording import jobs
from tests.waiting import eventually, row

ID = UUID("0198c0de-0000-7000-8000-000000000001")


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    sku: str
    price: Decimal


@dataclass
class Order:
    id: UUID
    lines: list[Line]
    at: datetime | None = None
    total: int = field(init=False, default=0)


class Parcel(msgspec.Struct):
    order: UUID
    sent: datetime | None = None


class Invoice(pydantic.BaseModel):
    number: int = pydantic.Field(alias="invoice-number")
    colour: Colour = Colour.RED


class Address(TypedDict):
    street: str


ORDER = Order(ID, [Line("a", Decimal("1.50"))], datetime(2026, 1, 2, tzinfo=UTC))
ADDRESS: Address = {"street": "Rue de la Paix"}
WRITTEN: dict[str, tuple[Any, Any]] = {
    "dataclass": (
        ORDER,
        {"id": str(ID), "lines": [{"sku": "a", "price": "1.50"}], "at": "2026-01-02T00:00:00+00:00"},
    ),
    "struct": (Parcel(ID), {"order": str(ID), "sent": None}),
    "pydantic": (Invoice.model_validate({"invoice-number": 5}), {"invoice-number": 5, "colour": "red"}),
    "typed dict": (ADDRESS, {"street": "Rue de la Paix"}),
    "inside": ({"parcels": (Parcel(ID),), "more": 5}, {"parcels": [{"order": str(ID), "sent": None}], "more": 5}),
}
written = pytest.mark.parametrize(("payload", "stored"), WRITTEN.values(), ids=WRITTEN)


@written
@pytest.mark.parametrize("door", SESSION_DOORS)
def test_an_object_comes_in_by_every_door(engine: Engine, door: Door, payload: Any, stored: Any) -> None:
    with Session(engine) as session, session.begin():
        door(session, Job("t", payload))

    assert [job.payload for job in jobs(engine)] == [stored]


@written
def test_an_object_comes_in_by_the_queues_own_doors(
    engine: Engine, database_url: URL, make_queue: MakeQueue, payload: Any, stored: Any
) -> None:
    async def main() -> None:
        async_engine = create_async_engine(database_url)
        async with AsyncSession(async_engine) as session, session.begin():
            await brooq.aenqueue(session, Job("t", payload))
            await brooq.aenqueue_many(session, [Job("t", payload)])
        await make_queue(async_engine).aenqueue(Job("t", payload))
        await async_engine.dispose()

    asyncio.run(main())
    make_queue(engine).enqueue(Job("t", payload))

    assert [job.payload for job in jobs(engine)] == [stored] * 4


@written
def test_an_object_is_taken_by_assignment_and_by_chain(
    engine: Engine, make_queue: MakeQueue, payload: Any, stored: Any
) -> None:
    (job_id,) = add(engine, Job("t"))
    with Session(engine) as session, session.begin():
        job = session.get_one(Job, job_id)
        job.payload = payload
        assert job.payload == stored
    queue = make_queue(engine)
    queue.register("t", lambda claim: claim.chain(Job("next", payload)))
    queue.register("next", lambda claim: None)
    queue.start()

    eventually(all_settled(engine))
    assert [job.payload for job in jobs(engine)] == [stored] * 2


def test_a_job_keeps_a_copy_of_an_object() -> None:
    order = Order(ID, [])
    job = Job("t", order)

    order.lines.append(Line("a", Decimal(1)))

    assert job.payload["lines"] == []


def test_what_a_field_holds_is_written_as_it_is_read() -> None:
    @dataclass
    class Kept:
        value: Any

    values: dict[Any, Any] = {
        Colour.RED: "red",
        date(2026, 1, 2): "2026-01-02",
        time(3, 4): "03:04:00",
        timedelta(days=1, microseconds=5): "P1DT0.000005S",
        frozenset({1}): [1],
        (1, ID): [1, str(ID)],
    }
    assert {key: Job("t", Kept(key)).payload["value"] for key in values} == values
    assert Job("t", Kept({ID: Colour.RED, date(2026, 1, 2): {1}})).payload["value"] == {
        str(ID): "red",
        "2026-01-02": [1],
    }


@dataclass
class Seeded:
    seed: InitVar[int]


@dataclass
class Holder:
    value: Any


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (Seeded(5), "a Seeded can't be a payload: its constructor needs seed, which is not kept"),
        (Holder(Decimal("NaN")), "a Holder can't be written as JSON: ValueError"),
        (Holder(float("nan")), "the payload is not JSON"),
        (Holder("\x00"), "NUL character"),
        ([Holder(Holder(Seeded(5)))], "a Seeded can't be a payload"),
    ],
    ids=str,
)
def test_an_object_that_could_not_be_read_again_is_refused_when_the_job_is_built(payload: Any, said: str) -> None:
    with pytest.raises(PayloadError, match=said):
        Job("t", payload)


def test_an_object_that_contains_itself_is_refused() -> None:
    holder = Holder(None)
    holder.value = [holder]

    with pytest.raises(PayloadError, match="nested too deeply or contains itself"):
        Job("t", holder)


def test_a_class_is_no_object_of_it() -> None:
    with pytest.raises(PayloadError, match="not JSON"):
        encoded(Job("t", {"class": Order}).payload)


def test_what_only_the_engines_serializer_knows_may_be_in_an_object() -> None:
    payload = Job("t", Holder([b"bytes", 5])).payload

    assert payload == {"value": [b"bytes", 5]}
    assert encoded(payload, lambda value: str(value["value"][1])) == "5"


def test_a_handler_may_return_an_object_as_its_result(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, Job("t"))
    queue = make_queue(engine)
    queue.register("t", lambda claim: [Parcel(ID)], brooq.HandlerOptions(keep_result=True))
    queue.start()

    eventually(all_settled(engine))
    assert row(engine, job_id)["result"] == [{"order": str(ID), "sent": None}]
