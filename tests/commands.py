"""
Running ``brooq-worker`` as a user does: in a process of its own, in a folder with the user's program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import HTTPError

from click.testing import CliRunner
from sqlalchemy import URL

from sqlalchemy_brooq.cli import main
from tests.servers import ROOT
from tests.waiting import eventually

COMMAND: Final = (sys.executable, "-m", "sqlalchemy_brooq")
ANY_PORT: Final = {"QUEUE_LISTEN_ADDRESS": "127.0.0.1:0"}


def command_after(statements: str) -> tuple[str, ...]:
    """
    Return the command in a process that has executed *statements* first.
    """
    return sys.executable, "-c", f"{statements}\nfrom sqlalchemy_brooq.cli import main; main()"


@dataclass(frozen=True)
class Answer:
    """
    What a command said, and its exit code.
    """

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """
        The one line that the command ended with; fails where it said anything else.
        """
        __tracebackhide__ = True
        lines = self.err.splitlines()
        assert len(lines) == 1, self
        assert lines[0].startswith("Error: "), self
        assert not self.out, self
        return lines[0].removeprefix("Error: ")


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """
    Return this process's environment without what the command or libpq would read, and with *variables*.

    Unless these say otherwise, workers take any free port.
    """
    ours = ("QUEUE_", "DATABASE_URL", "PG")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **ANY_PORT, **variables}


def brooq_worker(
    *arguments: str, cwd: Path, command: tuple[str, ...] = COMMAND, traceback: bool = False, **variables: str
) -> Answer:
    """
    Run the command to its end; fail where it shows a *traceback* that wasn't asked for.
    """
    done = subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("Traceback" in done.stdout + done.stderr) is traceback, done
    return Answer(done.returncode, done.stdout, done.stderr)


def answered(*arguments: str, url: URL | None = None, stdin: str = "", **variables: str) -> Answer:
    """
    Run the command in this process, which is quick; fail where it ends with an exception that a user would see.
    """
    inherited = dict.fromkeys(name for name in os.environ if name.startswith(("QUEUE_", "DATABASE_URL", "PG")))
    given = {"DATABASE_URL": shown(url)} if url is not None else {}
    # Before click 8.2, one had to ask for it to keep stderr apart.
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    done = CliRunner(**apart).invoke(main, arguments, input=stdin, env={**inherited, **given, **variables})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Answer(done.exit_code, done.stdout, done.stderr)


class Terminal:
    """
    The command in a terminal of its own, with somebody who types.
    """

    def __init__(self, *arguments: str, cwd: Path, columns: int = 80, **variables: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._terminal, self.text = ours, ""
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=cwd,
            env={**environment(variables), "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def shows(self, part: str) -> None:
        """
        Wait until it shows *part*.
        """
        while part not in self.text:
            assert self._read(), f"{part!r} never came: {self.text}"

    def types(self, text: str) -> None:
        """
        Type *text*.
        """
        os.write(self._terminal, text.encode())

    def ends(self) -> int:
        """
        Wait for the end, and return the exit code.
        """
        while self._read():
            pass
        assert "Traceback" not in self.text, self.text
        return self.process.wait(10)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], 30)
        assert ready, f"nothing more came: {self.text}"
        try:
            read = os.read(self._terminal, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.text += read.decode().replace("\r\n", "\n")
        return bool(read)


class RunningWorker:
    """
    ``brooq-worker run`` in the background; it is killed at the end of the block if it still runs.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        stdout: int | None = None,
        command: tuple[str, ...] = (*COMMAND, "run"),
        **variables: str,
    ) -> None:
        self._out, self._err = cwd / "stdout.txt", cwd / "stderr.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process: subprocess.Popen[Any] = subprocess.Popen(
                [*command, *arguments],
                cwd=cwd,
                env=environment(variables),
                stdout=out if stdout is None else stdout,
                stderr=err,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def announcement(self) -> str:
        """
        Wait for the line that tells that it works, and return it.
        """
        eventually(lambda: self._announced() or self.process.poll() is not None, 60.0, "it never started")
        assert self.process.poll() is None, self.err
        (line,) = self._announced()
        return line

    def _announced(self) -> list[str]:
        # A handler may print before, and the last line may be half there.
        whole, _, _ = self.out.rpartition("\n")
        pattern = r"(worker \S+ serves|\d+ processes serve|the dashboard is at) "
        return [line for line in whole.splitlines() if re.match(pattern, line)]

    def url(self, path: str) -> str:
        """
        Return the address of *path* on its service surface.
        """
        return self.announcement().rpartition(" ")[2].removesuffix("/healthz") + path

    def end(self, *signals: int, timeout: float = 10.0) -> int:
        """
        Send *signals*, wait for the end, and return the exit code.
        """
        for number in signals or (signal.SIGTERM,):
            self.process.send_signal(number)
        code = self.process.wait(timeout)
        assert "Traceback" not in self.err + self.out, self.err
        return code


def free_port() -> int:
    """
    Return a port that nobody listens on; from below those that the system hands out to connections meanwhile.
    """
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def get(url: str) -> tuple[int, str]:
    """
    Return code and body of the answer of *url*.
    """
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - a worker's address
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def shown(url: URL) -> str:
    """
    Return *url* with its password, as one puts it into a variable.
    """
    return url.render_as_string(hide_password=False)
