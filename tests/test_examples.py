"""
The programs under ``docs/examples`` do what they say.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import scoped_session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import Job
from tests.commands import environment, shown
from tests.queues import states
from tests.servers import ROOT
from tests.waiting import eventually, row

EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, database_url: URL, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """
    The example that the test names, imported with the test's database.
    """
    name: str = request.param
    monkeypatch.setenv("DATABASE_URL", shown(database_url))
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)


def test_the_plain_script_takes_an_order_and_confirms_it(engine: Engine, database_url: URL) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "plain.py"],
        env=environment({"DATABASE_URL": shown(database_url)}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout.splitlines()) == (0, ["order 1", "to Ada: thank you"]), done.stderr
    assert states(engine) == {"done": 2}
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT is_confirmed FROM orders"))


# -- Flask

flask_app = pytest.mark.parametrize("example", ["flask_app"], indirect=True)


@pytest.fixture
def flask_queue(example: ModuleType) -> Iterator[brooq.Queue]:
    yield example.queue
    example.queue.close()
    with example.app.app_context():
        example.db.engine.dispose()


@flask_app
def test_a_flask_request_enqueues_in_its_transaction_and_handlers_have_its_context(
    example: ModuleType, flask_queue: brooq.Queue, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    client = example.app.test_client()

    assert client.post("/orders", json={"customer": ""}).status_code == 422
    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)
    number = client.post("/orders", json={"customer": "Ada"}).get_json()["id"]
    assert client.get(f"/orders/{number}").get_json() == {"customer": "Ada", "confirmation": None}

    with flask_queue:
        eventually(lambda: states(engine) == {"done": 2})
    assert client.get(f"/orders/{number}").get_json()["confirmation"] == "The Shop thanks Ada"
    assert capsys.readouterr().out == "to Ada: The Shop thanks Ada\n"


@flask_app
def test_the_sessions_of_a_flask_queue_are_like_db_session_but_not_it(
    example: ModuleType, flask_queue: brooq.Queue, engine: Engine
) -> None:
    order, db = example.Order, example.db
    with example.app.app_context():
        db.session.add(order(customer="waits"))
        with flask_queue.begin() as session:
            assert type(session) is type(db.session())
            assert session is not db.session()
            session.add_all([order(customer="Ada"), Job("mail.send", {"order": 1})])
        assert (count(engine, "orders"), count(engine, "job")) == (1, 1)
        assert len(db.session.new) == 1
        with pytest.raises(ZeroDivisionError), flask_queue.begin() as session:
            session.add_all([order(customer="Bob"), Job("mail.send", {"order": 2})])
            _ = 1 / 0
        db.session.commit()

    assert (count(engine, "orders"), count(engine, "job")) == (2, 1)


@flask_app
def test_each_flask_handler_has_a_db_session_of_its_own_and_its_changes_are_not_the_queues(
    example: ModuleType, flask_queue: brooq.Queue, engine: Engine
) -> None:
    seen: list[Any] = []

    def forgetful(claim: brooq.Claim) -> None:
        seen.append(example.db.session())
        example.db.session.add(example.Order(customer="never committed"))
        example.db.session.flush()
        claim.chain(Job("chained"))  # written by a session of the queue's

    flask_queue.register("forgetful", forgetful)
    flask_queue.register("chained", lambda claim: None)
    with example.app.app_context():
        brooq.enqueue_many(example.db.session, [Job("forgetful"), Job("forgetful")])
        assert isinstance(example.db.session, scoped_session)
        seen.append(example.db.session())
        example.db.session.commit()

    with flask_queue:
        eventually(lambda: states(engine) == {"done": 4})

    assert len({id(session) for session in seen}) == 3
    assert count(engine, "orders") == 0


# -- FastAPI

fastapi_app = pytest.mark.parametrize("example", ["fastapi_app"], indirect=True)


@fastapi_app
def test_a_fastapi_request_enqueues_in_its_transaction_and_its_loop_works_it_off(
    example: ModuleType, engine: Engine
) -> None:
    async def main() -> None:
        transport = httpx.ASGITransport(app=example.app)
        async with (
            example.app.router.lifespan_context(example.app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            assert (await client.post("/orders", json={"customer": ""})).status_code == 422
            assert (count(engine, "job"), count(engine, "orders")) == (0, 0)
            number = (await client.post("/orders", json={"customer": "Ada"})).json()["id"]
            async with asyncio.timeout(10):
                while (shown := (await client.get(f"/orders/{number}")).json())["confirmation"] is None:
                    await asyncio.sleep(0.01)
            assert shown == {"customer": "Ada", "confirmation": "thank you, Ada"}
            assert (await client.get("/orders/404")).status_code == 404
        assert example.queue.health() is None

    asyncio.run(main())

    assert states(engine) == {"done": 1}


@fastapi_app
def test_abegin_opens_sessions_of_the_given_factory(example: ModuleType, engine: Engine) -> None:
    async def main() -> UUID:
        async with example.engine.begin() as connection:
            await connection.run_sync(example.Base.metadata.create_all)
        async with example.queue.abegin() as session:
            order = example.Order(customer="Ada")
            session.add(order)
            await session.flush()
            job = Job("order.confirm", {"order": order.id})
            session.add(job)
        assert job.state == "pending"  # the factory's sessions don't expire
        with pytest.raises(ZeroDivisionError):
            async with example.queue.abegin() as session:
                session.add_all([example.Order(customer="Bob"), Job("order.confirm")])
                await session.flush()
                _ = 1 / 0
        await example.engine.dispose()
        return job.id

    job_id = asyncio.run(main())

    assert row(engine, job_id)["state"] == "pending"
    assert (count(engine, "orders"), count(engine, "job")) == (1, 1)


# -- projects with tests of their own


@pytest.mark.parametrize("project", ["testing_flask", "testing_fastapi"])
def test_an_example_projects_own_tests_pass_and_leave_nothing_behind(
    project: str, engine: Engine, database_url: URL, installed: Path
) -> None:
    # Starlette's test client has a word to say about its own dependencies.
    strict = ["-W", "error", "-W", "ignore:Using `httpx` with"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider", *strict],
        cwd=EXAMPLES / project,
        env=environment({"DATABASE_URL": shown(database_url), "PYTHONPATH": f"{installed}:{ROOT}"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert (count(engine, "job"), count(engine, "orders")) == (0, 0)
