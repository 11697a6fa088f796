"""
``brooq-worker jobs`` and ``show``: which jobs there are, and all about one.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import chain, islice
from typing import Any, Final
from uuid import UUID

import click

from sqlalchemy_brooq import browse
from sqlalchemy_brooq.browse import JobView, RawJson
from sqlalchemy_brooq.cli.database import database_options, duration, jobs_database, parsed_id
from sqlalchemy_brooq.cli.filters import filter_options, made_filter
from sqlalchemy_brooq.cli.printing import (
    Table,
    brief,
    cut,
    exact,
    moment,
    print_facts,
    print_json_array,
    room_on_stdout,
    safe,
)
from sqlalchemy_brooq.documents import to_json
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD

HEADER: Final = ("ID", "TOPIC", "STATE", "ATT>", "WHEN>")
_TOPIC: Final = HEADER.index("TOPIC")
MOST: Final = 1_000_000
_FIRST: Final = 200
"""Jobs by which the widths of the columns are chosen: what comes later is printed as it comes."""


@click.command("jobs", short_help="List jobs.")
@filter_options
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, MOST), default=20, show_default=True, help="At most so many."
)
@click.option("--after", metavar="ID", type=parsed_id, help="Go on after this job, the last one of the list before.")
@click.option(
    "--with",
    "private",
    type=click.Choice(tuple(browse.PRIVATE)),
    multiple=True,
    help="Show this of each job as well. Repeat it for more.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array, of an object for each job.")
@click.option(
    "--timeout",
    metavar="DURATION",
    type=duration,
    default="10s",
    show_default=True,
    help="Give up if the database takes longer to find them; 0: never.",
)
@database_options
def jobs_command(
    limit: int,
    after: UUID | None,
    private: tuple[str, ...],
    as_json: bool,
    timeout: timedelta,
    database_url: str | None,
    schema: str | None,
    **options: Any,
) -> None:
    """
    List jobs, the newest first.

    ATT is how many attempts were made. WHEN says since when the job stands as it does: since when it is ready, runs,
    or is over; with a +, in how long it will be ready.

    Payloads, results, keys and errors are shown only where --with, or the command show, asks for them. In a terminal,
    long topics and errors are cut to its width; into a pipe or file goes all of them.
    """
    wanted = made_filter(**options)
    with jobs_database(database_url, schema) as transactions:
        # One more than is printed tells whether there are more.
        found = browse.jobs(transactions, wanted, limit=limit + 1, after=after, private=private, budget=timeout)
        if as_json:
            print_json_array(job.facts() for job in islice(found, limit))
        else:
            _print_table(found, limit)


def _print_table(jobs: Iterator[JobView], limit: int) -> None:
    """
    Print *jobs* as they come, and how to go on.
    """
    first = list(islice(jobs, _FIRST))
    if not first:
        click.echo("no job is like that", err=True)
        return
    room = room_on_stdout()
    table = Table(HEADER, map(_cells, first), flexible=_TOPIC, room=room)
    click.echo(table.header)
    rest = chain(first, jobs)
    for job in islice(rest, limit):
        click.echo(table.line(_cells(job)))
        for name, value in job.private.items():
            if value is not None:
                line = f"    {name}: {safe(value.text if isinstance(value, RawJson) else value)}"
                click.echo(line if room is None else cut(line, room))
    if next(rest, None) is not None:
        click.echo(f"there are more: --after {job.id}", err=True)


def _cells(job: JobView) -> tuple[str, ...]:
    return str(job.id), job.topic, job.state.value, str(job.attempts), _when(job)


def _when(job: JobView) -> str:
    passed = job.asked_at - job.since
    return brief(passed) if passed >= timedelta(0) else f"+{brief(-passed)}"


@click.command("show", short_help="Show all about one job.")
@click.argument("job_id", metavar="ID", type=parsed_id)
@click.option("--no-payload", is_flag=True, help="Leave out payload and result.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@database_options
def show_command(job_id: UUID, no_payload: bool, as_json: bool, database_url: str | None, schema: str | None) -> None:
    """
    Show all about the job ID: its state, attempts and times, who holds it, its error, payload and result, and what it
    has to do with other jobs.

    The exit code is 1 if there is no such job.
    """
    with jobs_database(database_url, schema) as transactions, transactions() as connection:
        job = browse.job(connection, job_id, payload=not no_payload, pretty=not as_json)
    if as_json:
        click.echo(to_json(job.all_facts(), indent=2))
    else:
        print_facts(_facts(job))


def _facts(job: JobView) -> Iterator[tuple[str, str | None]]:
    yield "id", str(job.id)
    yield "topic", job.topic
    yield "state", _state(job)
    yield "attempts", str(job.attempts)
    yield "requeues", str(job.requeues)
    yield "priority", str(job.priority)
    yield "created", moment(job.created_at)
    yield "available", moment(job.available_at)
    yield "claimed", None if job.claimed_at is None else moment(job.claimed_at)
    yield "updated", moment(job.updated_at)
    yield "waited", None if job.waited is None else exact(job.waited)
    yield "ran", None if job.ran is None else exact(job.ran)
    yield from _lease(job)
    yield "chained by", job.chained_by
    yield "replays", job.replays
    yield "replayed by", job.replayed_by and f"{job.replayed_by.id} ({job.replayed_by.state})"
    for name, value in job.private.items():
        yield name, value.text if isinstance(value, RawJson) else value


def _state(job: JobView) -> str:
    passed = job.asked_at - job.since
    if passed < timedelta(0):
        return f"{job.state} (ready in {exact(-passed)})"
    if job.state in CLAIMABLE:
        return f"{job.state} (ready for {exact(passed)})"
    return f"{job.state} (for {exact(passed)})" if job.state in HELD else f"{job.state} ({exact(passed)} ago)"


def _lease(job: JobView) -> Iterator[tuple[str, str | None]]:
    if job.lease is None:
        return
    if job.state not in HELD:
        yield "held last by", job.lease.worker
        return
    left = job.lease.until - job.asked_at
    end = f"in {exact(left)}" if left >= timedelta(0) else f"it ran out {exact(-left)} ago"
    yield "held by", job.lease.worker
    yield "lease until", f"{moment(job.lease.until)} ({end})"
