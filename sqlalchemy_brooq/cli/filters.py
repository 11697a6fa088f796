"""
The options that say which jobs are meant.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from sqlalchemy_brooq.browse import Filter
from sqlalchemy_brooq.cli.database import duration, plain_text
from sqlalchemy_brooq.cli.endings import Refused
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState

Function = TypeVar("Function", bound=Callable[..., Any])

TOPIC: Final = click.option(
    "--topic", "topics", metavar="TOPIC", multiple=True, type=plain_text, help="Of this topic. Repeat it for more."
)
_OPTIONS: Final = (
    TOPIC,
    click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice([state.value for state in JobState]),
        help="In this state. Repeat it for more.",
    ),
    click.option("--key", metavar="KEY", type=plain_text, help="With this idempotency key."),
    click.option("--older-than", metavar="DURATION", type=duration, help="Enqueued at least so long ago, such as 2h."),
    click.option("--newer-than", metavar="DURATION", type=duration, help="Enqueued less than so long ago."),
    click.option("--ended-within", metavar="DURATION", type=duration, help="Over, and for less than so long."),
)


def filter_options(function: Function) -> Function:
    """
    Decorate a command with the options of a `Filter`; `made_filter` takes what they say.
    """
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def made_filter(
    topics: tuple[str, ...],
    states: tuple[str, ...],
    key: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
    ended_within: timedelta | None,
) -> Filter:
    """
    Return the filter that the options say.

    Raises:
        Refused: No job could ever pass it.
    """
    wanted = frozenset(map(JobState, states))
    if ended_within is not None and wanted and not wanted & TERMINAL:
        raise Refused(f"--ended-within is about jobs that are over, and none is that is {' or '.join(sorted(wanted))}")
    if older_than is not None and newer_than is not None and older_than >= newer_than:
        raise Refused("--older-than is not shorter than --newer-than: no job is both")
    return Filter(topics, wanted, key, older_than, newer_than, ended_within)
