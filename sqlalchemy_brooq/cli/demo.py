"""
``brooq-worker demo``: starts the shop of ``sqlalchemy_brooq.demo``, if what it needs is installed.
"""

from __future__ import annotations

import click

from sqlalchemy_brooq.cli.endings import Failed, explained, first_line
from sqlalchemy_brooq.cli.settings import database_url


@click.command("demo", short_help="Watch a small shop at work.")
@click.option(
    "--database-url",
    metavar="URL",
    help="A PostgreSQL to use, in a schema of its own, instead of an embedded one.",
)
@click.option("--seed", type=int, metavar="N", help="Another day at the shop: picks what is ordered.")
@click.pass_context
def demo_command(context: click.Context, database_url: str | None, seed: int | None) -> None:
    """
    Start a PostgreSQL and a small shop that enqueues jobs in its transactions, and tell what happens.

    Two worker processes run the jobs, and one of them is killed on the way. It takes less than a minute, and
    leaves nothing behind.

    DATABASE_URL is not read here: the demo never touches a database that it wasn't pointed at.
    """
    with explained():
        context.exit(_run(database_url, seed))


def _run(option: str | None, seed: int | None) -> int:
    url = None if option is None else database_url(option).render_as_string(hide_password=False)
    try:
        from sqlalchemy_brooq.demo.shop import run_demo
    except ImportError as error:
        raise Failed(
            f"the demo needs more than a worker does ({first_line(error)}): "
            "pip install 'sqlalchemy-brooq[demo]', then try again"
        ) from None
    return run_demo(url) if seed is None else run_demo(url, seed=seed)
