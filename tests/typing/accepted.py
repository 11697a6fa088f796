"""
What a consumer writes, and type checkers accept: mypy and pyright check it, and a test registers all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, assert_type

import msgspec
import pydantic
import pydantic.dataclasses
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq

T = TypeVar("T")


@dataclass(frozen=True)
class Order:
    number: int


class Address(TypedDict):
    street: str


class Parcel(msgspec.Struct):
    weight: int


class Invoice(pydantic.BaseModel):
    total: int


@pydantic.dataclasses.dataclass
class Refund:
    total: int


@dataclass
class Page(Generic[T]):
    items: list[T]


class OurSession(Session):
    pass


class OurAsyncSession(AsyncSession):
    pass


URL = "postgresql+psycopg://shop@localhost/shop"

queue = brooq.Queue(create_engine(URL), registry=CollectorRegistry())
async_queue = brooq.Queue(create_async_engine(URL), registry=CollectorRegistry())


@queue.handler("plain")
def plain(claim: brooq.Claim) -> int:
    return claim.attempt


@queue.handler("plain.async", max_attempts=3, attempt_timeout="1m")
async def plain_async(claim: brooq.Claim) -> str:
    return claim.topic


@queue.handler("default")
def default(claim: brooq.Claim, dry: bool = False) -> None: ...


@queue.handler("dataclass")
def dataclass_(claim: brooq.Claim, order: Order) -> int:
    return order.number


@queue.handler("dataclass.generic")
def generic(claim: brooq.Claim, page: Page[Order]) -> None: ...


@queue.handler("dataclass.async", on_invalid="dead")
async def dataclass_async(claim: brooq.Claim, order: Order) -> str:
    return str(order)


@queue.handler("typeddict")
def typed_dict(claim: brooq.Claim, address: Address) -> None: ...


@queue.handler("struct")
def struct(claim: brooq.Claim, parcel: Parcel) -> None: ...


@queue.handler("pydantic")
def model(claim: brooq.Claim, invoice: Invoice) -> None: ...


@queue.handler("pydantic.dataclass")
def refund(claim: brooq.Claim, refund: Refund) -> None: ...


@queue.handler("union")
def union(claim: brooq.Claim, either: Order | Parcel | None) -> None: ...


@queue.handler("transactional", transactional=True)
def transactional(claim: brooq.Claim, session: Session) -> bool:
    return session.is_active


@queue.handler("transactional.typed", transactional=True)
def transactional_typed(claim: brooq.Claim, order: Order, session: Session) -> int:
    return order.number


@queue.handler("transactional.typed.last", transactional=True)
def typed_last(claim: brooq.Claim, session: Session, order: Order) -> None: ...


@queue.handler("transactional.own", transactional=True)
def own_session(claim: brooq.Claim, session: OurSession) -> None: ...


@queue.handler("transactional.own.typed", transactional=True)
def own_session_typed(claim: brooq.Claim, invoice: Invoice, session: OurSession) -> None: ...


@async_queue.handler("transactional", transactional=True)
async def async_transactional(claim: brooq.Claim, session: AsyncSession) -> bool:
    return session.is_active


@async_queue.handler("transactional.typed", transactional=True)
async def async_transactional_typed(claim: brooq.Claim, order: Order, session: AsyncSession) -> str:
    return str(order)


@async_queue.handler("transactional.typed.last", transactional=True)
async def async_typed_last(claim: brooq.Claim, session: AsyncSession, order: Order) -> None: ...


@async_queue.handler("transactional.own", transactional=True)
async def async_own_session(claim: brooq.Claim, session: OurAsyncSession) -> None: ...


@async_queue.handler("transactional.own.typed", transactional=True)
async def async_own_session_typed(claim: brooq.Claim, parcel: Parcel, session: OurAsyncSession) -> None: ...


def what_the_decorators_keep() -> None:
    assert_type(plain(claim()), int)
    assert_type(default(claim(), dry=True), None)
    assert_type(dataclass_(claim(), Order(1)), int)
    assert_type(transactional(claim(), session=Session()), bool)
    assert_type(transactional_typed(claim(), Order(1), Session()), int)


def plain_callback() -> Callable[[brooq.Claim], Awaitable[str]]:
    return plain_async


def typed_callback() -> Callable[[brooq.Claim, Order], Awaitable[str]]:
    return dataclass_async


def transactional_callback() -> Callable[[brooq.Claim, AsyncSession], Awaitable[bool]]:
    return async_transactional


def typed_transactional_callback() -> Callable[[brooq.Claim, Order, AsyncSession], Awaitable[str]]:
    return async_transactional_typed


def other_callables(queue: brooq.Queue) -> None:
    class Callables:
        def __call__(self, claim: brooq.Claim) -> None: ...

        def method(self, claim: brooq.Claim, order: Order) -> None: ...

    def with_url(url: str, claim: brooq.Claim) -> None: ...

    def perhaps_transactional(claim: brooq.Claim, session: Session | None = None) -> None: ...

    options: dict[str, Any] = {"max_attempts": 2}
    queue.handler("object")(Callables())
    queue.handler("method")(Callables().method)
    queue.handler("partial")(partial(with_url, "https://mail.example"))
    queue.register("registered", Callables().method, brooq.HandlerOptions(**options, on_invalid="dead"))
    for flag in (True, False):
        queue.handler(f"flag.{int(flag)}", transactional=flag)(perhaps_transactional)


def claim() -> brooq.Claim:
    raise NotImplementedError


def jobs() -> list[brooq.Job]:
    address: Address = {"street": "Rue de la Paix"}
    return [brooq.Job("t", payload) for payload in (Order(1), address, Parcel(1), Invoice(total=1), {"any": ["JSON"]})]
