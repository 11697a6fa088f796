"""
The dashboard within applications of others: under their prefix, and for those whom they know.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from secrets import token_hex
from types import ModuleType
from typing import Any

import httpx
import pytest
from sqlalchemy import URL, Engine

import sqlalchemy_brooq as brooq
from tests.commands import shown
from tests.servers import ROOT
from tests.waiting import row

EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest, database_url: URL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """
    The example that the test names, imported with the test's database.
    """
    name: str = request.param
    monkeypatch.setenv("DATABASE_URL", shown(database_url))
    monkeypatch.setenv("SECRET_KEY", token_hex())
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    yield module
    module.queue.close()
    if isinstance(module.engine, Engine):
        module.engine.dispose()


CSRF = {"X-CSRF-Token": "c" * 22}


def check(client: Any, engine: Engine, *, may_write: bool) -> None:
    """
    See and change a job as somebody whom the host knows.
    """
    with engine.begin() as connection:
        answer = brooq.enqueue(connection, brooq.Job("t", {"password": "hidden"}))
    job = f"/queue/api/jobs/{answer.id}"

    found = client.get(job)
    assert (found.status_code, found.json()["payload"]) == (200, {"password": "•••"})
    document = client.get("/queue/api/openapi.json").json()
    assert document["servers"] == [{"url": "/queue"}]
    assert client.post(f"{job}/cancel").status_code == 403
    code = client.post(f"{job}/cancel", headers=CSRF).status_code
    assert code == (200 if may_write else 403)
    assert row(engine, answer.id)["state"] == ("canceled" if may_write else "pending")


class AsyncClient:
    """
    A client of an ASGI application, for tests that wait for its answers.
    """

    def __init__(self, application: Any, **cookies: str) -> None:
        self._application = application
        self._cookies = {"brooq_csrf": CSRF["X-CSRF-Token"], **cookies}

    def get(self, path: str) -> httpx.Response:
        return asyncio.run(self._answer("GET", path))

    def post(self, path: str, **request: Any) -> httpx.Response:
        return asyncio.run(self._answer("POST", path, **request))

    async def _answer(self, method: str, path: str, **request: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._application)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://shop.example", cookies=self._cookies
        ) as client:
            answer = await client.request(method, path, **request)
            self._cookies |= dict(client.cookies)
            return answer


@pytest.mark.parametrize("name", ["dashboard_flask", "dashboard_fastapi", "dashboard_django"])
def test_no_example_has_a_secret_of_its_own(name: str) -> None:
    source = (EXAMPLES / f"{name}.py").read_text()

    assert 'os.environ["SECRET_KEY"]' in source
    assert 'environ.get("SECRET' not in source


def wsgi_client(application: Any) -> httpx.Client:
    client = httpx.Client(transport=httpx.WSGITransport(app=application), base_url="http://shop.example")
    client.cookies.set("brooq_csrf", CSRF["X-CSRF-Token"], domain="shop.example")
    return client


@pytest.mark.parametrize("example", ["dashboard_flask"], indirect=True)
def test_it_is_mounted_into_flask(example: ModuleType, engine: Engine) -> None:
    for user, may_write in (("ada", True), ("bob", False)):
        client = wsgi_client(example.app)
        assert client.get("/queue/api/topics").status_code == 403
        assert client.post("/login", data={"user": user}).status_code == 302
        check(client, engine, may_write=may_write)
    assert client.post("/login", data={"user": "eve"}).status_code == 302
    assert client.get("/queue/api/topics").status_code == 403
    assert client.get("/elsewhere").status_code == 404


@pytest.mark.parametrize("example", ["dashboard_fastapi"], indirect=True)
def test_it_is_mounted_into_fastapi(example: ModuleType, engine: Engine) -> None:
    for user, may_write in (("ada", True), ("bob", False)):
        client = AsyncClient(example.app)
        assert client.get("/queue/api/topics").status_code == 403
        assert client.post("/login", params={"user": user}).status_code == 303
        check(client, engine, may_write=may_write)
    forged = AsyncClient(example.app, user="forged")
    assert forged.get("/queue/api/topics").status_code == 403
    asyncio.run(example.engine.dispose())


@pytest.mark.parametrize("example", ["dashboard_django"], indirect=True)
def test_it_is_mounted_into_django(example: ModuleType, engine: Engine) -> None:
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connections
    from django.test import Client

    call_command("migrate", verbosity=0)
    for is_admin in (True, False):
        user = User.objects.create_user(f"ada-{is_admin}", is_staff=True, is_superuser=is_admin)
        login = Client()
        login.force_login(user)
        client = wsgi_client(example.application)
        assert client.get("/queue/api/topics").status_code == 403
        client.cookies.set("sessionid", login.cookies["sessionid"].value, domain="shop.example")
        check(client, engine, may_write=is_admin)
        User.objects.update(is_staff=False)
        assert client.get("/queue/api/topics").status_code == 403
    connections.close_all()
