"""
The command ``web``: who it serves to, how it begins and ends, and its refusals.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.commands import COMMAND, RunningWorker, answered, brooq_worker, command_after, shown
from tests.test_browse import put
from tests.web import READ_TOKEN, TOKEN, bearer

SHOP = """
import os
import sqlalchemy as sa
import sqlalchemy_brooq as brooq

queue = brooq.Queue(sa.create_engine(os.environ["SHOP_URL"]), brooq.Config(retention_ttl="5d"))
"""


class Dashboard(RunningWorker):
    """
    ``brooq-worker web`` in the background; it is killed at the end of the block if it still runs.
    """

    def __init__(self, *arguments: str, cwd: Path, **variables: str) -> None:
        super().__init__(
            *arguments, cwd=cwd, stdout=None, command=(*COMMAND, "web", "--listen", "127.0.0.1:0"), **variables
        )

    @property
    def address(self) -> tuple[str, int, str]:
        """
        Host, port and path that it says it is at.
        """
        found = re.fullmatch(r"the dashboard is at http://([\d.]+):(\d+)(/\S*)", self.announcement())
        assert found, self.out
        return found[1], int(found[2]), found[3]

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
        """
        Return code, headers and body of an answer.
        """
        host, port, _ = self.address
        connection = HTTPConnection(host, port, timeout=10)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), body


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_serves_who_has_the_token_until_a_signal(engine: Engine, tmp_path: Path, number: int) -> None:
    (job_id,) = put(engine, "pending", payload='\'{"card": {"number": 1}}\'')
    (tmp_path / "token").write_text(f"{READ_TOKEN}\n")
    options = ("--mask", "card.number", "--read-token-file", "token")
    variables: Any = {"DATABASE_URL": shown(engine.url), "QUEUE_API_TOKEN": TOKEN}
    with Dashboard(*options, cwd=tmp_path, **variables) as dashboard:
        assert dashboard.ask("/api/jobs")[0] == 401
        code, headers, body = dashboard.ask(f"/api/jobs/{job_id}", **bearer(READ_TOKEN))
        assert (code, '"number": "\\u2022' in body) == (200, True)
        assert "waitress" not in str(headers).lower()
        assert dashboard.ask(f"/api/jobs/{job_id}/cancel", "POST", **bearer(READ_TOKEN))[0] == 403
        assert dashboard.ask(f"/api/jobs/{job_id}/cancel", "POST", **bearer())[0] == 200
        assert f"sqlalchemy_brooq.web.audit: token at 127.0.0.1 canceled 1: {job_id}\n" in dashboard.err
        host, port, _ = dashboard.address
        busy = brooq_worker("web", "--listen", f"{host}:{port}", cwd=tmp_path, **variables)
        assert (busy.code, busy.error) == (2, busy.error)
        assert busy.error.startswith(f"can't listen on {host}:{port}: Address already in use")
        with socket.create_connection((host, port)):  # who is connected and silent keeps nobody
            assert dashboard.end(number) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))


def test_it_serves_the_database_of_a_queue_and_knows_its_settings(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    variables = {"SHOP_URL": shown(engine.url), "QUEUE_API_TOKEN": TOKEN, "QUEUE_RETENTION_TTL_DEAD": "9d"}
    with Dashboard("shop:queue", "--read-only", "--log-format", "json", cwd=tmp_path, **variables) as dashboard:
        code, _, body = dashboard.ask("/api/retention", **bearer())
        assert (code, f'"done": {5 * 86_400}.0, "dead": {9 * 86_400}.0' in body) == (200, True)
        assert dashboard.ask("/api/jobs/cancel", "POST", **bearer())[0] == 403
        assert dashboard.end(signal.SIGTERM) == 0


def test_nobody_who_is_not_known_fills_the_disk_with_a_body(engine: Engine, tmp_path: Path) -> None:
    with Dashboard(cwd=tmp_path, QUEUE_API_TOKEN=TOKEN, DATABASE_URL=shown(engine.url)) as dashboard:
        code, *_ = dashboard.ask("/login", "POST", **{"Content-Length": str(1 << 30)})

        assert code == 413


def test_behind_a_proxy_it_believes_that_one_alone(engine: Engine, tmp_path: Path) -> None:
    (job_id,) = put(engine, "pending")
    variables = {"DATABASE_URL": shown(engine.url), "QUEUE_API_TOKEN": TOKEN}
    said = {"X-Forwarded-For": "10.0.0.9", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "jobs.example"}
    path = f"/queue/api/jobs/{job_id}/cancel"
    with Dashboard("--prefix", "/queue", "--trust-proxy", "127.0.0.1", cwd=tmp_path, **variables) as dashboard:
        assert dashboard.address[2] == "/queue/"
        assert dashboard.ask(path, "POST", **bearer(), **said)[0] == 200
        assert "token at 10.0.0.9 canceled" in dashboard.err
    with Dashboard("--prefix", "/queue", cwd=tmp_path, **variables) as dashboard:
        assert dashboard.ask(path, "POST", **bearer(), **said)[0] == 200
        assert "token at 127.0.0.1 canceled" in dashboard.err


def test_whoever_sits_at_this_machine_is_let_in_by_a_flag_and_a_proxy_s_clients_are_not(
    engine: Engine, tmp_path: Path
) -> None:
    with Dashboard("--anonymous", "read", cwd=tmp_path, DATABASE_URL=shown(engine.url)) as dashboard:
        assert dashboard.ask("/api/jobs")[0] == 200
        assert dashboard.ask("/api/jobs", Host="evil.example")[0] == 403
        assert dashboard.ask("/api/jobs", **{"X-Forwarded-For": "10.0.0.9"})[0] == 403


REFUSED: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "no token": ((), {}, "there is no token: set QUEUE_API_TOKEN"),
    "public": (("--listen", "0.0.0.0:0"), {"QUEUE_API_TOKEN": TOKEN}, "--listen: '0.0.0.0' is not a loopback"),
    "public, no token": (("--listen", "[::]:0"), {"QUEUE_ALLOW_PUBLIC": "1"}, "there is no token"),
    "public, anonymous": (
        ("--listen", "0.0.0.0:0", "--anonymous", "read"),
        {"QUEUE_ALLOW_PUBLIC": "1", "QUEUE_API_TOKEN": TOKEN},
        "--anonymous is for this machine alone",
    ),
    "proxy, anonymous": (("--trust-proxy", "127.0.0.1", "--anonymous", "read"), {}, "--anonymous is for this machine"),
    "public, short token": (
        ("--listen", "0.0.0.0:0"),
        {"QUEUE_ALLOW_PUBLIC": "1", "QUEUE_API_TOKEN": "x" * 15},
        "a token of fewer than 16 characters can be guessed",
    ),
    "any proxy": (("--trust-proxy", "*"), {"QUEUE_API_TOKEN": TOKEN}, "--trust-proxy: '*' is no address"),
    "a proxy's name": (("--trust-proxy", "proxy"), {"QUEUE_API_TOKEN": TOKEN}, "--trust-proxy: 'proxy' is no address"),
    "no address": (("--listen", "8091"), {}, "--listen: '8091' is not host:port"),
    "off": (("--listen", "off"), {}, "--listen: 'off' is not host:port"),
    "no file": (("--read-token-file", "nowhere"), {}, "--read-token-file: 'nowhere' can't be read"),
    "empty file": (("--read-token-file", "/dev/null"), {}, "--read-token-file: '/dev/null' is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_can_t_do_is_one_line_and_exit_code_2(case: str) -> None:
    options, variables, reason = REFUSED[case]
    given: Any = variables

    answer = answered("web", *options, "--database-url", "postgresql://u@127.0.0.1:1/none", **given)

    assert answer.code == 2
    assert answer.error.startswith(reason)


def test_a_database_that_is_down_or_not_ours_is_one_line_and_exit_code_1(
    tmp_path: Path, empty_database_url: Any
) -> None:
    down = brooq_worker("web", "--anonymous", "read", cwd=tmp_path, DATABASE_URL="postgresql://u@127.0.0.1:1/none")
    empty = brooq_worker("web", "--anonymous", "read", cwd=tmp_path, DATABASE_URL=shown(empty_database_url))

    assert (down.code, "Connection refused" in down.error) == (1, True)
    assert (empty.code, "brooq-worker migrate" in empty.error) == (1, True)


@pytest.mark.parametrize("module", ["flask", "waitress"])
def test_without_the_extra_it_names_it(engine: Engine, tmp_path: Path, module: str) -> None:
    without = command_after(f"import sys; sys.modules[{module!r}] = None")

    answer = brooq_worker(
        *("web", "--anonymous", "read", "--listen", "127.0.0.1:0"),
        cwd=tmp_path,
        command=without,
        DATABASE_URL=shown(engine.url),
    )

    assert answer.code == 1
    assert answer.error.startswith("the dashboard needs more than a worker does")
    assert answer.error.endswith("pip install 'sqlalchemy-brooq[web]', then try again")


def test_the_library_without_the_extra_names_it() -> None:
    program = "import sys; sys.modules['flask'] = None; import sqlalchemy_brooq.web"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert "pip install 'sqlalchemy-brooq[web]'" in done.stderr.splitlines()[-1]
