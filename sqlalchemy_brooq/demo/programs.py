"""
Starts a module of this package as a process of its own.

Such a process is in a session of its own, out of reach of the terminal's Ctrl-C: whoever started it ends it. It reads
its orders from its standard input, and ends when that pipe ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping


def start(module: str, orders: Mapping[str, object]) -> subprocess.Popen[bytes]:
    """
    Start *module* of ``sqlalchemy_brooq.demo``, and hand it *orders* as one line of JSON.

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
        process.stdin.write(json.dumps(orders).encode() + b"\n")
        process.stdin.flush()
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """
    Kill *process* if it still runs, and close its pipes.
    """
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
