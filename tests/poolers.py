"""
A real PgBouncer in transaction mode, before a server of its own whose log tells what reached it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import URL

from sqlalchemy_brooq.demo.binaries import give, server_account
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from tests.commands import free_port
from tests.waiting import eventually

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SESSIONS: Final = 3
"""Server sessions that all clients share; fewer than a worker has connections."""

needs_pgbouncer = pytest.mark.skipif(
    PROGRAM is None, reason="there is no pgbouncer: install Debian's package of that name"
)

_SETTINGS: Final = """
[databases]
* = host={folder} port=5432 user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
logfile = {home}/pgbouncer.log
ignore_startup_parameters = extra_float_digits
"""

#: A statement in the server's log, of either protocol, with the values that may follow it.
_LOGGED: Final = re.compile(
    r"^> LOG:  (?P<how>statement|execute [^:]+): (?P<text>.*(?:\n\t.*)*)"
    r"(?:\n> DETAIL:  [Pp]arameters: (?P<values>.*))?$",
    re.MULTILINE,
)
_VALUE: Final = re.compile(r"(\$\d+) = ('(?:[^']|'')*'|NULL)")


@dataclass(frozen=True)
class Pooled:
    """
    A server behind a pooler.
    """

    server: LocalPostgres
    port: int

    @property
    def url(self) -> URL:
        """
        The server's address by way of the pooler.
        """
        return URL.create("postgresql+psycopg", "postgres", host="127.0.0.1", port=self.port, database="postgres")

    @property
    def direct(self) -> URL:
        """
        The server's own address.
        """
        return self.server.url()

    def statements(self, begin: int = 0) -> list[tuple[str, str]]:
        """
        Return the statements that have reached the server from *begin* on, with their values; and how each one came.
        """
        log = self.server.log.read_text()[begin:]
        return [(found["how"], _with_values(found["text"], found["values"])) for found in _LOGGED.finditer(log)]


def _with_values(statement: str, values: str | None) -> str:
    found = dict(_VALUE.findall(values or ""))
    return re.sub(r"\$\d+", lambda name: found.get(name[0], name[0]), statement)


@contextmanager
def pgbouncer() -> Iterator[Pooled]:
    """
    Start a server and a pooler before it.
    """
    assert PROGRAM is not None
    settings = {"log_statement": "all", "log_line_prefix": "> ", "max_connections": "50"}
    with LocalPostgres(durable=False, settings=settings) as server:
        account, port = server_account(), free_port()
        home = server.folder / "pooler"
        home.mkdir()
        (home / "ini").write_text(_SETTINGS.format(folder=server.folder, port=port, sessions=SESSIONS, home=home))
        for path in (home / "ini", home):
            give(path, account)
        user: dict[str, Any] = (
            {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
        )
        with subprocess.Popen([PROGRAM, str(home / "ini")], cwd=home, stderr=subprocess.DEVNULL, **user) as pooler:
            try:
                eventually(lambda: "process up" in _text(home / "pgbouncer.log"), message="the pooler didn't start")
                yield Pooled(server, port)
            finally:
                pooler.send_signal(signal.SIGQUIT)


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
