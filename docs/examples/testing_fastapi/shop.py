"""
A FastAPI application on an `AsyncEngine`, and its jobs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import sqlalchemy_brooq as brooq


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    confirmation: Mapped[str | None]
    is_counted: Mapped[bool] = mapped_column(default=False)


class NewOrder(BaseModel):
    customer: str


class ShownOrder(NewOrder):
    confirmation: str | None
    is_counted: bool


engine = create_async_engine(os.environ["DATABASE_URL"])
sessions = async_sessionmaker(engine, expire_on_commit=False)
queue = brooq.Queue(engine, session_factory=sessions)


@queue.handler("order.confirm", transactional=True)
async def confirm(claim: brooq.Claim, session: AsyncSession) -> None:
    order = await session.get_one(Order, claim.payload["order"])
    order.confirmation = f"thank you, {order.customer}"
    claim.chain(brooq.Job("order.count", {"order": order.id}))


@queue.handler("order.count")
async def count(claim: brooq.Claim) -> None:
    async with sessions.begin() as session:
        order = await session.get_one(Order, claim.payload["order"])
        order.is_counted = True


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with queue:
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def take_order(new: NewOrder) -> dict[str, int]:
    async with sessions.begin() as session:
        order = Order(customer=new.customer)
        session.add(order)
        await session.flush()  # now the order has an id
        session.add(brooq.Job("order.confirm", {"order": order.id}, idempotency_key=f"order-{order.id}"))
        if not order.customer:
            raise HTTPException(422)  # the session is rolled back: neither order nor job
    return {"id": order.id}


@app.get("/orders/{number}")
async def show_order(number: int) -> ShownOrder:
    async with sessions() as session:
        order = await session.get(Order, number)
    if order is None:
        raise HTTPException(404)
    return ShownOrder(customer=order.customer, confirmation=order.confirmation, is_counted=order.is_counted)
