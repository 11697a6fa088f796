"""
The documentation is true: its pages are followed block by block, and its tables say what the code says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.pages import Reader
from tests.servers import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def reader(tmp_path: Path, empty_database_url: URL) -> Iterator[Reader]:
    with Reader(tmp_path, empty_database_url) as reader:
        yield reader


def test_the_tutorial_works_as_it_is_written(reader: Reader) -> None:
    reader.follow(DOCS / "tutorial.md")
