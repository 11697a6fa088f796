"""
A connection of the engine's own, by itself: its errors, its transactions, and which failures of a server pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine, func, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from sqlalchemy_brooq.worker.connection import PrivateConnection, await_server

LIMIT = 10.0


@pytest.fixture
def connection(engine: Engine) -> Iterator[PrivateConnection]:
    made = PrivateConnection(engine)
    yield made
    made.close()


def test_rows_and_transactions_may_follow_each_other(connection: PrivateConnection) -> None:
    in_transaction = select(func.pg_current_xact_id_if_assigned().is_not(None), func.pg_backend_pid())
    begun = text("SELECT pg_current_xact_id()")
    found = []

    for _ in range(2):
        connection.rows(begun, {}, limit=LIMIT)
        found.append(connection.rows(in_transaction, {}, limit=LIMIT)[0])
        with connection.transaction(limit=LIMIT) as lent:
            lent.execute(begun)
            found.append(lent.execute(in_transaction).one())

    # One statement is a transaction, as long as nobody lends the connection for a longer one.
    assert [row[0] for row in found] == [False, True, False, True]
    assert len({row[1] for row in found}) == 1  # none of it cost the connection


def test_what_follows_a_transaction_that_broke_a_constraint_is_committed(
    connection: PrivateConnection, engine: Engine
) -> None:
    with engine.begin() as other:
        other.execute(text("CREATE TABLE probe (n int PRIMARY KEY)"))
    put = text("INSERT INTO probe VALUES (1) RETURNING n")
    with pytest.raises(IntegrityError), connection.transaction(limit=LIMIT) as lent:
        for _ in range(2):
            lent.execute(put)

    connection.rows(put, {}, limit=LIMIT)

    with engine.connect() as other:
        assert other.scalar(text("SELECT count(*) FROM probe")) == 1


def test_a_connection_that_can_not_be_made_is_an_error_of_sqlalchemys() -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nowhere")
    connection = PrivateConnection(engine)

    with pytest.raises(OperationalError) as caught:
        connection.rows(select(1), {}, limit=LIMIT)

    assert isinstance(caught.value.orig, psycopg.OperationalError)
    connection.close()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (psycopg.errors.AdminShutdown, "FATAL:  die Verbindung wird auf Anweisung des Administrators abgebrochen"),
        (psycopg.errors.CannotConnectNow, "FATAL:  das Datenbanksystem startet"),
        (psycopg.errors.TooManyConnections, "FATAL:  tut mir leid, schon zu viele Verbindungen"),
    ],
)
def test_a_server_of_any_language_is_waited_for_by_its_code(
    database_url: URL, monkeypatch: pytest.MonkeyPatch, kind: type[psycopg.OperationalError], text: str
) -> None:
    monkeypatch.setattr("sqlalchemy_brooq.worker.connection.FIRST_PAUSE", 0.01)
    engine = create_engine(database_url)
    asked = []

    def check(_: object) -> None:
        asked.append(1)
        if len(asked) == 1:
            raise OperationalError("SELECT", None, kind(text))

    await_server(engine, check)

    assert len(asked) == 2
    engine.dispose()


def test_a_server_that_refuses_for_good_is_not_waited_for(database_url: URL) -> None:
    engine = create_engine(database_url)

    def check(_: object) -> None:
        raise OperationalError("SELECT", None, psycopg.errors.InvalidPassword("no words that are known"))

    with pytest.raises(OperationalError):
        await_server(engine, check)
    engine.dispose()
