"""
Looking at processes from outside, and running Python as another user.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def lives(pid: int) -> bool:
    """
    Whether *pid* is a process that runs; one that ended, and that nobody has reaped, doesn't.
    """
    if sys.platform != "linux":
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def nobody() -> dict[str, Any]:
    """
    Return the arguments with which `subprocess` runs a command as an ordinary user; needs root.
    """
    entry = pwd.getpwnam("nobody")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}


@cache
def python_for_nobody() -> str | None:
    """
    Return a Python with which an ordinary user can import this checkout and its drivers; ``None`` if there is none.

    Ours may lie below a home that nobody else can enter. Then another of the same version will do.
    """
    version = f"python3.{sys.version_info.minor}"
    for python in (sys.executable, shutil.which(version, path="/usr/bin:/usr/local/bin")):
        if python and _succeeds([python, "-c", "import psycopg, sqlalchemy_brooq.demo.postgres"]):
            return python
    return None


def checkout_environment() -> dict[str, str]:
    """
    Return an environment in which any Python of our version finds this checkout and what is installed beside pytest.
    """
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def _succeeds(command: list[str]) -> bool:
    try:
        answer = subprocess.run(command, env=checkout_environment(), capture_output=True, check=False, **nobody())
    except OSError:
        return False
    return answer.returncode == 0
