"""
``brooq-worker stats``: how many jobs stand where, by topic.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click

from sqlalchemy_brooq import browse
from sqlalchemy_brooq.browse import TopicStats
from sqlalchemy_brooq.cli.database import database_options, duration, jobs_database
from sqlalchemy_brooq.cli.filters import TOPIC
from sqlalchemy_brooq.cli.printing import DASH, Table, brief, print_json_array, room_on_stdout

HEADER: Final = ("TOPIC", "READY>", "SCHEDULED>", "IN FLIGHT>", "FAILED>", "DEAD>", "OLDEST>", "DONE/H>")
UNKNOWN: Final = "?"


@click.command("stats", short_help="Count jobs by topic.")
@TOPIC
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, of an object for each topic.")
@click.option(
    "--timeout",
    metavar="DURATION",
    type=duration,
    default="2s",
    show_default=True,
    help="How long the database may take for each count; what takes longer is unknown. 0: no limit.",
)
@database_options
def stats_command(
    topics: tuple[str, ...], as_json: bool, timeout: timedelta, database_url: str | None, schema: str | None
) -> None:
    """
    Count the jobs of each topic.

    READY jobs wait for a worker, since OLDEST at the longest, and SCHEDULED ones for their time. FAILED are those of
    them that wait for another attempt. DONE/H ended well within the last hour. A "?" took too long to count: give it
    more --timeout.
    """
    with jobs_database(database_url, schema) as transactions:
        found = browse.stats(transactions, topics, budget=timeout)
    if as_json:
        print_json_array(map(asdict, found))
    elif found:
        rows = list(map(_cells, found))
        table = Table(HEADER, rows, flexible=0, room=room_on_stdout())
        click.echo("\n".join([table.header, *map(table.line, rows)]))
    else:
        click.echo("nothing to count: no job waits, runs, is dead, or ended within the last hour", err=True)


def _cells(stats: TopicStats) -> tuple[str, ...]:
    counts = (stats.ready, stats.scheduled, stats.in_flight, stats.failed, stats.dead)
    done: Any = stats.last_hour and stats.last_hour["done"]
    return stats.topic, *map(_number, counts), _age(stats), _number(done)


def _number(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)


def _age(stats: TopicStats) -> str:
    seconds = stats.oldest_ready_seconds
    if seconds is not None:
        return brief(timedelta(seconds=seconds))
    return UNKNOWN if stats.ready is None else DASH
