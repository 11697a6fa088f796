"""
The demo: a small shop that enqueues jobs in its transactions, workers that run them, and one that is killed.

The composition root of this package: puts the place, the workers and the story together, and takes them apart again
whatever happens.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Final, TextIO

from sqlalchemy import URL, Engine

from sqlalchemy_brooq.demo.account import Account
from sqlalchemy_brooq.demo.crew import Crew
from sqlalchemy_brooq.demo.handlers import shop_engine
from sqlalchemy_brooq.demo.interrupts import Interrupts, Stopped
from sqlalchemy_brooq.demo.place import Place, checked_url, embedded, own_schema
from sqlalchemy_brooq.demo.stage import Stage
from sqlalchemy_brooq.demo.story import Story

SEED: Final = 1
TITLE: Final = "A small shop, its jobs, and a worker that is killed"


def run_demo(database_url: str | URL | None = None, *, seed: int = SEED, out: TextIO | None = None) -> int:
    """
    Run the demo, which takes less than a minute, and tell what happens.

    Nothing is left behind: no process, folder or schema, also after Ctrl-C, an error, or ``kill -9`` of this process.
    In the main thread it answers to SIGINT, SIGTERM and SIGHUP while it runs.

    Args:
        database_url: A PostgreSQL server, on which it works in a schema of its own. By default it starts one.
        seed: Picks the customers and what they order; the same seed is the same day.
        out: Where the account goes; by default to standard output.

    Returns:
        The exit code: 0 if every promise was kept, otherwise 1; 128 and the signal's number if one stopped it.

    Raises:
        ConfigError: *database_url* doesn't lead to a PostgreSQL.
        PostgresUnavailable: There is no PostgreSQL to start.
        DemoUnavailable: The database can't be reached, or no schema can be made there.
        WorkerFailed: A worker ended by itself.
    """
    url = None if database_url is None else checked_url(database_url)
    account = Account(out or sys.stdout)
    with Interrupts() as interrupts:
        code = 1
        with contextlib.suppress(Stopped):
            code = _tell(account, url, interrupts, seed)
        _end(account, url, interrupts.number)
        return code if interrupts.number is None else 128 + interrupts.number


def _tell(account: Account, url: URL | None, interrupts: Interrupts, seed: int) -> int:
    """
    Tell the story in its place, take everything away again, and return the exit code.
    """
    with (
        embedded(interrupts) if url is None else own_schema(url, interrupts) as place,
        Crew(place.url, interrupts) as crew,
        _engine(place.url) as engine,
        interrupts.over_afterwards(),
    ):
        _introduce(account, place, seed)
        return 0 if Story(Stage(account, engine, crew, interrupts), seed).tell() else 1


def _introduce(account: Account, place: Place, seed: int) -> None:
    account.title(TITLE)
    if place.schema is None:
        account.say(f"PostgreSQL {place.version}, started for this and gone afterwards. Seed {seed}.")
        account.note("Each statement below is what one would type in psql.")
        return
    account.say(f"PostgreSQL {place.version}, in a schema made for this and dropped afterwards. Seed {seed}.")
    account.note("Each statement below is what one would type in psql, after")
    account.note(f"=> SET search_path TO {place.schema};")


def _end(account: Account, url: URL | None, signal_number: int | None) -> None:
    gone = "The server is gone, with its folder" if url is None else "The schema was dropped"
    if signal_number is None:
        account.say(f"{gone}: nothing is left behind.")
    elif account.has_begun:
        account.say(f"Stopped by {signal.Signals(signal_number).name}. {gone}: nothing is left behind.")
    else:
        account.say(f"Stopped by {signal.Signals(signal_number).name}, before it began.")


@contextlib.contextmanager
def _engine(url: URL) -> Iterator[Engine]:
    engine = shop_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()
