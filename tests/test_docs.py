"""
The documentation is true: its pages are followed block by block, and its tables say what the code says.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.pages import ACTING, Reader, blocks
from tests.servers import ROOT

DOCS = ROOT / "docs"


@pytest.fixture
def reader(tmp_path: Path, empty_database_url: URL) -> Iterator[Reader]:
    with Reader(tmp_path, empty_database_url) as reader:
        yield reader


PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))


def asks_for_something(page: Path) -> bool:
    return any(block.is_run and block.language in ACTING for block in blocks(page))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if asks_for_something(page)], ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_works_as_it_is_written(reader: Reader, page: Path) -> None:
    reader.follow(page)
