"""
The command ``brooq-worker``: the composition root, where settings, a program's queue and the engine meet.

Each command has a module of its own. Whatever a user can cause ends in one clear line and an exit
code, never in a traceback: 0 done, 1 failed, 2 wrong usage or settings.
"""

from __future__ import annotations

import click

from sqlalchemy_brooq import __version__
from sqlalchemy_brooq.cli.check import check_command
from sqlalchemy_brooq.cli.config import config_command
from sqlalchemy_brooq.cli.demo import demo_command
from sqlalchemy_brooq.cli.jobs import jobs_command, show_command
from sqlalchemy_brooq.cli.migrate import migrate_command
from sqlalchemy_brooq.cli.operate import cancel_command, replay_command
from sqlalchemy_brooq.cli.printing import speak_any_text
from sqlalchemy_brooq.cli.run import run_command
from sqlalchemy_brooq.cli.stats import stats_command

__all__ = ["main"]


@click.group(name="brooq-worker", context_settings={"help_option_names": ["-h", "--help"]})
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
):
    main.add_command(_command)
