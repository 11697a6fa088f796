from __future__ import annotations

import payments
import pytest
import shop
from flask.testing import FlaskClient
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq


@pytest.fixture(scope="session", autouse=True)
def _tables() -> None:
    with shop.app.app_context():
        shop.db.create_all()  # `job` is there: the migrations have made it


@pytest.fixture
def brooq_queue() -> brooq.Queue:
    return shop.queue


@pytest.fixture
def client(brooq_session: Session) -> FlaskClient:
    # From here on, what `db.session` commits is a part of the transaction of brooq_session.
    return shop.app.test_client()


@pytest.fixture
def charged(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """
    The payments that were made, by their keys.
    """
    made: dict[str, str] = {}
    monkeypatch.setattr(payments, "charge", lambda customer, *, key: made.setdefault(key, customer))
    return made
