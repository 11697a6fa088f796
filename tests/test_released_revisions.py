"""
A released revision never changes: databases out there have run it as it was.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

import sqlalchemy_brooq.migrations

VERSIONS: Final = Path(sqlalchemy_brooq.migrations.__file__).parent / "versions"

#: Each revision, and the digest of its file. A new one is added here when it is released; none is ever changed.
RELEASED: Final = {
    "brooq0001_job.py": "2e8af1572dd51425236348b288cc79fe4d3c604e9da58decd36ffba6048aec9f",
}


def test_a_released_revision_is_as_it_was() -> None:
    found = {
        str(path.relative_to(VERSIONS)): sha256(path.read_bytes()).hexdigest()
        for path in VERSIONS.rglob("*.py")
        if path.name != "__init__.py"
    }

    assert found == RELEASED
