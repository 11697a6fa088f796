"""
What a user would notice is a file of its own until a release, and each can be put into the changelog as it is.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.servers import ROOT

CHANGES = ROOT / "docs/changes"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
KINDS = [kind["directory"] for kind in SETTINGS["type"]]
NAME = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(KINDS)})\.md")


def problems(name: str, text: str) -> list[str]:
    """
    Return what is wrong with a change called *name* that says *text*.
    """
    found = {
        f"its name is not like +two-words.added.md: {name}": not NAME.fullmatch(name),
        "it is no sentence with a line's end": not re.fullmatch(r"\S.*[.)`]\n", text, re.DOTALL),
        "it has a heading or a list: a change is one entry": re.search(r"^\s*([#*+-]|\d+\.) ", text, re.MULTILINE),
        "it is longer than a reader wants": len(text) > 600,
        "a line is longer than 118 characters": any(len(line) > 118 for line in text.splitlines()),
    }
    return [problem for problem, is_so in found.items() if is_so]


@pytest.mark.parametrize("file", sorted(CHANGES.glob("[!.]*")), ids=lambda file: file.name)
def test_a_change_is_well_formed(file: Path) -> None:
    assert problems(file.name, file.read_text()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("reference.added.md", "A thing.\n"),
        ("+reference.md", "A thing.\n"),
        ("+reference.new.md", "A thing.\n"),
        ("+reference.added.md", ""),
        ("+reference.added.md", "A thing\n"),
        ("+reference.added.md", "- A thing.\n"),
        ("+reference.added.md", "# A thing.\n"),
        ("+reference.added.md", f"{'A thing. ' * 20}\n"),
    ],
)
def test_a_change_that_is_not_well_formed_is_noticed(name: str, text: str) -> None:
    assert problems(name, text) != []


def test_a_release_writes_below_the_mark() -> None:
    changelog = (ROOT / SETTINGS["filename"]).read_text()

    assert changelog.count(SETTINGS["start_string"]) == 1
    assert ROOT / SETTINGS["directory"] == CHANGES
