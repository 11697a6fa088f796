import asyncio, sys
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine, AsyncSession
async def main(url):
    e = create_async_engine(url)
    s = AsyncSession(e)
    def f(s):
        c = s.connection()
        c.execute(text("select 1"))
        c.detach()
        s.close()
    await s.run_sync(f)
    async with e.connect() as c:
        print((await c.execute(text("select pid, state, query from pg_stat_activity where datname=current_database()"))).all())
    await e.dispose()
import pytest
def test_it(async_engine_url):
    asyncio.run(main(async_engine_url))
