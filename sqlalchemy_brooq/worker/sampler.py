"""
The gauge sampler: asks the database how many jobs stand where, as long as somebody looks at the gauges.

Owns when that is asked and how long it may take. What a scrape shows of it is for the metrics.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from sqlalchemy import Executable
from sqlalchemy.exc import OperationalError

from sqlalchemy_brooq.gauges import Kind, Sample, Watch
from sqlalchemy_brooq.schema import translated_schema
from sqlalchemy_brooq.sqlstates import QUERY_CANCELED, sqlstate
from sqlalchemy_brooq.statements import watching
from sqlalchemy_brooq.worker.connection import Transactions
from sqlalchemy_brooq.worker.log import log

PERIODS: Final[Mapping[Kind, float]] = MappingProxyType(
    {Kind.READY_AGES: 15.0, Kind.ACTIVE_COUNTS: 15.0, Kind.TERMINAL_COUNTS: 60.0}
)
"""Seconds between samples."""
NAP: Final = min(PERIODS.values())
"""The longest pause between rounds, also of rounds that ask for nothing, in seconds."""
INTEREST: Final = 120.0
"""Seconds after the last scrape for which sampling goes on."""
BUDGET: Final = 1.0
"""Seconds that one sample may take in the database."""
LONGEST_PERIOD: Final = 1_920.0
"""Seconds between samples that never fit into the budget."""

_TIME_LIMIT: Final = watching.time_limit()
_STATEMENTS: Final[Mapping[Kind, Executable]] = MappingProxyType(
    {
        Kind.READY_AGES: watching.ready_ages(),
        Kind.ACTIVE_COUNTS: watching.active_counts(),
        Kind.TERMINAL_COUNTS: watching.terminal_counts(),
    }
)


class SamplerPort(Protocol):
    """
    What the sampler asks for.
    """

    def sample(self, kind: Kind) -> Sample | None:
        """
        Ask the database; ``None`` where it did not answer within the budget.
        """


@dataclass(slots=True)
class _Schedule:
    """
    When one kind of sample is due.
    """

    kind: Kind
    due: float
    period: float


class Sampler:
    """
    Takes samples while somebody scrapes: the first at once, none from 2 minutes after the last scrape to the next.

    A kind that takes longer than its budget is asked for less and less often: on such a table it would cost
    something and yield nothing.

    Args:
        port: Asks the database.
        watch: Shows what was found, and tells of scrapes.
        clock: Seconds that only rise.
    """

    def __init__(self, port: SamplerPort, watch: Watch, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._watch = watch
        self._clock = clock
        self._scraped_at = clock()
        self._schedules = [_Schedule(kind, self._scraped_at, PERIODS[kind]) for kind in Kind]
        self.wake: Callable[[], None] = lambda: None
        """Lets the next round begin now."""
        watch.on_scrape = self.scraped

    def scraped(self) -> None:
        """
        Take note that somebody looked at the gauges; callable from any thread.
        """
        self._scraped_at = self._clock()
        self.wake()

    def round(self) -> float:
        """
        Take the samples that are due, and return the seconds until the next round.
        """
        now = self._clock()
        if now - self._scraped_at >= INTEREST:
            return NAP
        for schedule in self._schedules:
            if now >= schedule.due:
                self._take(schedule)
        return max(min(schedule.due for schedule in self._schedules) - self._clock(), 0.0)

    def close(self) -> None:
        """
        Show nothing any more.
        """
        self._watch.on_scrape = lambda: None
        self._watch.clear()

    def _take(self, schedule: _Schedule) -> None:
        began = self._clock()
        sample = self._port.sample(schedule.kind)
        if sample is None:
            self._slow_down(schedule)
        else:
            schedule.period = PERIODS[schedule.kind]
            self._watch.show(schedule.kind, sample)
        schedule.due = began + schedule.period

    def _slow_down(self, schedule: _Schedule) -> None:
        level = logging.WARNING if schedule.period == PERIODS[schedule.kind] else logging.DEBUG
        schedule.period = min(schedule.period * 2, LONGEST_PERIOD)
        text = "sampler: the %s took longer than %g s: they are left out of the metrics; next try in %g s"
        log.log(level, text, schedule.kind.value, BUDGET, schedule.period)


class SamplerStore:
    """
    The sampler's verb: a transaction a sample, none longer than the budget.
    """

    def __init__(self, transactions: Transactions, budget: float = BUDGET) -> None:
        self._transactions = transactions
        self._budget = budget

    def sample(self, kind: Kind) -> Sample | None:
        """
        Ask the database; ``None`` where it did not answer within the budget.
        """
        try:
            with self._transactions() as connection:
                connection.execute(_TIME_LIMIT, {"milliseconds": round(self._budget * 1_000)})
                table = connection.execute(watching.table_identity(translated_schema(connection))).one()
                rows = connection.execute(_STATEMENTS[kind]).all()
        except OperationalError as error:
            if sqlstate(error) == QUERY_CANCELED:
                return None
            raise
        return Sample(tuple(table), dict(map(_measured, rows)))


def _measured(row: Any) -> tuple[tuple[str, ...], float]:
    *series, value = row
    return tuple(series), float(value or 0)
