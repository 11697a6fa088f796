"""
``brooq-worker cancel`` and ``replay``: jobs by their ids, or all that a filter means.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from uuid import UUID

import click

from sqlalchemy_brooq.browse import Filter, Transactions
from sqlalchemy_brooq.cli.database import database_options, jobs_database, parsed_id
from sqlalchemy_brooq.cli.endings import Failed, Refused
from sqlalchemy_brooq.cli.filters import filter_options, made_filter
from sqlalchemy_brooq.cli.printing import is_terminal
from sqlalchemy_brooq.cli.progress import progress
from sqlalchemy_brooq.durations import counted
from sqlalchemy_brooq.errors import JobNotFound
from sqlalchemy_brooq.operations import CANCELABLE, Chosen, Counts, Ids, cancel_jobs, choose, replay_jobs
from sqlalchemy_brooq.vocabulary import TERMINAL, Enqueued, JobState

Function = TypeVar("Function", bound=Callable[..., Any])

ANY: Final = Filter()


@dataclass(frozen=True, slots=True)
class Wording:
    """
    How a command speaks of what it does.
    """

    verb: str
    doing: str
    done: str
    already: str
    unfit: str


CANCEL: Final = Wording("cancel", "canceling", "canceled", "over already", "left alone, in another state by then")
REPLAY: Final = Wording("replay", "replaying", "replayed", "replayed before", "left alone, not over")


def _bulk_options(function: Function) -> Function:
    decorators = (
        click.argument("ids", metavar="[ID]...", nargs=-1, type=parsed_id),
        filter_options,
        click.option("--yes", "-y", is_flag=True, help="Don't ask."),
        database_options,
    )
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


@click.command("cancel", short_help="Call jobs off.")
@_bulk_options
def cancel_command(
    ids: tuple[UUID, ...], yes: bool, database_url: str | None, schema: str | None, **options: Any
) -> None:
    """
    Call off the jobs ID..., or all that the options mean and that are not over.

    A running handler is told, and what it returns is not recorded any more. With options, the command says how many
    jobs these are, and asks; only those are called off, each if it is still in one of the states that were asked for.
    Many go in slices, each a short transaction: workers and producers go on meanwhile.

    The exit code is 1 if one of the IDs was not found, or if a job was held by a transaction of somebody else's all
    along. A job that is over already is no failure.
    """
    wanted = _wanted(CANCEL, ids, made_filter(**options))
    states = wanted.states or CANCELABLE
    if not states <= CANCELABLE or wanted.ended_within is not None:
        raise Refused("a job that is over can't be canceled: it is pending, failed or processing that can")
    with jobs_database(database_url, schema) as transactions:
        chosen = _chosen(CANCEL, transactions, ids, replace(wanted, states=states), yes)
        with _reporting(CANCEL, ids, chosen) as (counts, told):
            cancel_jobs(transactions, chosen, counts=counts, states=states, told=told)


@click.command("replay", short_help="Run jobs that are over once more.")
@_bulk_options
def replay_command(
    ids: tuple[UUID, ...], yes: bool, database_url: str | None, schema: str | None, **options: Any
) -> None:
    """
    Enqueue a new job like each of the jobs ID..., which are over; or like all that the options mean, such as
    "--topic email.send --state dead".

    The new one has the topic, payload and priority of the old one, which stays as it is. A job is replayed once:
    asked again, the command tells of the first replay. With options, it says how many jobs these are, and asks.
    Many go in slices, each a short transaction.

    The exit code is 1 if one of the IDs was not found or is not over.
    """
    wanted = _wanted(REPLAY, ids, made_filter(**options))
    if not ids and not (wanted.states and wanted.states <= TERMINAL):
        raise Refused("say which jobs that are over: --state dead, canceled or done")
    replays: dict[UUID, Enqueued] = {}
    with jobs_database(database_url, schema) as transactions:
        chosen = _chosen(REPLAY, transactions, ids, wanted, yes)
        try:
            with _reporting(REPLAY, ids, chosen) as (counts, told):
                replay_jobs(transactions, chosen, counts=counts, replays=replays if ids else None, told=told)
        finally:
            for job_id in (job_id for job_id in dict.fromkeys(ids) if job_id in replays):
                new, created = replays[job_id]
                click.echo(f"{job_id} {'is' if created else 'had been'} replayed as {new}")


def _wanted(words: Wording, ids: Collection[UUID], wanted: Filter) -> Filter:
    """
    Return *wanted* if there are ids or a filter, and not both.
    """
    if ids and wanted != ANY:
        raise click.UsageError("give the ids of jobs, or options that say which, but not both")
    if not ids and wanted == ANY:
        raise click.UsageError(f"say which jobs to {words.verb}: by their ids, or by options such as --topic")
    return wanted


def _chosen(words: Wording, transactions: Transactions, ids: Iterable[UUID], wanted: Filter, yes: bool) -> Ids:
    """
    Return the jobs in the order of their ids; those that a filter means only if that is agreed to.
    """
    if ids:
        return Ids(sorted(set(ids)))
    chosen = choose(transactions, wanted)
    if not yes and len(chosen.ids):
        _ask(words, chosen)
    return chosen.ids


def _ask(words: Wording, chosen: Chosen) -> None:
    number = counted(len(chosen.ids), "job")
    by_state = ", ".join(f"{chosen.counts[state]:,} {state}" for state in JobState if state in chosen.counts)
    if not is_terminal(sys.stdin):
        raise Refused(
            f"this would {words.verb} {number} ({by_state}), and nobody can be asked here: nothing was changed;"
            " with --yes it goes ahead"
        )
    if not click.confirm(f"{words.verb.capitalize()} {number} ({by_state})?", err=True):
        raise Failed("nothing was changed")


@contextlib.contextmanager
def _reporting(words: Wording, ids: Collection[UUID], chosen: Ids) -> Iterator[tuple[Counts, Callable[[], object]]]:
    """
    Lend what counts the work, show how it goes on, and say what came of it, also if it is broken off.
    """
    counts = Counts()
    try:
        with progress(words.doing, len(chosen)) as move:
            yield counts, lambda: move(counts.total)
    except BaseException:
        if counts.total:
            click.echo(f"broken off: {_summary(words, counts)}", err=True)
        raise
    click.echo(_summary(words, counts))
    problems = [str(JobNotFound(job_id)) for job_id in counts.missing if ids]
    if ids and counts.unfit and words is REPLAY:
        problems.append("only a job that is done, dead or canceled can be replayed")
    if counts.held:
        problems.append(f"{counted(counts.held, 'job')} held by transactions of others: try again when these are over")
    if problems:
        raise Failed(*problems)


def _summary(words: Wording, counts: Counts) -> str:
    rest = {
        words.already: counts.already,
        words.unfit: counts.unfit,
        "held by others": counts.held,
        "not found": len(counts.missing),
    }
    return "; ".join(
        [
            f"{words.done} {counted(counts.changed, 'job')}",
            *(f"{count:,} {what}" for what, count in rest.items() if count),
        ]
    )
