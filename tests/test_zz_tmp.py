import pytest, asyncio
from sqlalchemy import text, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from tests.waiting import row, eventually
from sqlalchemy_brooq import Job


@pytest.mark.parametrize("i", range(30))
def test_many(session, i):
    session.execute(text("select count(*) from job")).scalar_one()


def test_row(session, engine):
    j = Job(topic="a")
    session.add(j)
    session.commit()
    print(row(engine, j.id))


def test_empty(empty_database_url):
    e = create_engine(empty_database_url)
    with e.connect() as c:
        assert c.scalar(text("select to_regclass('job') is null"))
    e.dispose()


def test_leak(engine):
    global c
    c = engine.connect()
    c.execute(text("select 1"))


def test_async(async_engine_url):
    async def f():
        e = create_async_engine(async_engine_url)
        async with e.connect() as c:
            print(await c.scalar(text("select 1")))
        await e.dispose()

    asyncio.run(f())


def test_eventually():
    eventually(lambda: 0, timeout=0.1, message="x")
