"""
The pytest plugin of sqlalchemy-brooq: fixtures for `sqlalchemy_brooq.testing`.

pytest imports this in every run of everybody who has the library installed. So it stands outside of the package, whose
import takes SQLAlchemy along, and imports that only for a test that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from sqlalchemy_brooq import Queue


@pytest.fixture
def brooq_queue() -> Queue:
    """
    Ask for the application's queue: define a fixture of this name that returns it.
    """
    text = "brooq_session needs to know your queue: define a fixture brooq_queue in your conftest.py that returns it"
    pytest.fail(text, pytrace=False)


@pytest.fixture
def brooq_session(brooq_queue: Queue) -> Iterator[Session]:
    """
    Lend a session in a transaction that is rolled back after the test, with all that the application has written.
    """
    from sqlalchemy_brooq.testing import rolled_back

    with rolled_back(brooq_queue) as session:
        yield session
