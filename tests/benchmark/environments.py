"""
Virtual environments of the peers: made when they are first needed, and kept in a folder outside the repository.

Which packages go in is decided by whoever asks. Uses the standard library alone, and knows nothing of queues.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOME_VARIABLE: Final = "BROOQ_BENCH_HOME"
PYTHON_VARIABLE: Final = "BROOQ_BENCH_PYTHON"
FOLDER: Final = "sqlalchemy-brooq-benchmark"
COMPLETE: Final = "complete.json"
"""Is written last: an environment without it was left half-made."""
NEWER: Final = ("python3.13", "python3.12", "python3.14", "python3")
PATIENCE: Final = 600.0
_REFUSED: Final[dict[Path, str]] = {}
"""What couldn't be made in this run, and why: it isn't tried again for each measurement."""
_ASK_VERSION: Final = "import sys; print(*sys.version_info[:3], sep='.')"


class CannotBeMade(RuntimeError):
    """
    An environment can't be made here.
    """


@dataclass(frozen=True)
class Environment:
    """
    An environment of a Python and what is installed.

    Args:
        name: What its folder is called first.
        requirements: As pip takes them, each pinned.
        least: The oldest Python that will do.
    """

    name: str
    requirements: tuple[str, ...]
    least: tuple[int, int] = (3, 11)

    def python(self) -> str:
        """
        Return its interpreter; make it, if that hasn't been done.

        Raises:
            CannotBeMade: There is no Python for it, or pip couldn't install what belongs into it.
        """
        folder = self.folder
        if folder in _REFUSED:
            raise CannotBeMade(_REFUSED[folder])
        try:
            with _locked(folder):
                if not (folder / COMPLETE).exists():
                    self._make()
        except CannotBeMade as trouble:
            _REFUSED[folder] = str(trouble)
            raise
        return str(self._interpreter)

    def versions(self) -> Mapping[str, str]:
        """
        Return the version of Python and of everything that was installed, once it is made.
        """
        found: dict[str, str] = json.loads((self.folder / COMPLETE).read_text())
        return found

    @property
    def folder(self) -> Path:
        """
        Where it is: another one for other requirements, or another Python of our own.
        """
        key = json.dumps([self.requirements, self.least, platform.python_version(), platform.machine()])
        return home() / f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    @property
    def _interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    def _make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        _run(find_python(self.least), "-m", "venv", str(self.folder))
        pip = (str(self._interpreter), "-m", "pip", "--disable-pip-version-check")
        _run(*pip, "install", "--quiet", *self.requirements)
        installed = json.loads(_run(*pip, "list", "--format", "json"))
        versions = {package["name"].lower(): package["version"] for package in installed}
        versions["python"] = _run(str(self._interpreter), "-c", _ASK_VERSION).strip()
        draft = self.folder / f"{COMPLETE}.new"
        draft.write_text(json.dumps(versions, indent=1) + "\n")
        draft.rename(self.folder / COMPLETE)


def home() -> Path:
    """
    Return the folder of the environments: ``BROOQ_BENCH_HOME``, or one in the platform's cache.
    """
    if given := os.environ.get(HOME_VARIABLE):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / FOLDER
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / FOLDER


def find_python(least: tuple[int, int]) -> str:
    """
    Return a Python that is new enough: ours, ``BROOQ_BENCH_PYTHON``, or one on the path or of pyenv.

    Raises:
        CannotBeMade: There is none.
    """
    if sys.version_info >= least:
        return sys.executable
    for candidate in _candidates():
        version = _version(candidate)
        if version >= least:
            return candidate
    needed = ".".join(map(str, least))
    raise CannotBeMade(f"it needs Python {needed} or later, and none was found: {PYTHON_VARIABLE} can name one")


def _candidates() -> Iterator[str]:
    if given := os.environ.get(PYTHON_VARIABLE):
        yield given
    yield from filter(None, map(shutil.which, NEWER))
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(pyenv.glob("versions/3.*/bin/python")))


def _version(python: str) -> tuple[int, ...]:
    """
    Return what *python* says of itself; nothing, if it doesn't run.
    """
    try:
        return tuple(map(int, _run(python, "-c", _ASK_VERSION).split(".")))
    except CannotBeMade:
        return ()


def _run(*command: str) -> str:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except subprocess.CalledProcessError as failed:
        last = (failed.stderr or failed.stdout).strip().splitlines()[-1:]
        raise CannotBeMade(f"{' '.join(command)} ended with exit code {failed.returncode}: {''.join(last)}") from failed
    except (OSError, subprocess.TimeoutExpired) as trouble:
        raise CannotBeMade(f"{' '.join(command)}: {trouble}") from trouble
    return ran.stdout


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """
    Let one run at a time make *folder*.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
