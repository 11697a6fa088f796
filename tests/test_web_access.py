"""
Who may see jobs and who may change them, what browsers are kept from, and what stands in the log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from sqlalchemy_brooq.web import Grant, Role, access, create_app, current
from tests.queues import MakeQueue
from tests.test_browse import put
from tests.web import READ_TOKEN, TOKEN, Program, bearer

NOWHERE = create_engine("postgresql+psycopg://u@127.0.0.1:1/none")
DOCUMENT = "/api/openapi.json"
CSRF = "x" * 22
OURS = {"X-CSRF-Token": CSRF}
LOCAL = {"Host": "localhost:8091"}


def client(**options: Any) -> FlaskClient:
    return create_app(options.pop("source", NOWHERE), **options).test_client()


def code(client: FlaskClient, path: str = DOCUMENT, **request: Any) -> int:
    return client.get(path, **request).status_code


def logged_in(app: Flask, token: str = TOKEN, **options: Any) -> FlaskClient:
    """
    Return a browser that has logged in.
    """
    browser = app.test_client()
    secret = re.search(r'name="csrf_token" value="([^"]+)"', browser.get("/login", **options).text)
    assert secret is not None
    form = {"csrf_token": secret[1], "token": token}
    assert browser.post("/login", data=form, **options).status_code == 303
    return browser


def cookie(browser: FlaskClient, name: str) -> str:
    found = browser.get_cookie(name)
    assert found is not None
    return found.value


# -- who is let in


@pytest.mark.parametrize("path", ["/", DOCUMENT, "/api/jobs", "/static/app.css", "/login", "/nowhere"])
def test_without_a_token_or_a_check_nothing_is_served(path: str) -> None:
    closed = client()

    assert code(closed, path) == code(closed, path, headers=bearer()) == code(closed, path, headers=LOCAL) == 404
    assert closed.post(path, headers=OURS).status_code == 404


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN} x",
        f"Bearer {TOKEN.upper()}",
        "Bearer ÿ",
        f"Bearer {TOKEN}\x00",
    ],
)
def test_a_wrong_token_opens_nothing(header: str) -> None:
    app = client(token=TOKEN, read_token=READ_TOKEN)
    environ = {"HTTP_AUTHORIZATION": header.encode().decode("latin-1")}

    answer = app.get(DOCUMENT, environ_overrides=environ)

    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert TOKEN not in answer.text


def test_the_token_opens_it_and_the_other_one_reads_alone(engine: Engine) -> None:
    (job_id,) = put(engine, "pending")
    writer = Program(engine)
    reader = Program(writer.app, READ_TOKEN)

    assert reader.get(f"jobs/{job_id}")["id"] == str(job_id)
    assert "may read, and change nothing" in reader.post(f"jobs/{job_id}/cancel", code=403)["detail"]
    assert writer.get(f"jobs/{job_id}")["state"] == "pending"
    assert writer.post(f"jobs/{job_id}/cancel")["changed"] == 1


def test_tokens_are_compared_in_constant_time_on_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return given == known

    monkeypatch.setattr("hmac.compare_digest", compare)
    app = client(token=TOKEN, read_token=READ_TOKEN)

    assert code(app, headers=bearer(TOKEN)) == 200
    # Also the one that was found by then is followed by the other.
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (TOKEN.encode(), READ_TOKEN.encode())]


def test_the_token_of_a_queue_is_the_default(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine, api_token=TOKEN)

    assert code(client(source=queue), headers=bearer()) == 200
    assert code(client(source=queue, token="other"), headers=bearer()) == 401  # noqa: S106
    assert Program(create_app(queue)).get("retention")["ttl_seconds"]["done"] == timedelta(days=30).total_seconds()


def test_the_host_decides_where_it_is_asked() -> None:
    def authorize(environ: Any) -> Grant | None:
        user = environ.get("HTTP_X_USER")
        return Grant(Role.READ, user) if user else None

    app = client(authorize=authorize)

    assert code(app) == 403
    assert code(app, headers={"X-User": "ada"}) == 200
    assert app.post("/api/jobs/cancel", json={"ids": []}, headers={"X-User": "ada", **OURS}).status_code == 403


def test_an_error_in_the_host_s_check_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    def authorize(_environ: Any) -> Grant | None:
        raise RuntimeError("the session store is down")

    answer = client(authorize=authorize).get(DOCUMENT)

    assert answer.status_code == 500
    assert "store" not in answer.text
    assert "RuntimeError: the session store is down" in caplog.text


@pytest.mark.parametrize("answer", [True, False, "write", {}, Role.WRITE, ("write", "ada")])
def test_what_a_check_answers_that_is_no_grant_lets_nobody_in(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = client(authorize=lambda _: answer, anonymous=Role.WRITE)

    refused = app.get(DOCUMENT, headers=LOCAL)

    assert refused.status_code == 500
    assert "paths" not in refused.text
    assert f"TypeError: authorize is to return a Grant, or None for nobody: it returned {answer!r}" in caplog.text


def test_read_only_holds_whoever_asks(engine: Engine) -> None:
    (job_id,) = put(engine, "pending")
    path = f"/api/jobs/{job_id}/cancel"
    everybody = {"authorize": lambda _: Grant(Role.WRITE, "ada"), "anonymous": Role.WRITE}
    app = client(source=engine, token=TOKEN, read_only=True, **everybody)

    for headers in (bearer(), {}, {**LOCAL, **OURS}):
        assert app.post(path, headers=headers).status_code == 403
    assert code(app, f"/api/jobs/{job_id}") == 200


# -- this machine


@pytest.mark.parametrize("host", ["localhost", "localhost:8091", "127.0.0.1", "127.9.9.9:1", "[::1]:8091"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_whoever_sits_at_this_machine_is_let_in_by_a_flag(host: str, address: str) -> None:
    app = client(anonymous=Role.READ)

    assert code(app, headers={"Host": host}, environ_overrides={"REMOTE_ADDR": address}) == 200


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("10.0.0.1", {"Host": "localhost"}),
        ("", {"Host": "localhost"}),
        ("127.0.0.1", {"Host": "evil.example"}),  # whose name was made to point here
        ("127.0.0.1", {"Host": "localhost.evil.example"}),
        ("127.0.0.1", {"Host": "127.0.0.1.evil.example"}),
        ("127.0.0.1", {"Host": "[::1"}),
        ("127.0.0.1", {"Host": ""}),
        ("127.0.0.1", {"Host": "localhost", "X-Forwarded-For": "10.0.0.1"}),
        ("127.0.0.1", {"Host": "localhost", "Forwarded": "for=10.0.0.1"}),
        ("127.0.0.1", {"Host": "localhost", "X-Real-IP": "10.0.0.1"}),
        ("127.0.0.1", {"Host": "localhost", "Via": "1.1 proxy"}),
    ],
)
def test_nobody_else_is(address: str, headers: dict[str, str]) -> None:
    app = client(anonymous=Role.WRITE)

    assert code(app, headers=headers, environ_overrides={"REMOTE_ADDR": address}) in (400, 403)


# -- browsers


def test_a_login_is_a_cookie_that_no_script_sees_and_no_form_of_another_site_sends() -> None:
    browser = logged_in(create_app(NOWHERE, token=TOKEN), base_url="https://jobs.example")
    name = next(iter(create_app(NOWHERE, token=TOKEN).extensions[current.EXTENSION]["access"].cookies))
    found = browser.get_cookie(name, domain="jobs.example")

    assert found is not None
    assert (found.http_only, found.same_site, found.secure, found.path) == (True, "Lax", True, "/")
    assert found.max_age == access.SESSION
    assert TOKEN not in found.value
    assert code(browser, base_url="https://jobs.example") == 200
    browser.post("/logout", data={"csrf_token": csrf(browser)}, base_url="https://jobs.example")
    assert code(browser, base_url="https://jobs.example") == 401


def csrf(browser: FlaskClient) -> str:
    found = browser.get_cookie(access.CSRF_COOKIE, domain="jobs.example")
    assert found is not None
    return found.value


def test_cookies_stay_below_the_prefix_and_without_tls_are_not_secure() -> None:
    browser = create_app(NOWHERE, token=TOKEN).test_client()

    answer = browser.get("/login", environ_overrides={"SCRIPT_NAME": "/queue"})

    (header,) = answer.headers.getlist("Set-Cookie")
    assert header.endswith("; HttpOnly; Path=/queue; SameSite=Lax")
    assert "Secure" not in header


def test_a_login_holds_in_every_process_and_no_longer_than_the_token_and_half_a_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browser = logged_in(create_app(NOWHERE, token=TOKEN))
    (name,) = create_app(NOWHERE, token=TOKEN).extensions[current.EXTENSION]["access"].cookies
    value = cookie(browser, name)

    def opened(value: str, token: str = TOKEN) -> int:
        other = client(token=token, read_token=READ_TOKEN)
        other.set_cookie(name, value)
        return code(other)

    assert opened(value) == 200
    assert opened(value, token="another") == 401  # noqa: S106
    # Not the last letter: some of its bits stand for nothing.
    signed, _, signature = value.rpartition(".")
    assert opened(f"{signed}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}") == 401
    assert opened("") == opened("a.b.c") == opened("\xff") == 401
    monkeypatch.setattr(access, "SESSION", -1)
    assert opened(value) == 401


@pytest.mark.parametrize("options", [{"read_only": True}, {"read_token": READ_TOKEN}])
def test_who_may_only_read_can_end_that(options: dict[str, Any]) -> None:
    app = create_app(NOWHERE, **{"token": TOKEN, **options})
    browser = logged_in(app, options.get("read_token", TOKEN))

    assert browser.post("/logout").status_code == 403
    assert code(browser) == 200
    given = {"csrf_token": cookie(browser, access.CSRF_COOKIE)}
    assert browser.post("/logout", data=given).status_code == 303
    assert code(browser) == 401


def test_odd_cookies_of_others_log_nobody_out() -> None:
    browser = logged_in(create_app(NOWHERE, token=TOKEN))
    (name,) = create_app(NOWHERE, token=TOKEN).extensions[current.EXTENSION]["access"].cookies
    header = f'a b=c d; {{"x": 1}}; é=\xff; ; {name}={cookie(browser, name)}; z'

    other = create_app(NOWHERE, token=TOKEN).test_client(use_cookies=False)
    assert code(other, environ_overrides={"HTTP_COOKIE": header}) == 200


def test_the_login_of_a_reader_reads_alone() -> None:
    app = create_app(NOWHERE, token=TOKEN, read_token=READ_TOKEN)
    browser = logged_in(app, READ_TOKEN)

    assert code(browser) == 200
    given = {"X-CSRF-Token": cookie(browser, access.CSRF_COOKIE)}
    assert browser.post("/api/jobs/cancel", json={"ids": []}, headers=given).status_code == 403
    given = {"X-CSRF-Token": cookie(logged_in(app), access.CSRF_COOKIE)}
    assert logged_in(app).post("/api/jobs/cancel", json={"ids": []}, headers=given).status_code == 403


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 403),
        ({"X-CSRF-Token": "y" * 22}, 403),
        ({"X-CSRF-Token": ""}, 403),
        (OURS, 200),
        ({**OURS, "Sec-Fetch-Site": "same-origin"}, 200),
        ({**OURS, "Sec-Fetch-Site": "same-origin", "Origin": "https://renamed.by.a.proxy"}, 200),
        ({**OURS, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**OURS, "Sec-Fetch-Site": "same-site"}, 403),
        ({**OURS, "Sec-Fetch-Site": "none"}, 403),
        ({**OURS, "Origin": "http://localhost"}, 200),
        ({**OURS, "Origin": "http://evil.example"}, 403),
        ({**OURS, "Origin": "http://localhost:1"}, 403),
        ({**OURS, "Origin": "null"}, 403),
        ({**OURS, "Origin": "http://[::1"}, 403),
    ],
)
@pytest.mark.parametrize("how", ["login", "host", "anonymous"])
def test_a_write_has_to_come_from_a_page_of_ours(how: str, headers: dict[str, str], expected: int) -> None:
    ways: dict[str, dict[str, Any]] = {
        "login": {"token": TOKEN},
        "host": {"authorize": lambda _: Grant(Role.WRITE, "ada")},
        "anonymous": {"anonymous": Role.WRITE},
    }
    app = create_app(NOWHERE, **ways[how])
    browser = logged_in(app) if how == "login" else app.test_client()
    browser.set_cookie(access.CSRF_COOKIE, CSRF)

    assert browser.post("/api/jobs/cancel", json={"ids": []}, headers=headers).status_code == expected
    if expected == 200:
        form = {"csrf_token": CSRF}
        assert browser.post("/api/jobs/cancel", data=form).status_code == 415  # let in, and no JSON


@pytest.mark.parametrize("secret", ["", "x", "x" * 21])
def test_a_short_secret_of_a_form_is_none(secret: str) -> None:
    browser = create_app(NOWHERE, anonymous=Role.WRITE).test_client()
    browser.set_cookie(access.CSRF_COOKIE, secret)

    answer = browser.post("/api/jobs/cancel", json={"ids": []}, headers={"X-CSRF-Token": secret})

    assert answer.status_code == 403


def test_tokens_are_guessed_slowly() -> None:
    app = create_app(NOWHERE, token=TOKEN)
    browser = app.test_client()
    browser.get("/login")
    given = {"csrf_token": cookie(browser, access.CSRF_COOKIE)}

    codes = [browser.post("/login", data={**given, "token": str(n)}).status_code for n in range(access.GUESSES)]
    answer = browser.post("/login", data={**given, "token": TOKEN})

    assert codes == [401] * access.GUESSES
    assert answer.status_code == 429
    assert 0 < int(answer.headers["Retry-After"]) <= access.WINDOW
    elsewhere = browser.post("/login", data={**given, "token": TOKEN}, environ_overrides={"REMOTE_ADDR": "10.0.0.2"})
    assert elsewhere.status_code == 303
    assert code(app.test_client(), headers=bearer()) == 200


def test_wrong_tokens_are_forgotten_after_a_while_and_of_too_many_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    guesses = access.Guesses(lambda: now)
    for _ in range(access.GUESSES):
        guesses.check("a")
        guesses.note("a")
    with pytest.raises(access.Throttled, match="try again in 61 s"):
        guesses.check("a")
    now = access.WINDOW
    guesses.check("a")

    monkeypatch.setattr(access, "ADDRESSES", 3)
    for address in "bcde":
        guesses.note(address)
    assert set(guesses._times) == {"c", "d", "e"}


# -- what each answer carries


@pytest.mark.parametrize(("path", "expected"), [(DOCUMENT, 200), ("/api/jobs", 503), ("/api/x", 404)])
def test_every_answer_is_protected(path: str, expected: int) -> None:
    answer = client(token=TOKEN).get(path, headers=bearer())

    assert answer.status_code == expected
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert client().get("/").headers["X-Frame-Options"] == "DENY"


def test_where_the_database_is_down_the_answer_says_so_and_the_log_says_more(caplog: pytest.LogCaptureFixture) -> None:
    answer = client(token=TOKEN).get("/api/topics", headers=bearer())

    assert answer.status_code == 503
    assert answer.get_json()["detail"] == "the database can't be reached"
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "sqlalchemy_brooq.web")
    assert "'/api/topics' could not be answered" in record.getMessage()
    assert "127.0.0.1" in record.getMessage()


def test_what_the_server_itself_says_is_told(engine: Engine) -> None:
    found = Program(engine, schema="nowhere").get("topics", 503)

    assert found["detail"] == 'the database can\'t be asked: relation "nowhere.job" does not exist'


# -- the log


def test_each_change_is_a_line_in_the_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sqlalchemy_brooq.web.audit")
    (job_id,) = put(engine, "dead", payload="'\"secret\"'")
    put(engine, "pending", count=3, topic="mail", payload='\'{"card": "secret"}\'')
    program = Program(engine)

    program.post(f"jobs/{job_id}/replay")
    program.post("jobs/cancel", {"filter": {"topics": ["mail", "a\nb"], "payload": {"card": "secret"}}, "expected": 9})
    program.post("jobs/cancel", {"filter": {"topics": ["mail"]}, "expected": 0}, 200)
    program.post("jobs/cancel", {"filter": {"topics": ["mail"]}, "dry_run": True})

    first, second, third = caplog.records
    assert first.getMessage() == f"token at 127.0.0.1 replayed 1: {job_id}"
    assert second.getMessage() == (
        r"token at 127.0.0.1 canceled 3: topics=mail,'a\nb' states=pending,processing,failed payload=card"
    )
    assert (second.who, second.event, second.count) == ("token at 127.0.0.1", "canceled", 3)  # type: ignore[attr-defined]
    assert third.count == 0  # type: ignore[attr-defined]
    assert "secret" not in caplog.text


def test_who_it_was_can_t_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sqlalchemy_brooq.web.audit")
    app = create_app(NOWHERE, authorize=lambda _: Grant(Role.WRITE, "eve\n2026-12-01 INFO root canceled"))
    browser = app.test_client()
    browser.set_cookie(access.CSRF_COOKIE, CSRF)

    browser.post("/api/jobs/cancel", json={"ids": []}, headers=OURS)

    (record,) = caplog.records
    assert "\n" not in record.getMessage()


def test_an_engine_of_another_driver_and_a_schema_are_understood(engine: Engine) -> None:
    put(engine, "pending")
    creators: dict[str, Callable[[URL], Any]] = {"psycopg2": create_engine, "asyncpg": create_async_engine}
    for driver, create in creators.items():
        app = create_app(create(engine.url.set(drivername=f"postgresql+{driver}")), token=TOKEN, schema="public")
        assert len(Program(app).get("jobs")["jobs"]) == 1
        app.extensions[current.EXTENSION]["engine"].dispose()
