"""
What stands in ``docs/deploy``: it says what the code says, its own tools take it, and its commands work.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click import Command
from sqlalchemy import URL

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.cli import main
from sqlalchemy_brooq.cli.endings import REFUSED
from sqlalchemy_brooq.cli.settings import URL_FILE, URL_VARIABLE
from sqlalchemy_brooq.environment import TOKEN
from sqlalchemy_brooq.settings import SETTINGS
from sqlalchemy_brooq.worker.engine import FLUSH, JOIN, OBEY
from tests.commands import COMMAND, RunningWorker, get, shown
from tests.pages import blocks
from tests.servers import ROOT
from tests.test_monitoring import labels_of_samples

DEPLOY: Final = ROOT / "docs/deploy"
GUIDE: Final = ROOT / "docs/how-to/deploy.md"
FILES: Final = sorted(DEPLOY.iterdir())
UNIT: Final = DEPLOY / "shop-worker.service"
DOCKERFILE: Final = DEPLOY / "Dockerfile"
MANIFEST: Final = DEPLOY / "kubernetes.yaml"
PROGRAM: Final = "/srv/shop/.venv/bin/brooq-worker"
RUN: Final = (*COMMAND, "run")
MOST_EXPOSED: Final = 20
"""What `systemd-analyze security` may say, times ten: below 2 everything that can be taken away is."""


def name(path: Path) -> str:
    return path.name


def unit() -> list[tuple[str, str]]:
    lines = [line for line in UNIT.read_text().splitlines() if line and line[0] not in "#["]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def unit_values(key: str) -> list[str]:
    return [value for found, value in unit() if found == key]


def instruction(keyword: str) -> str:
    """
    Return the last instruction of the Dockerfile that begins with *keyword*, on one line and without it.
    """
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return [line.removeprefix(keyword).strip() for line in text.splitlines() if line.startswith(f"{keyword} ")][-1]


def health_check() -> list[str]:
    command: list[str] = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    return command


def objects() -> dict[str, dict[str, Any]]:
    return {found["kind"]: found for found in yaml.safe_load_all(MANIFEST.read_text()) if found}


def pod(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = objects()[kind]["spec"]["template"]["spec"]
    return found


def container(kind: str) -> dict[str, Any]:
    (found,) = pod(kind)["containers"]
    return dict(found)


def variables() -> dict[str, dict[str, str]]:
    """
    Return the variables that each file gives its worker.
    """
    return {
        UNIT.name: dict(value.split("=", 1) for value in unit_values("Environment")),
        DOCKERFILE.name: dict([instruction("ENV").split("=", 1)]),
        MANIFEST.name: {entry["name"]: entry["value"] for entry in container("Deployment")["env"]},
    }


def commands() -> list[list[str]]:
    """
    Return what follows ``brooq-worker`` wherever it is run.
    """
    return [
        shlex.split(unit_values("ExecStart")[0])[1:],
        json.loads(instruction("CMD")),
        container("Deployment")["args"],
        container("Job")["args"],
    ]


def settings(given: Mapping[str, str]) -> brooq.Config:
    return brooq.Config.from_env({key: value for key, value in given.items() if not key.endswith("_FILE")})


@pytest.mark.parametrize("file", FILES, ids=name)
def test_every_variable_that_is_named_exists(file: Path) -> None:
    known = {URL_VARIABLE, URL_FILE, TOKEN, f"{TOKEN}_FILE", *(row.variable for row in SETTINGS.values())}

    named = set(re.findall(r"\b(?:QUEUE|DATABASE)_[A-Z_]+", file.read_text()))

    assert named
    assert named <= known


def test_every_setting_has_a_value_that_is_accepted() -> None:
    for given in variables().values():
        settings(given)


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_option_that_is_given_exists(arguments: list[str]) -> None:
    command = main.commands[arguments[0]]
    assert isinstance(command, Command)

    command.make_context(arguments[0], arguments[1:]).close()


def test_every_supervisor_waits_for_longer_than_a_stop_takes() -> None:
    waits = {
        UNIT.name: [int(value) for value in unit_values("TimeoutStopSec")],
        DOCKERFILE.name: [int(value) for value in re.findall(r"--stop-timeout (\d+)", GUIDE.read_text())],
        MANIFEST.name: [pod("Deployment")["terminationGracePeriodSeconds"]],
        "compose": [int(value) for value in re.findall(r"stop_grace_period: (\d+)s", GUIDE.read_text())],
    }

    for file, (seconds,) in waits.items():
        given = variables()[DOCKERFILE.name if file == "compose" else file]
        assert "QUEUE_SHUTDOWN_GRACE" in given
        assert seconds > settings(given).shutdown_grace.total_seconds() + OBEY + FLUSH + JOIN, file


def test_the_guide_tells_how_long_a_stop_takes() -> None:
    text = GUIDE.read_text()

    assert f"then, up to {OBEY:g} s" in text
    assert f"then, up to {FLUSH + JOIN:g} s" in text
    assert OBEY + FLUSH + JOIN == 10, "'ten seconds', says the guide"


def test_the_unit_gives_the_worker_its_secrets_and_no_second_try_at_wrong_settings() -> None:
    assert [value.partition(":")[0] for value in unit_values("LoadCredential")] == [URL_VARIABLE, TOKEN]
    assert unit_values("RestartPreventExitStatus") == [str(REFUSED)]
    assert unit_values("KillMode") == ["mixed"]


def test_a_signal_reaches_the_worker_in_its_container() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["brooq-worker"]
    assert instruction("USER").split(":")[0] not in {"root", "0"}
    for kind in ("Job", "Deployment"):
        assert "command" not in container(kind), "the image's ENTRYPOINT"
        user = pod(kind)["securityContext"]
        assert f"{user['runAsUser']}:{user['runAsGroup']}" == instruction("USER")


def test_probes_ask_where_the_worker_answers() -> None:
    worker = container("Deployment")
    (port,) = worker["ports"]
    config = settings(variables()[MANIFEST.name])
    default = settings({}).listen
    assert default is not None

    assert config.listen == ("0.0.0.0", port["containerPort"])  # noqa: S104 - read, not listened on
    probes = {probe: worker[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")}
    assert {probe: asked["path"] for probe, asked in probes.items()} == {
        "readinessProbe": "/healthz",
        "livenessProbe": "/metrics",
    }
    assert {asked["port"] for asked in probes.values()} == {port["name"]}
    assert "http://{}:{}/healthz".format(*default) in health_check()[-1]


def test_the_secrets_of_the_pods_are_where_their_variables_say() -> None:
    for kind in ("Job", "Deployment"):
        (mount,) = container(kind)["volumeMounts"]
        files = [entry for entry in container(kind)["env"] if entry["name"].endswith("_FILE")]
        assert files
        for entry in files:
            assert entry["value"] == f"{mount['mountPath']}/{entry['name'].removesuffix('_FILE')}"
            assert f"--from-file={entry['name'].removesuffix('_FILE')}=" in MANIFEST.read_text()


def test_the_metric_that_the_guide_names_exists() -> None:
    assert set(re.findall(r"\bbrooq_\w+", GUIDE.read_text())) <= labels_of_samples().keys()


def test_the_guide_shows_every_file() -> None:
    shown_files = re.findall(r"\{literalinclude\} \.\./deploy/(\S+)", GUIDE.read_text())

    assert sorted(shown_files) == [file.name for file in FILES]


@pytest.mark.parametrize("place", ["CREDENTIALS_DIRECTORY", URL_FILE])
def test_the_program_and_the_health_check_of_the_guide_work(tmp_path: Path, database_url: URL, place: str) -> None:
    program = next(block.text for block in blocks(GUIDE) if block.text.startswith("# jobs.py\n"))
    (tmp_path / "jobs.py").write_text(program)
    (file := tmp_path / URL_VARIABLE).write_text(shown(database_url) + "\n")

    found = {place: str(file if place == URL_FILE else tmp_path)}
    with RunningWorker("jobs:queue", cwd=tmp_path, stdout=None, command=RUN, **found) as worker:
        address = worker.url("/healthz")
        assert get(address)[0] == 200
        _, option, code = health_check()
        here = [sys.executable, option, code.replace("http://127.0.0.1:8090/healthz", address)]
        assert subprocess.run(here, check=False).returncode == 0
        assert worker.end() == 0
    assert subprocess.run(here, capture_output=True, check=False).returncode == 1


def tool(command: str, otherwise: str) -> str:
    """
    Return the path of *command*; skip the test, and say what was looked at *otherwise*, where it is not installed.
    """
    found = shutil.which(command) or shutil.which(command, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{command} is not installed: {otherwise}")
    return found


def said(*command: str) -> str:
    """
    Return what *command* prints; fail if it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_the_unit_and_finds_it_well_closed(tmp_path: Path) -> None:
    systemd = tool("systemd-analyze", "the unit's values were compared with the code only")
    # It wants a program that exists.
    (copy := tmp_path / UNIT.name).write_text(UNIT.read_text().replace(PROGRAM, sys.executable))

    assert UNIT.name not in said(systemd, "verify", str(copy))
    said(systemd, "security", "--offline=yes", f"--threshold={MOST_EXPOSED}", str(copy))


