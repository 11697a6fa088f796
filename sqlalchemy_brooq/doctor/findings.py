"""
What the doctor says: findings, each with what to do about it, and what they are based on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from sqlalchemy import Connection, Engine

from sqlalchemy_brooq.durations import format_duration


class Level(StrEnum):
    """
    How bad it is.
    """

    OK = "ok"
    NOTE = "note"
    """Good to know; nobody has to do anything."""
    PROBLEM = "problem"
    """Somebody should do something."""
    UNKNOWN = "unknown"
    """It couldn't be found out: somebody should look."""

    @property
    def needs_a_person(self) -> bool:
        """
        Whether all is not well.
        """
        return self in (Level.PROBLEM, Level.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Finding:
    """
    One thing that was found.
    """

    check: str
    """What was looked at, in a word or two."""
    level: Level
    text: str
    advice: tuple[str, ...] = ()
    """What to do, in this order."""


@dataclass(frozen=True, slots=True)
class Patient:
    """
    The database that is looked at, and what is expected of it.
    """

    engine: Engine
    """A psycopg engine; its ``schema_translate_map`` says where the table is."""
    topics: frozenset[str] | None = None
    """The topics that are served; ``None``: not known."""
    reaper_period: timedelta = timedelta(seconds=30)
    wakeup: str = "listen"
    old: timedelta = timedelta(minutes=10)
    """From when on a transaction is old."""


@dataclass(frozen=True, slots=True)
class Room:
    """
    What a check works with.
    """

    patient: Patient
    connection: Connection
    """In a short transaction of the check's own."""
    schema: str | None
    """Where the table is, if not wherever ``job`` leads."""
    table: int
    """Its OID; 0 where there is none."""
    is_standby: bool


Check: TypeAlias = Callable[[Room], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Reporter:
    """
    Makes the findings of one check.
    """

    check: str

    def ok(self, text: str) -> Finding:
        """
        Say that all is well.
        """
        return Finding(self.check, Level.OK, text)

    def note(self, text: str, *advice: str) -> Finding:
        """
        Say what is good to know.
        """
        return Finding(self.check, Level.NOTE, text, advice)

    def problem(self, text: str, *advice: str) -> Finding:
        """
        Say what is wrong; somebody should follow *advice*.
        """
        return Finding(self.check, Level.PROBLEM, text, advice)

    def unknown(self, text: str, *advice: str) -> Finding:
        """
        Say what couldn't be found out.
        """
        return Finding(self.check, Level.UNKNOWN, text, advice)


def ago(seconds: float) -> str:
    """
    Return *seconds* as a duration, to the second.
    """
    return format_duration(timedelta(seconds=min(int(max(seconds, 0)), _EVER)))


_EVER: Final = 10_000 * 365 * 86_400
