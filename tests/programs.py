"""
Small programs that a test runs in processes of their own, and that never outlive it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import URL

Program = subprocess.Popen[str]


@contextmanager
def program(code: str, url: URL, *arguments: str, within: Sequence[str] = ()) -> Iterator[Program]:
    """
    Run Python *code* with a database's URL and *arguments*; what is left of it at the end is killed.

    *within* is what goes before the command, such as that of a network namespace.
    """
    command = [
        *within,
        sys.executable,
        "-c",
        textwrap.dedent(code),
        url.render_as_string(hide_password=False),
        *arguments,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def await_line(process: Program, part: str) -> None:
    """
    Read what *process* prints up to a line with *part*.
    """
    assert process.stdout is not None
    assert any(part in line for line in process.stdout), f"{part!r} never came"
