from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import shop
from fastapi.testclient import TestClient
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.testing import arolled_back


@pytest.fixture(scope="session", autouse=True)
def _tables() -> None:
    async def create() -> None:
        async with shop.engine.begin() as connection:
            await connection.run_sync(shop.Base.metadata.create_all)  # `job` is there: the migrations have made it
        await shop.engine.dispose()

    asyncio.run(create())


# For plain tests


@pytest.fixture
def brooq_queue() -> brooq.Queue:
    return shop.queue


@pytest.fixture
def client(brooq_session: Session) -> TestClient:
    # Not `with TestClient(...)`: its lifespan would start the worker.
    return TestClient(shop.app)


# For async tests; these are for anyio's plugin, which comes with FastAPI


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def session() -> AsyncIterator[AsyncSession]:
    async with arolled_back(shop.queue) as session:
        yield session


@pytest.fixture
async def async_client(session: AsyncSession) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(shop.app), base_url="http://shop") as client:
        yield client