def test_hadolint_has_nothing_to_say_about_the_dockerfile() -> None:
    hadolint = tool("hadolint", "the Dockerfile's instructions were compared with the code only")

    assert said(hadolint, "--no-color", str(DOCKERFILE)) == ""


def test_kubectl_knows_every_field_of_the_manifest(tmp_path: Path) -> None:
    """
    To change one, it reads the object as what it is, and without a cluster: fields that it doesn't know are gone then.
    """
    kubectl = tool("kubectl", "the manifest was parsed as YAML only")

    for found in objects().values():
        (file := tmp_path / "object.yaml").write_text(yaml.safe_dump(found))
        written = said(kubectl, "set", "serviceaccount", "--local", "-f", str(file), "some", "-o", "yaml")
        assert missing(found, yaml.safe_load(written)) == []


def missing(asked: Any, known: Any, place: str = "") -> list[str]:
    """
    Return the places in *asked* that aren't in *known*.
    """
    if isinstance(asked, dict):
        below = [missing(value, known.get(key), f"{place}/{key}") for key, value in asked.items()]
    elif isinstance(asked, list):
        assert len(asked) == len(known), place
        below = [missing(*pair, f"{place}/{at}") for at, pair in enumerate(zip(asked, known, strict=True))]
    else:
        return [] if asked == known else [place]
    return [found for places in below for found in places]


def test_kubeconform_takes_the_manifest() -> None:
    kubeconform = tool("kubeconform", "kubectl's own reading has to do")

    done = subprocess.run([kubeconform, "-strict", str(MANIFEST)], capture_output=True, text=True, check=False)

    if "downloading schema" in done.stdout + done.stderr:
        pytest.skip("kubeconform can't download its schemas: kubectl's own reading has to do")
    assert done.returncode == 0, done.stdout + done.stderr
