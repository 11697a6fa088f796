"""
Values that JSON has no word for, and how they stand in a string: dates, times, durations, UUIDs, decimals.

One table for both directions, so that what is written can be read. The forms are those of pydantic and msgspec.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

_DURATION: Final = re.compile(
    r"([+-]?)P(?!$)(?:(\d+)W)?(?:(\d+)D)?(?:T(?!$)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,6}))?S)?)?", re.ASCII
)
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)


class Scalar(NamedTuple):
    """
    A type whose values stand in a string.
    """

    type: type
    expected: str
    write: Callable[[Any], str]
    """Raises a ``ValueError`` at a value that no string can stand for."""
    read: Callable[[str], Any]
    """Raises a ``ValueError`` at a string that is none."""


def duration_text(duration: timedelta) -> str:
    """
    Return *duration* in ISO 8601, exactly: ``P1DT3.000005S``.
    """
    sign, length = ("-", -duration) if duration < timedelta(0) else ("", duration)
    fraction = f".{length.microseconds:06}".rstrip("0") if length.microseconds else ""
    return f"{sign}P{length.days}DT{length.seconds}{fraction}S"


def duration_of(text: str) -> timedelta:
    """
    Return the duration that *text* is in ISO 8601, without years and months, which have no fixed length.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError
    sign, weeks, days, hours, minutes, seconds, fraction = match.groups(default="")
    try:
        length = timedelta(
            weeks=int(weeks or 0),
            days=int(days or 0),
            hours=int(hours or 0),
            minutes=int(minutes or 0),
            seconds=int(seconds or 0),
            microseconds=int(fraction.ljust(6, "0") or 0),
        )
    except OverflowError:
        raise ValueError from None
    return -length if sign == "-" else length


def decimal_text(number: Decimal) -> str:
    """
    Return *number*, if it is finite.
    """
    if not number.is_finite():
        raise ValueError
    return str(number)


def decimal_of(text: str) -> Decimal:
    """
    Return the finite number that *text* is.
    """
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError
    return Decimal(text)


#: A datetime is a date too, so it stands before it.
SCALARS: Final = (
    Scalar(datetime, "a date and time in ISO 8601", datetime.isoformat, datetime.fromisoformat),
    Scalar(date, "a date in ISO 8601", date.isoformat, date.fromisoformat),
    Scalar(time, "a time in ISO 8601", time.isoformat, time.fromisoformat),
    Scalar(timedelta, "a duration in ISO 8601", duration_text, duration_of),
    Scalar(UUID, "a UUID", str, UUID),
    Scalar(Decimal, "a decimal number", decimal_text, decimal_of),
)
