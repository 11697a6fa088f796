"""
What the pages say about what was done, and whose clock they go by; without a browser.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Self
from uuid import UUID, uuid4

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Engine, text

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import operations
from sqlalchemy_brooq.web import Role, access, create_app
from sqlalchemy_brooq.web.reading import Answer
from tests.test_browse import put

CSRF = "x" * 22
HELD = "somebody else&#39;s transaction holds this job. Try again."


@pytest.fixture
def browser(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    monkeypatch.setattr(operations, "PAUSES", ())
    client = create_app(engine, anonymous=Role.WRITE).test_client()
    client.set_cookie(access.CSRF_COOKIE, CSRF)
    return client


def said(browser: FlaskClient, job_id: UUID, action: str) -> tuple[int, str]:
    """
    Do it with the form of the job's page, and return the code and the text of where that leads.
    """
    answer = browser.post(f"/jobs/{job_id}/{action}", data={"csrf_token": CSRF}, follow_redirects=True)
    return answer.status_code, answer.text


@pytest.mark.parametrize(("action", "state"), [("cancel", "pending"), ("replay", "dead")])
def test_a_job_that_somebody_else_holds_is_not_said_to_be_changed(
    engine: Engine, browser: FlaskClient, action: str, state: str
) -> None:
    (job_id,) = put(engine, state)
    with engine.connect() as consumer:
        {"cancel": brooq.cancel, "replay": brooq.replay}[action](consumer, job_id)

        assert HELD in said(browser, job_id, action)[1]
        consumer.rollback()

    assert HELD not in said(browser, job_id, action)[1]


def test_a_job_that_can_t_be_changed_is_said_to_be_so(engine: Engine, browser: FlaskClient) -> None:
    (waits,), (over,) = put(engine, "pending"), put(engine, "done")

    assert "in another state by now" in said(browser, waits, "replay")[1]
    assert "over already" in said(browser, over, "cancel")[1]
    assert "Canceled." in said(browser, waits, "cancel")[1]
    for action in ("cancel", "replay"):
        code, page = said(browser, uuid4(), action)
        assert (code, "Canceled." in page) == (404, False)


def test_ages_go_by_the_clock_of_the_database(
    engine: Engine, browser: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(2020, 1, 1, tzinfo=tz)

    monkeypatch.setattr("sqlalchemy_brooq.web.pages.datetime", Slow)
    put(engine, "done", updated_at="now() - interval '10 min 5 s'")
    put(engine, "processing")
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET claimed_at = now() - interval '20 min 5 s' WHERE state = 'processing'"))

    assert "the oldest one ended 10m" in browser.get("/retention").text
    # Also where it isn't known what is in flight.
    monkeypatch.setattr("sqlalchemy_brooq.web.reading.Reading.in_flight", lambda *_: Answer(None, "that took too long"))
    assert "20m" in browser.get("/parts/flight").text
