"""
The benchmark's environments and its peers' processes: nothing is installed here, and no network is used.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.benchmark import environments
from tests.benchmark.children import running
from tests.benchmark.contestants import Contestant, find
from tests.benchmark.contestants.peers import SETUPS, Peer
from tests.benchmark.environments import COMPLETE, HOME_VARIABLE, CannotBeMade, Environment
from tests.benchmark.orders import Bulk
from tests.benchmark.publish import PARTS, PEERS
from tests.benchmark.report import about
from tests.benchmark.runner import measurements
from tests.benchmark.servers import Lab

HALVES = Path(__file__).parent / "benchmark" / "peers"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """
    The commands that would be run; a ``venv`` leaves a folder behind, and pip says what it has installed.
    """
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    monkeypatch.setattr(environments, "_REFUSED", {})
    ran: list[tuple[str, ...]] = []

    def run(*command: str) -> str:
        ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        if "install" in command and "broken==1" in command:
            raise CannotBeMade("pip ended with exit code 1: no such version")
        return json.dumps([{"name": "Queue", "version": "1.0"}]) if "list" in command else "3.11.7\n"

    monkeypatch.setattr(environments, "_run", run)
    return ran


def test_an_environment_is_made_once(commands: list[tuple[str, ...]], tmp_path: Path) -> None:
    environment = Environment("queue", ("queue==1.0",))

    first, made = environment.python(), len(commands)
    again = environment.python()

    assert first == again == str(environment.folder / "bin" / "python")
    assert environment.folder.is_relative_to(tmp_path / "home")
    assert len(commands) == made
    assert next(command for command in commands if "install" in command)[-1] == "queue==1.0"
    assert environment.versions() == {"queue": "1.0", "python": "3.11.7"}


def test_a_half_made_environment_is_made_again(commands: list[tuple[str, ...]]) -> None:
    environment = Environment("queue", ("queue==1.0",))
    left = environment.folder / "lib" / "left over"
    left.mkdir(parents=True)

    environment.python()

    assert not left.exists()
    assert (environment.folder / COMPLETE).exists()


@pytest.mark.usefixtures("commands")
def test_other_requirements_are_another_environment() -> None:
    assert Environment("queue", ("queue==1.0",)).folder != Environment("queue", ("queue==1.1",)).folder


def test_what_cannot_be_installed_is_tried_once_a_run_and_told(commands: list[tuple[str, ...]]) -> None:
    environment = Environment("broken", ("broken==1",))

    for _ in range(2):
        with pytest.raises(CannotBeMade, match="no such version"):
            environment.python()

    assert len([command for command in commands if "install" in command]) == 1
    assert not (environment.folder / COMPLETE).exists()


@pytest.mark.usefixtures("commands")
def test_a_python_that_is_too_old_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotBeMade, match=r"needs Python 4\.0 or later.*BROOQ_BENCH_PYTHON can name one"):
        environments.find_python((4, 0))

    assert environments.find_python(sys.version_info[:2]) == sys.executable


def test_a_peer_that_cannot_take_part_stands_in_the_report_with_the_reason(
    commands: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Environment("broken", ("broken==1",))
    peer = find("peers:oban")
    assert isinstance(peer, Peer)
    monkeypatch.setattr(peer, "setup", replace(SETUPS["oban"], environment=broken))

    facts = about([cast(Contestant, peer)], [], cast(Lab, NoLab()))

    assert facts["oban"] == "can't take part: pip ended with exit code 1: no such version"


class NoLab:
    """
    A server of which nothing is known.
    """

    def settings(self) -> Mapping[str, str]:
        return {}


def test_a_process_that_dies_is_reported_with_its_last_words() -> None:
    here = Here("awa")  # whose half can't be imported in this environment
    here.spec = "peers:awa"
    died = r"peers:awa Bulk ended too early, with exit code 1: ModuleNotFoundError: .*awa"

    with pytest.raises(RuntimeError, match=died), running(cast(Contestant, here), Bulk("postgresql:///nowhere", 1)):
        pass


class Here(Peer):
    """
    A peer whose processes run in this environment.
    """

    @property
    def python(self) -> str:
        return sys.executable


def test_every_setup_is_pinned_and_has_a_reason() -> None:
    for name, setup in SETUPS.items():
        assert all("==" in requirement for requirement in setup.environment.requirements), name
        assert "(" in setup.settings, f"{name}: each setting is to have its reason behind it"


def test_a_peer_s_half_imports_nothing_of_ours_but_plain_modules() -> None:
    """
    Its environment has neither SQLAlchemy nor this library.
    """
    plain = ("contestants", "contestants.peers", "environments", "marks", "orders", "peers")
    files = [*HALVES.glob("*.py"), *(HALVES.parent / f"{name}.py" for name in ("contestants/peers", "marks", "orders"))]

    for file in files:
        modules = {node.module for node in ast.parse(file.read_text()).body if isinstance(node, ast.ImportFrom)}
        ours = {module for module in modules if module and module.startswith(("tests", "sqlalchemy_brooq"))}
        assert ours <= {f"tests.benchmark.{name}" for name in plain}, file


def test_the_published_series_has_every_peer_in_three_repetitions() -> None:
    for name in ("queues", "bulk", "single"):
        part = PARTS[name]
        assert part.repeat >= 3
        assert set(PEERS) <= set(part.contestants)
    turns = [(contestant.name, turn) for _, _, contestant, turn in measurements(PARTS["bulk"].plan())]
    assert turns[: len(turns) // 3] == [(name, 0) for name, _ in turns[: len(turns) // 3]]
