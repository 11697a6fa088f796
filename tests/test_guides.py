"""
The how-to guides are true: each is followed block by block. Beside ``test_docs``, so that two processes share the work.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import Reader, asks_for_something, makes_the_table
from tests.servers import ROOT

GUIDES = [page for page in sorted((ROOT / "docs/how-to").glob("*.md")) if asks_for_something(page)]


def name(path: Path) -> str:
    return path.stem


@pytest.mark.slow
@pytest.mark.timeout(300)  # dozens of processes, one after the other, on a machine that may be busy
@pytest.mark.parametrize("page", GUIDES, ids=name)
def test_a_guide_works_as_it_is_written(
    request: pytest.FixtureRequest, tmp_path: Path, installed: Path, page: Path
) -> None:
    database = "empty_database_url" if makes_the_table(page) else "database_url"

    with Reader(tmp_path, request.getfixturevalue(database), path=(installed, ROOT)) as reader:
        reader.follow(page)
