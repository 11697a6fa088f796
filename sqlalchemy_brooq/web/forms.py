"""
The form that looks for jobs: what its fields mean, and what leads from one page of them to the next and back.

Owns the fields' names. What a question may ask, `search` knows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from werkzeug.datastructures import MultiDict

from sqlalchemy_brooq.durations import parse_duration
from sqlalchemy_brooq.operations import CANCELABLE
from sqlalchemy_brooq.search import InvalidQuery, JobQuery
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState

TEXTS: Final = ("topic", "key", "path", "value", "clock", "within", "since", "until")
"""Fields of one text each; ``state`` may come several times."""
CLOCKS: Final = ("created", "ended")
TRAIL: Final = 12
"""Pages that one can go back; the first one is always a click away."""
_SEPARATOR: Final = "~"
_DIGITS: Final = 10
"""A number of so many digits is nobody's page."""


@dataclass(frozen=True, slots=True)
class JobForm:
    """
    What was filled in, as it was.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    states: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: MultiDict[str, str]) -> JobForm:
        """
        Return what *given* says; fields that are empty were not filled in.
        """
        texts = {name: text for name in TEXTS if (text := given.get(name, "").strip())}
        if "clock" in texts and not texts.keys() & {"within", "since", "until"}:
            del texts["clock"]
        return cls(texts, tuple(dict.fromkeys(filter(None, given.getlist("state")))))

    def __getattr__(self, name: str) -> str:
        if name in TEXTS:
            return self.texts.get(name, "")
        raise AttributeError(name)

    @property
    def arguments(self) -> dict[str, Any]:
        """
        What a link repeats.
        """
        return {**self.texts, **({"state": list(self.states)} if self.states else {})}

    @property
    def is_empty(self) -> bool:
        """
        Whether nothing was filled in.
        """
        return not self.arguments

    @property
    def has_more(self) -> bool:
        """
        Whether one of the fields was that are folded away.
        """
        return bool(self.texts.keys() & {"path", "value", "since", "until"})

    @property
    def job_id(self) -> UUID | None:
        """
        The id of a job, if that is all that was looked for.
        """
        try:
            return UUID(self.texts["key"]) if self.texts.keys() == {"key"} and not self.states else None
        except ValueError:
            return None

    @property
    def cancelable(self) -> frozenset[JobState]:
        """
        The states of those jobs among these that can be canceled; empty: none can.
        """
        return frozenset() if self._asks_for_ends else self._among(CANCELABLE, CANCELABLE)

    @property
    def replayable(self) -> frozenset[JobState]:
        """
        The states of those among these that can be replayed; the dead alone where no state was chosen.
        """
        return self._among(TERMINAL, frozenset({JobState.DEAD}))

    @property
    def _asks_for_ends(self) -> bool:
        return self.clock == "ended"

    def _among(self, fitting: frozenset[JobState], otherwise: frozenset[JobState]) -> frozenset[JobState]:
        return fitting & frozenset(map(_state, self.states)) if self.states else otherwise

    def query(self, states: Collection[JobState] = ()) -> JobQuery:
        """
        Return what is asked.

        Args:
            states: Asked for in the place of those that were filled in.

        Raises:
            InvalidQuery: A field says nothing that can be asked.
        """
        return JobQuery(
            topics=(self.topic,) if self.topic else (),
            states=frozenset(states or map(_state, self.states)),
            key=self.texts.get("key"),
            payload=self._payload(),
            **self._moments(),
        )

    def _payload(self) -> tuple[tuple[str, str], ...]:
        if "value" in self.texts and "path" not in self.texts:
            raise InvalidQuery("a value in the payload needs the path that leads to it, such as customer.id")
        if "path" in self.texts and "value" not in self.texts:
            raise InvalidQuery(f"which value is looked for at {self.path}? Say it beside the path")
        return ((self.path, self.value),) if "path" in self.texts else ()

    def _moments(self) -> dict[str, Any]:
        clock = self.clock or "created"
        if clock not in CLOCKS:
            raise InvalidQuery(f"{clock} is no clock: jobs are looked for by when they were created or ended")
        if self.within and self.since:
            raise InvalidQuery("a job can't be looked for within a time and from a moment on: give one of the two")
        since = _ago(self.within) if self.within else _moment(self.since)
        moments = {f"{clock}_since": since, f"{clock}_until": _moment(self.until)}
        return {name: moment for name, moment in moments.items() if moment is not None}


@dataclass(frozen=True, slots=True)
class Trail:
    """
    The way to a page: the cursors that led there, the latest ones if they were many; the first page has none.
    """

    cursors: tuple[str, ...] = ()
    number: int = 1
    """Of the page, from 1."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Trail:
        """
        Return the trail that an address has.
        """
        cursors = tuple(filter(None, given.get("after", "").split(_SEPARATOR)))
        number = given.get("page", "")
        return cls(cursors, max(int(number) if number.isdecimal() and len(number) < _DIGITS else 1, len(cursors) + 1))

    @property
    def after(self) -> str | None:
        """
        The cursor of this page.
        """
        return self.cursors[-1] if self.cursors else None

    @property
    def arguments(self) -> dict[str, str]:
        """
        What leads to this page.
        """
        return {"after": _SEPARATOR.join(self.cursors), "page": str(self.number)} if self.cursors else {}

    @property
    def back(self) -> Trail | None:
        """
        The page before this one; ``None``: there is none, or nobody remembers the way.
        """
        if not self.cursors or (len(self.cursors) == 1 and self.number > 2):  # noqa: PLR2004 - the second page
            return None
        return Trail(self.cursors[:-1], self.number - 1)

    def on(self, cursor: str) -> Trail:
        """
        Return the page after this one.
        """
        return Trail((*self.cursors, cursor)[-TRAIL:], self.number + 1)


def _state(name: str) -> JobState:
    try:
        return JobState(name)
    except ValueError:
        raise InvalidQuery(f"{name} is no state: they are {', '.join(JobState)}") from None


def _ago(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidQuery(str(error)) from error


def _moment(text: str) -> datetime | None:
    """
    Return the moment that a browser's field for one says, in UTC if it says no zone.
    """
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the latter at the ends of the calendar
        raise InvalidQuery(f"{text} is no moment: write it like 2026-12-01T16:30") from None
