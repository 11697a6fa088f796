"""
A PostgreSQL of one's own, started from binaries and gone when the program is: for the demo and for tests.

Owns the server's folder, its settings, and starting and stopping it. Knows nothing of jobs or of our schema.
`binaries.py` finds what to start; `keeper.py` runs the server's processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from sqlalchemy import URL

from sqlalchemy_brooq.demo.binaries import Account, PostgresUnavailable, find_binaries, give, server_account
from sqlalchemy_brooq.errors import ConfigError, LifecycleError

__all__ = ["LocalPostgres", "Mode", "PostgresUnavailable"]

START_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 30.0
#: How often a server that stops is told so again, in seconds.
STOP_INTERVAL: Final = 0.5

Mode = Literal["smart", "fast", "immediate"]

_SIGNALS: Final[Mapping[Mode, signal.Signals]] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
#: For speed. synchronous_commit stays on: without fsync it costs next to nothing, and keeps what was committed through
#: `LocalPostgres.kill`. The log of changes is kept short, as it may be in memory.
_NOT_DURABLE: Final[Mapping[str, str]] = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "128MB"}
#: Linux's file system in memory, and how much of it must be free for us to use it. Making a database's 300 files takes
#: 7 ms there, and up to 300 ms on a disk, fsync or not.
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - as a place for mkdtemp
_MEMORY_NEEDED: Final = 1 << 30
#: What the eighth line of a server's pid file says once it accepts connections.
_READY: Final = frozenset({"ready", "standby"})
#: Settings that follow from the arguments and the folder.
_OURS: Final = frozenset({"listen_addresses", "port", "unix_socket_directories", "data_directory"})


class LocalPostgres:
    """
    A PostgreSQL server of this process, reached through a socket in a folder that only its user can enter.

    It lives as long as the process that started it: `close` ends it, and so does the death of the process, however
    it dies. Ctrl-C in the terminal doesn't reach it, so that workers can drain first. Started by root it runs as
    ``postgres`` or ``nobody``, since PostgreSQL refuses to run as root.

    Who reaches the server is its superuser, with no password. Think before you give *listen_addresses*: every
    user of the machine could then connect over the loopback interface.

    Args:
        durable: ``False`` leaves the disk out (no fsync, and the data in memory where there is room): committed work
            survives `kill`, but not the machine's end.
        settings: Server settings, such as ``{"max_connections": "200"}``.
        listen_addresses: Where to listen besides the socket; nowhere by default.
        port: The TCP port, and part of the socket's name; servers with a socket only may all have the same.
        data: A data folder to use or to make; it is kept by `close`. By default the data goes with the server.
        standby_of: A server that runs when this one is first started: its data is copied, and what it commits
            afterwards is streamed. Such a server is read-only until it is told to ``pg_promote()``.

    Raises:
        ConfigError: *settings* holds one that follows from the other arguments.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        settings: Mapping[str, str] | None = None,
        listen_addresses: str = "",
        port: int = 5432,
        data: Path | None = None,
        standby_of: LocalPostgres | None = None,
    ) -> None:
        if taken := sorted(name for name in settings or () if name.lower() in _OURS):
            raise ConfigError([f"settings can't hold {name}: it is set by the launcher" for name in taken])
        self._settings = {**({} if durable else _NOT_DURABLE), **(settings or {}), "listen_addresses": listen_addresses}
        self._port = port
        self._in_memory = not durable
        self._given_data = data.absolute() if data else None
        self._primary = standby_of
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._home: Path | None = None
        self._bin: Path | None = None
        self._account: Account | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """
        Start the server and return when it accepts connections; after a `stop` or a `kill`, on the same data.

        A start that fails leaves nothing behind but what was there before it, and a data folder that was given.

        Raises:
            LifecycleError: The server is running.
            PostgresUnavailable: There are no usable binaries, or the server ended or hung; the text has its last words.
        """
        if self.running:
            raise LifecycleError(f"this PostgreSQL is running already, with pid {self.pid}")
        first = self._folder is None
        try:
            self._prepare()
            before = self._pidfile()
            self._launch()
            self._await_ready(before)
        except BaseException:
            self.stop("immediate")
            if first:
                self._remove_folders()
            raise
        return self

    def stop(self, mode: Mode = "fast") -> None:
        """
        Stop the server and keep its data; a no-op where none is running.

        Args:
            mode: As of ``pg_ctl stop``: ``"smart"`` waits for the clients to leave, ``"fast"`` throws them out,
                ``"immediate"`` is a crash in good order. What takes longer than 30 s is ended as ``"immediate"``.
        """
        self._end(_SIGNALS[mode])

    def kill(self) -> None:
        """
        Crash the server: SIGKILL to the postmaster. Returns when its other processes have noticed, or were killed too.
        """
        self._end(signal.SIGUSR1)

    def restart(self) -> Self:
        """
        Stop the server, throwing its clients out, and start it again.
        """
        self.stop()
        return self.start()

    def close(self) -> None:
        """
        Stop the server and remove its folder, with the data unless the data folder was given.
        """
        if os.getpid() != self._owner:  # a forked child has a copy of this object, but no server
            return
        self.stop()
        self._remove_folders()

    def url(self, database: str = "postgres") -> URL:
        """
        Return the URL of *database* on this server, for psycopg.
        """
        return URL.create(
            "postgresql+psycopg",
            username="postgres",
            database=database,
            query={"host": str(self.folder), "port": str(self._port)},
        )

    @property
    def running(self) -> bool:
        """
        Whether the server's processes live.
        """
        return self._keeper is not None and self._keeper.poll() is None

    @property
    def pid(self) -> int:
        """
        The process id of the postmaster.
        """
        lines = self._pidfile().splitlines()
        if not (self.running and lines):
            raise LifecycleError("this PostgreSQL isn't running, so it has no pid: call start() first")
        return int(lines[0])

    @property
    def folder(self) -> Path:
        """
        The server's own folder: its socket, its log and, unless given or in memory, its data.
        """
        if self._folder is None:
            raise LifecycleError(
                "this PostgreSQL was not started or is closed, so it has no folder: call start() first"
            )
        return self._folder

    @property
    def log(self) -> Path:
        """
        The server's log; goes with the folder.
        """
        return self.folder / "postgres.log"

    @property
    def _data(self) -> Path:
        return self._given_data or (self._home or self.folder) / "data"

    def _prepare(self) -> None:
        """
        Make the folder and find the binaries, unless an earlier start did.
        """
        if self._bin is not None:
            return
        self._account = server_account()
        # Short, as a socket's whole path is limited to about 100 characters; and every user may enter /tmp.
        self._folder = self._home = _make_folder(Path("/tmp"))  # noqa: S108 - as a place for mkdtemp
        self._bin = find_binaries(self._account, self._folder)
        if self._in_memory and not self._given_data and _has_room(_MEMORY):
            self._home = _make_folder(_MEMORY)
        if not os.path.exists(self._data):  # noqa: PTH110 - Path.exists raises where a folder can't be entered
            self._data.mkdir(mode=0o700, parents=True)
            give(self._data, self._account)
        for folder in self._own_folders():
            give(folder, self._account)

    def _own_folders(self) -> set[Path]:
        return {folder for folder in (self._folder, self._home) if folder}

    def _launch(self) -> None:
        orders = {
            "parent": os.getpid(),
            "folders": sorted(map(str, self._own_folders())),
            "user": self._account and self._account.uid,
            "group": self._account and self._account.gid,
            "commands": list(self._commands()),
        }
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py")), json.dumps(orders)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=_environment(),
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
            )

    def _commands(self) -> Iterator[list[str]]:
        binaries, data = self._bin or Path(), str(self._data)
        if not os.path.exists(f"{data}/PG_VERSION"):  # noqa: PTH110 - as in _prepare
            program, *options = _new_data() if self._primary is None else self._copied_data(self._primary)
            # Data that goes with the server needn't be synced to the disk before it is used.
            hurry = [] if self._given_data else ["--no-sync"]
            yield [str(binaries / program), "-D", data, *options, *hurry]
        settings = {**self._settings, "port": str(self._port), "unix_socket_directories": str(self.folder)}
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        yield [str(binaries / "postgres"), "-D", data, *arguments]

    def _copied_data(self, primary: LocalPostgres) -> list[str]:
        """
        Return the command that copies the data of *primary*, and leaves there what follows it from then on.
        """
        address = f"host={primary.folder} port={primary._port} user=postgres"
        slot = self.folder.name.replace("-", "_")
        return ["pg_basebackup", "-d", address, "-c", "fast", "-X", "stream", "-R", "-C", "-S", slot]

    def _await_ready(self, before: str) -> None:
        """
        Wait until the server's pid file says so; *before* is what a crashed server left in it.
        """
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if not self.running:
                raise self._unavailable("didn't start")
            text = self._pidfile()
            if text != before and "".join(text.splitlines()[7:8]).strip() in _READY:
                return
            time.sleep(0.01)
        raise self._unavailable(f"wasn't ready within {START_TIMEOUT:.0f} s")

    def _unavailable(self, what: str) -> PostgresUnavailable:
        last_words = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        return PostgresUnavailable(f"PostgreSQL from {self._bin} {what}; the end of its log:\n{last_words}")

    def _end(self, number: signal.Signals) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        deadline = time.monotonic() + STOP_TIMEOUT
        while not _ends(keeper, number):
            if time.monotonic() > deadline:
                number = signal.SIGQUIT
        self._keeper = None

    def _pidfile(self) -> str:
        try:
            return (self._data / "postmaster.pid").read_text()
        except (OSError, LifecycleError):
            return ""

    def _remove_folders(self) -> None:
        folders = self._own_folders()
        self._folder = self._home = self._bin = None
        for folder in folders:
            shutil.rmtree(folder)


def _ends(keeper: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """
    Send the signal, and return whether the keeper ends soon.

    To be asked again: a signal that our process ignores (SIGQUIT does so in the background of a shell script) is
    ignored by a keeper as well that is too young to listen.
    """
    keeper.send_signal(number)
    try:
        keeper.wait(STOP_INTERVAL)
    except subprocess.TimeoutExpired:
        return False
    return True


def _new_data() -> list[str]:
    """
    Return the command that makes an empty server.
    """
    return ["initdb", "-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "trust"]


def _make_folder(place: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="brooq-pg-", dir=place if os.access(place, os.W_OK) else None))


def _has_room(place: Path) -> bool:
    try:
        usage = shutil.disk_usage(place)
    except OSError:
        return False
    return usage.free >= _MEMORY_NEEDED and os.access(place, os.W_OK)


def _environment() -> dict[str, str]:
    """
    Return our environment without what would steer PostgreSQL.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return {**kept, "LC_ALL": "C"}
