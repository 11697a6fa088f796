"""
What a run of the tests runs on, and whether that is what the name of its environment of tox promises.

A run in one of tox's environments outside the default list ends with the line that the reference keeps of it.
"""

from __future__ import annotations

import os
import platform
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

import psycopg
import pytest
from sqlalchemy import URL

from tests.servers import ROOT
from tests.shared import conninfo, server_of

PACKAGES: Final = ("sqlalchemy", "alembic", "psycopg", "prometheus-client", "click")
NEWEST_POSTGRESQL: Final = "18"
"""The major version that tests run on where neither a name nor a variable says otherwise."""


def environments() -> list[str]:
    """
    Return the names of tox's environments outside the default list, as ``tox.ini`` has them.
    """
    _, _, label = (ROOT / "tox.ini").read_text().partition("compatibility = \\\n")
    return re.findall(r"py3\d+-[\w-]+", label.partition("\n\n")[0])


def this_environment() -> str:
    """
    Return the name of the one of these that we are in; nothing where we aren't.
    """
    name = os.environ.get("TOX_ENV_NAME", "")
    return name if name in environments() else ""


def found(server: URL) -> dict[str, str]:
    """
    Return the versions of all that the reference names, of this process and of *server*.
    """
    with psycopg.connect(conninfo(server)) as connection:
        number = connection.info.server_version
    packages = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **packages, "postgresql": f"{number // 10_000}.{number % 10_000}"}


def floors() -> dict[str, str]:
    """
    Return the oldest version that we take of each package that we need, by ``pyproject.toml``.
    """
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return dict(re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", text).groups() for text in needed)  # type: ignore[union-attr, misc]


def promised(environment: str) -> dict[str, str]:
    """
    Return how the versions begin that the name of an *environment* promises.
    """
    return dict(_promises(environment))


def _promises(environment: str) -> Iterator[tuple[str, str]]:
    yield "postgresql", NEWEST_POSTGRESQL
    for factor in environment.split("-"):
        kind, digits = re.fullmatch(r"([a-z]+)(\d*)", factor).groups()  # type: ignore[union-attr]
        match kind:
            case "py" | "sqlalchemy":
                yield {"py": "python"}.get(kind, kind), f"{digits[0]}.{digits[1:]}"
            case "pg":
                yield "postgresql", digits
            case "floors":
                yield from floors().items()


def broken(promises: Mapping[str, str], versions: Mapping[str, str]) -> dict[str, str]:
    """
    Return those of *versions* that are none of what was promised.
    """
    return {
        name: versions[name]
        for name, beginning in promises.items()
        if versions[name].split(".")[: beginning.count(".") + 1] != beginning.split(".")
    }


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """
    Write the line that the reference keeps, with how many tests failed, should there be any.
    """
    if not (environment := this_environment()):
        return
    counts = [len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "skipped")]
    broke = [len(terminalreporter.stats.get(outcome, ())) for outcome in ("failed", "error")]
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    which = "all" if is_whole else "some"
    versions = found(server_of(config)).values()
    cells = [f"`{environment}`", *versions, which, *map(str, counts), f"{datetime.now(UTC):%Y-%m-%d}"]
    terminalreporter.section("for docs/reference/compatibility.md")
    terminalreporter.line(f"| {' | '.join(cells)} |" + (f" and {sum(broke)} failed" if any(broke) else ""))
