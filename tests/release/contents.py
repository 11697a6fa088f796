"""
What the two archives of a release hold, and what they should: the files that git knows, each where it belongs.
"""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.servers import ROOT

PACKAGE: Final = "sqlalchemy_brooq"
PLUGIN: Final = f"{PACKAGE}/testing/plugin/"
"""What lies here is installed beside the package."""
NEEDED: Final = frozenset({f"{PACKAGE}/py.typed", f"{PACKAGE}/migrations/versions/brooq0001_job.py", "pytest_brooq.py"})
"""What everything depends on, said once more: a list that is made of files can't miss a file."""
ABOUT: Final = frozenset({"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"})
MADE: Final = frozenset({"PKG-INFO"})
"""What is in a source archive alone."""


def tracked(*folders: str) -> frozenset[str]:
    """
    Return the files below *folders* that git knows and that are there.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *folders], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    return frozenset(name for name in listed if name and (ROOT / name).exists())


def problems_of_wheel(names: Iterable[str], files: Iterable[str]) -> list[str]:
    """
    Return what is wrong with a wheel that holds *names*, where the package has *files*.
    """
    there = frozenset(names)
    about = frozenset(name.partition(".dist-info/")[2] for name in there if ".dist-info/" in name)
    code = frozenset(name for name in there if ".dist-info/" not in name)
    expected = frozenset(name.removeprefix(PLUGIN) for name in files)
    return [
        *_differences(code, expected | NEEDED, "the wheel"),
        *_differences(about, ABOUT, "the wheel's dist-info"),
    ]


def problems_of_sdist(names: Iterable[str], files: Iterable[str]) -> list[str]:
    """
    Return what is wrong with a source archive that holds *names*, where git knows *files*.
    """
    there = frozenset(name.partition("/")[2] for name in names)
    return _differences(there, frozenset(files) | MADE, "the source archive")


def _differences(there: frozenset[str], expected: frozenset[str], what: str) -> list[str]:
    missing = (f"{name} is missing from {what}" for name in sorted(expected - there))
    surplus = (f"{name} has no business in {what}" for name in sorted(there - expected))
    return [*missing, *surplus]


def names_in(archive: Path) -> list[str]:
    """
    Return the names of the files in *archive*.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return [name for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(archive) as source:
        return [member.name for member in source.getmembers() if member.isfile()]
