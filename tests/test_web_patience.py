"""
A database that doesn't answer: what the dashboard says then, for how long it waits, and whom it asks again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event

from sqlalchemy_brooq.web import kept as keeping
from sqlalchemy_brooq.web.kept import FRESH, Kept, Unreachable
from sqlalchemy_brooq.web.patience import Limited
from sqlalchemy_brooq.worker.connection import CONNECT
from tests.deaf import muted
from tests.web import Program

SECOND = timedelta(seconds=1)


@pytest.fixture
def fragile(database_url: URL) -> Iterator[tuple[Engine, Event]]:
    """
    An engine, and what silences the server that it asks.
    """
    with muted(database_url) as (url, silent):
        engine = create_engine(url)
        yield engine, silent
        engine.dispose()


def test_a_server_that_falls_silent_is_given_up_and_asked_again(
    fragile: tuple[Engine, Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, silent = fragile
    monkeypatch.setattr("sqlalchemy_brooq.web.app.PATIENCE", timedelta(seconds=0.2))
    program = Program(engine)
    program.get("holders")
    silent.set()

    assert program.get("holders", 503)["detail"] == "the database can't be reached"
    silent.clear()
    assert program.get("holders") == {"holders": []}


def test_a_host_that_doesn_t_answer_is_given_up_and_the_consumer_s_own_limit_holds(database_url: URL) -> None:
    seen: list[Any] = []
    for arguments in ({}, {"connect_timeout": 77}):
        engine = create_engine(database_url, connect_args=arguments)
        transactions = Limited(engine, SECOND)
        event.listen(engine, "do_connect", lambda *given: seen.append(given[3].get("connect_timeout")))
        with transactions():
            pass
        engine.dispose()
        engine.connect().close()  # by somebody else: nothing of ours holds
        engine.dispose()

    assert seen == [CONNECT, None, 77, 77]


def test_the_age_of_an_answer_counts_from_when_it_was_found() -> None:
    now = 0.0
    found = 0

    def find() -> int:
        nonlocal now, found
        now += 5
        found += 1
        return found

    kept = Kept(lambda: now)

    assert [kept.answer("a", SECOND, find) for _ in range(3)] == [1, 1, 1]
    now += 1
    assert kept.answer("a", SECOND, find) == 2


def test_that_nobody_answers_is_shared_for_a_moment() -> None:
    now = 0.0
    asked = 0

    def find() -> int:
        nonlocal asked
        asked += 1
        raise Unreachable("down", "at 10.0.0.1")

    kept = Kept(lambda: now)
    for _ in range(3):
        with pytest.raises(Unreachable, match="down"):
            kept.answer("a", 100 * SECOND, find)
    assert asked == 1

    now += FRESH.total_seconds()
    assert kept.answer("a", SECOND, lambda: "back") == "back"


def test_answers_that_are_too_old_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    kept = Kept(lambda: now)
    for name in "ab":
        kept.answer(name, SECOND, str)
    now = 1.0
    kept.answer("c", SECOND, str)
    assert {*kept._slots} == {"c"}

    monkeypatch.setattr(keeping, "MOST_KEPT", 3)
    for name in "defgh":
        kept.answer(name, SECOND, str)
        assert len(kept._slots) <= 3
