"""
Programs of this package that run as processes of their own, and the pipe that ties each to the one that started it.

Such a process is in a session of its own, out of reach of the terminal's Ctrl-C: whoever started it ends it. What it
is to do comes through its standard input, where no other user of the machine can read it, as an argument could be.
When that pipe ends, it ends too: so it outlives nobody, not even one who was killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

_STDIN: Final = 0
_CHUNK: Final = 1 << 16


def start(module: str, orders: Mapping[str, object]) -> subprocess.Popen[bytes]:
    """
    Start *module* of ``sqlalchemy_brooq.demo``, and hand it *orders*.

    Its standard error goes where its standard output goes: into a pipe.
    """
    process = subprocess.Popen(  # noqa: S603 - our own module
        # Without -P a file of the current folder could stand in for one of the standard library.
        [sys.executable, "-P", "-m", f"sqlalchemy_brooq.demo.{module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it has ended already: whoever waits for it will see that
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.flush()
    return process


def let_go(process: subprocess.Popen[bytes]) -> None:
    """
    Close the pipe that ties *process* to this one, so that it ends.
    """
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def read_orders() -> dict[str, Any]:
    """
    Return what this process is to do; called first, and once, in a process that `start` has started.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (some := os.read(_STDIN, _CHUNK)):
            sys.exit(1)  # nobody wants it any more
        line += some
    orders: dict[str, Any] = json.loads(line)
    return orders


def await_release() -> None:
    """
    Return when the one that started this process lets it go, or is gone.
    """
    while os.read(_STDIN, _CHUNK):
        pass
