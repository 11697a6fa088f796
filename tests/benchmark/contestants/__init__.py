"""
What takes part in the benchmark: ours, and what it is held against.

A module here is a contestant, or several: `find` gives it what stands behind the colon of a name. One that lives
elsewhere is named by its whole path, ``package.module:variant``. It is imported by the parent and by its own processes,
which may run in another environment: what only one of them has is imported where it is needed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar, Literal, NamedTuple, Protocol, cast

from tests.benchmark.marks import Marks
from tests.benchmark.orders import Bulk, Single, Work

Kind = Literal["async", "threads", "loop", "command", "peer", "producer"]
"""
What runs the jobs: ours on an event loop or on threads, a plain loop, ours by its command; another queue; or another
one of which the bulk enqueue alone takes part.
"""


class Rates(NamedTuple):
    """
    Jobs that are done in a second, about: measurements of contestants that differ a hundredfold shall take as long.
    """

    bulk: int
    single: int
    drain: int


class Gate(Protocol):
    """
    The parent, as a process of a measurement sees it.
    """

    ended: threading.Event
    """Set when the measurement is over."""

    def wait(self) -> None:
        """
        Say that everything is ready, and wait for the start.
        """


class Contestant(Protocol):
    """
    A queue, as the benchmark sees it.
    """

    name: str
    """As it stands in the tables."""
    spec: str
    """As `find` found it."""
    kind: Kind
    tables: str
    """What kind of tables it has: contestants of one kind share a template."""
    rates: Rates

    @property
    def python(self) -> str:
        """
        The Python that runs its processes.
        """

    unsettled: str
    """SQL whose answer is a row while a job that has begun isn't over; cheap."""

    def versions(self) -> Mapping[str, str]:
        """
        Return what it is made of, and in which version.
        """

    # -- in the parent

    def set_up(self, url: str) -> None:
        """
        Have the tables made in an empty database.
        """

    def fill(self, url: str, kind: Stock, count: int) -> None:
        """
        Have *count* jobs of a *kind* put into the tables.
        """

    def stock(self, kind: Stock, count: int) -> str:
        """
        Return the SQL that does the same, where there is such a thing.
        """

    # -- in a process of its own

    def prepare(self, url: str) -> None:
        """
        Make the tables in an empty database.
        """

    def work(self, order: Work, marks: Marks, gate: Gate) -> None:
        """
        Run jobs until the gate says that it is over; mark each, by the ``n`` of its payload, where its handler begins.
        """

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        """
        Enqueue jobs one by one, numbered from 0, and return the ``seconds`` that it took.
        """

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        """
        Enqueue jobs and return the ``seconds`` that it took, and, where there is such a thing, ``building``: those that
        it took before to make the objects.
        """


Stock = Literal["ready", "finished", "others", "future"]
"""Jobs to be drained; those that are over; ready ones of other topics, older than the first; and scheduled ones."""

DEFAULT: tuple[str, ...] = ("ours:async", "ours:threads", "bare")


def find(spec: str) -> Contestant:
    """
    Return the contestant that *spec* names.
    """
    module, _, variant = spec.partition(":")
    path = module if "." in module else f"{__name__}.{module}"
    contestant = cast(Contestant, import_module(path).make(variant))
    contestant.spec = spec
    return contestant


class InOurTable:
    """
    A contestant whose jobs are rows of the table ``job``.
    """

    spec = ""
    tables = "ours"
    python = sys.executable
    unsettled = "SELECT 1 FROM job WHERE state = 'processing' AND locked_until IS NOT NULL LIMIT 1"

    _STOCK: ClassVar[Mapping[Stock, str]] = {
        "ready": """
            INSERT INTO job (topic, payload)
            SELECT 'bench', jsonb_build_object('n', n) FROM generate_series(0, {count} - 1) n""",
        "finished": """
            INSERT INTO job (topic, payload, state, attempts, available_at, claimed_at, locked_by, locked_until,
                             created_at, updated_at)
            SELECT 'bench', jsonb_build_object('n', n), 'done', 1, at, at, 'host:1:00000000', at + interval '2 min',
                   at, at
            FROM (SELECT n, now() - (1 + {count} - n) * interval '1 s' AS at
                  FROM generate_series(1, {count}) n) made""",
        "others": """
            INSERT INTO job (topic, payload, available_at)
            SELECT 'other.' || n % 50, jsonb_build_object('n', n), now() - interval '1 hour'
            FROM generate_series(1, {count}) n""",
        "future": """
            INSERT INTO job (topic, payload, available_at)
            SELECT 'bench', jsonb_build_object('n', n), now() + interval '1 day' + n * interval '1 s'
            FROM generate_series(1, {count}) n""",
    }

    def set_up(self, url: str) -> None:
        self.prepare(url)

    def prepare(self, url: str) -> None:
        raise NotImplementedError(f"{type(self).__name__} has to make its tables itself")

    def fill(self, url: str, kind: Stock, count: int) -> None:
        import psycopg

        with psycopg.connect(url.replace("+psycopg", "", 1), autocommit=True) as connection:
            connection.execute(self.stock(kind, count).encode())  # made from constants and a number

    def stock(self, kind: Stock, count: int) -> str:
        return self._STOCK[kind].format(count=count)
