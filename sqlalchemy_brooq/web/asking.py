"""
What a request asks for: the words of a query string or of a JSON body, read into the library's own terms.

Owns the names of the parameters, which the pages' addresses have as well, and what is said about a value that is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl
from uuid import UUID

from sqlalchemy_brooq.durations import shown
from sqlalchemy_brooq.kinds import DURATION, MAX_INTEGER
from sqlalchemy_brooq.search import InvalidQuery, JobQuery
from sqlalchemy_brooq.statements.browsing import PRIVATE
from sqlalchemy_brooq.statements.searching import Since
from sqlalchemy_brooq.vocabulary import JobState

T = TypeVar("T")

Arguments: TypeAlias = Mapping[str, list[str]]
"""Parameters of a query string, each with all its values."""

FIELDS: Final = 200
"""Parameters that one query string may have."""
PAGE: Final = 50
LONGEST_PAGE: Final = 500
"""Jobs on a page, where a request names no other number, and at most."""
BUCKETS: Final = 60
MOST_BUCKETS: Final = 500
"""The same of the buckets of a chart."""
PAYLOAD: Final = "payload."
"""What the name of a parameter begins with that looks into payloads."""
MOMENTS: Final = ("created_since", "created_until", "ended_since", "ended_until")
SEVERAL: Final = frozenset({"topic", "state", "include"})
"""Parameters that may be given more than once."""
FILTER: Final = ("topic", "state", "key", *MOMENTS)
#: parameter -> the field of a body that says the same
PLURALS: Final = {"topic": "topics", "state": "states"}


def arguments(query_string: bytes, names: Iterable[str], *, from_form: bool = False) -> dict[str, list[str]]:
    """
    Return the parameters of a query string.

    Args:
        query_string: As it was sent.
        names: Those that there are; `PAYLOAD` stands for all that begin so.
        from_form: Whether empty ones count as not given: a form sends all that it has.

    Raises:
        InvalidQuery: It isn't text, or names what there isn't.
    """
    allowed = frozenset(names)
    found: dict[str, list[str]] = {}
    for name, value in _pairs(query_string):
        is_payload = name.startswith(PAYLOAD) and PAYLOAD in allowed
        if name not in allowed and not is_payload:
            raise InvalidQuery(f"there is no parameter {shown(name)} here: {_listed(allowed)}")
        if value or is_payload:
            found.setdefault(name, []).append(value)
        elif not from_form:
            raise InvalidQuery(f"{name}: it is empty: give it a value, or leave it out")
    for name, values in found.items():
        if len(values) > 1 and name not in SEVERAL:
            raise InvalidQuery(f"{shown(name)} is given {len(values)} times: once is enough")
    return found


def query_of(given: Arguments) -> JobQuery:
    """
    Return the question that parameters ask.

    Raises:
        InvalidQuery: A value is none.
    """
    return JobQuery(
        topics=tuple(given.get("topic", ())),
        states=frozenset(map(state, given.get("state", ()))),
        key=single(given, "key", str),
        **{name: single(given, name, since) for name in MOMENTS},
        payload=tuple(
            (name.removeprefix(PAYLOAD), value)
            for name, values in given.items()
            for value in values
            if name.startswith(PAYLOAD)
        ),
    )


def single(given: Arguments, name: str, read: Callable[[str], T]) -> T | None:
    """
    Return the one value of a parameter as *read* takes it; ``None`` where it isn't given.

    Raises:
        InvalidQuery: *read* refuses it, with a ``ValueError``.
    """
    values = given.get(name)
    if not values:
        return None
    try:
        return read(values[0])
    except ValueError as error:
        raise InvalidQuery(f"{name}: {error}") from None


def state(text: str) -> JobState:
    """
    Return the state that *text* names.
    """
    try:
        return JobState(text)
    except ValueError:
        raise InvalidQuery(f"state: {shown(text)} is none: {_listed(JobState)}") from None


def since(text: str) -> Since:
    """
    Return the moment that *text* is, or how long ago it was.
    """
    if re.match("[0-9]{4}-", text) is None:
        return duration(text)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(
        f"{shown(text)} is no moment: write it like 2026-12-01T08:30:00Z, with its time zone (and a + in an address as"
        " %2B), or how long ago that was, like 1h30m"
    )


def duration(text: str) -> timedelta:
    """
    Return the duration that *text* says.
    """
    return cast(timedelta, DURATION.check(text))


def number(least: int, most: int) -> Callable[[str], int]:
    """
    Return what reads a whole number from *least* to *most*.
    """

    def read(text: str) -> int:
        if re.fullmatch("[0-9]{1,9}", text) and least <= int(text) <= most:
            return int(text)
        raise ValueError(f"{shown(text)} is no whole number from {least} to {most}")

    return read


def included(given: Arguments) -> frozenset[str]:
    """
    Return what of each job is asked for beside the plain facts.
    """
    names = frozenset(given.get("include", ()))
    for name in names - PRIVATE.keys():
        raise InvalidQuery(f"include: {shown(name)} is nothing that there is: {_listed(PRIVATE)}")
    return names


@dataclass(frozen=True, slots=True)
class Order:
    """
    What is to be done to which jobs.
    """

    which: JobQuery | list[UUID]
    expected: int | None
    """How many jobs a question meant when they were counted; ``None``: they are to be counted now."""


def order_of(body: object) -> Order:
    """
    Return what the JSON value *body* orders: jobs by ``ids``, or by ``filter`` with ``dry_run`` or ``expected``.

    Raises:
        InvalidQuery: It is nothing of the kind.
    """
    given = _object("the body", body, {"ids", "filter", "dry_run", "expected"})
    if ("ids" in given) == ("filter" in given):
        raise InvalidQuery("say which jobs: by ids or by a filter, and not by both")
    if "ids" in given:
        if len(given) > 1:
            raise InvalidQuery("dry_run and expected go with a filter: ids say which jobs these are")
        return Order([_id(one) for one in _texts("ids", given["ids"])], None)
    dry_run, expected = given.get("dry_run", False), None
    if not isinstance(dry_run, bool):
        raise InvalidQuery(f"dry_run: {shown(dry_run)} is neither true nor false")
    if "expected" in given:
        expected = _count("expected", given["expected"])
    if dry_run == (expected is not None):
        raise InvalidQuery("count first, with dry_run true; then give that number as expected, and no dry_run")
    return Order(_query_of_object(given["filter"]), expected)


def decoded(data: bytes) -> object:
    """
    Return the JSON value that *data* is.

    Raises:
        ValueError: It is none.
    """
    try:
        return json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _query_of_object(value: object) -> JobQuery:
    names = {PLURALS.get(name, name) for name in FILTER}
    given = _object("filter", value, {*names, "payload"})
    fields: dict[str, list[str]] = {}
    for name in FILTER:
        field = PLURALS.get(name, name)
        if field in given:
            fields[name] = _texts(field, given[field]) if name in PLURALS else [_text(field, given[field])]
            if "" in fields[name]:
                raise InvalidQuery(f"{field}: it is empty: give it a value, or leave it out")
    for path, wanted in _object("payload", given.get("payload", {}), None).items():
        fields[PAYLOAD + path] = [_text(f"payload {shown(path)}", wanted)]
    return query_of(fields)


def _object(what: str, value: object, names: Iterable[str] | None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidQuery(f"{what} is to be a JSON object")
    for name in () if names is None else value.keys() - set(names):
        raise InvalidQuery(f"{what} has nothing called {shown(name)}: {_listed(names or ())}")
    return value


def _texts(what: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise InvalidQuery(f"{what} is to be a JSON array")
    return [_text(what, one) for one in value]


def _count(what: str, value: object) -> int:
    """
    Return *value* as a number of something; 2.0 is one, as JSON knows no difference.
    """
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, int) and not isinstance(whole, bool) and 0 <= whole <= MAX_INTEGER:
        return whole
    raise InvalidQuery(f"{what}: {shown(value)} is no number of jobs")


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidQuery(f"{what}: {shown(value)} is no text")
    return value


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidQuery(f"ids: {shown(text)} is no job's id, which is a UUID") from None


def _pairs(query_string: bytes) -> list[tuple[str, str]]:
    try:
        text = query_string.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
    except UnicodeDecodeError:
        raise InvalidQuery("the query string is not UTF-8 text, with %XX for what isn't ASCII") from None
    except ValueError:
        raise InvalidQuery(f"the query string has more than {FIELDS} parameters") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _listed(names: Iterable[str]) -> str:
    *most, last = sorted(name + "…" if name == PAYLOAD else str(name) for name in names) or ["none"]
    return f"it takes {', '.join(most)} or {last}" if most else f"it takes {last}"
