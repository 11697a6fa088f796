"""
The command ``brooq-worker``: the composition root, where settings, a program's queue and the engine meet.

Each command has a module of its own. Whatever a user can cause ends in one clear line and an exit
code, never in a traceback: 0 done, 1 failed, 2 wrong usage or settings.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, Final

import click

from sqlalchemy_brooq import __version__
from sqlalchemy_brooq.cli.check import check_command
from sqlalchemy_brooq.cli.config import config_command
from sqlalchemy_brooq.cli.demo import demo_command
from sqlalchemy_brooq.cli.endings import Failed
from sqlalchemy_brooq.cli.jobs import jobs_command, show_command
from sqlalchemy_brooq.cli.migrate import migrate_command
from sqlalchemy_brooq.cli.operate import cancel_command, replay_command
from sqlalchemy_brooq.cli.printing import speak_any_text
from sqlalchemy_brooq.cli.run import run_command
from sqlalchemy_brooq.cli.stats import stats_command
from sqlalchemy_brooq.cli.web import web_command

__all__ = ["main"]

UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""How writing to a full disk fails, or to what can't be written to. (A pipe that nobody reads is click's to handle.)"""


class Commands(click.Group):
    """
    The commands; an answer that can't be written is a failure like any other.
    """

    def invoke(self, ctx: click.Context) -> Any:
        """
        Run the command that *ctx* says.
        """
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno not in UNWRITABLE:
                raise
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - what is still buffered goes there as well
            raise Failed(f"the answer can't be written: {error.strerror}") from None


@click.group(cls=Commands, name="brooq-worker", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="brooq-worker", message="%(prog)s %(version)s")
def main() -> None:
    """
    Run background jobs that are rows of one table in your own PostgreSQL database.

    Settings come from options, from the environment, and from a .env file in the current folder or above it
    (where python-dotenv is installed), in this order of precedence.

    Exit codes: 0 done, 1 failed, 2 wrong usage or settings.
    """
    speak_any_text()


for _command in (
    *(run_command, migrate_command, config_command, demo_command),
    *(jobs_command, show_command, stats_command, cancel_command, replay_command, check_command),
    web_command,
):
    main.add_command(_command)
