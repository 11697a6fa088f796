"""
Durations as people write them: ``"500ms"``, ``"30s"``, ``"1h30m"``; knows no setting and no rule about one.

The grammar, whole: one or more parts, each a number and one of the units ``d``, ``h``, ``m``, ``s``, ``ms``, from the
longest unit to the shortest, each unit at most once, with nothing between them. A number may have decimals
(``"1.5s"``) as long as the part is a whole number of microseconds, so nothing is ever rounded. Zero alone needs no
unit. Any other number without one is refused: whether ``30`` means seconds or milliseconds is not ours to guess.

Beside it, how other values stand in a sentence: `shown` and `counted`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Final, Literal, TypeAlias

DurationLike: TypeAlias = timedelta | str | Literal[0]
"""What a duration may be given as."""

_MILLISECOND: Final = 1_000
#: unit -> microseconds, from the longest to the shortest: the order in which a duration names them.
_UNITS: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": _MILLISECOND,
}
_PART: Final = re.compile(r"([0-9]+)(?:\.([0-9]+))?([^\W\d_]*)")
_EXAMPLE: Final = "write it like '500ms', '30s' or '1h30m'"
_LONGEST_TEXT: Final = 100
"""Characters; the longest timedelta needs 29."""
_LONGEST_SHOWN: Final = 80
"""Characters of a value in an error."""


def parse_duration(value: DurationLike) -> timedelta:
    """
    Return the duration that *value* says, exactly.

    Args:
        value: A ``timedelta``, text such as ``"1h30m"``, or zero.

    Raises:
        ValueError: *value* is negative, has no unit, or is nothing of the kind; the message says which.
    """
    given: object = value
    if isinstance(given, timedelta):
        duration = timedelta(given.days, given.seconds, given.microseconds)  # sheds a subclass
        if duration < timedelta(0):
            raise ValueError(f"{format_duration(duration)} is negative, which no duration can be")
        return duration
    if isinstance(given, str):
        return _from_text(given.strip())
    if type(given) is int and given == 0:
        return timedelta(0)
    number = isinstance(given, int | float) and not isinstance(given, bool)
    fault = "has no unit" if number else "is not a duration"
    raise ValueError(f"{shown(given)} {fault}: {_EXAMPLE}, or give a timedelta")


def format_duration(duration: timedelta) -> str:
    """
    Return *duration* as text that `parse_duration` reads back to the microsecond.

    What is finer than a millisecond becomes decimals of one (``"0.25ms"``). A negative duration gets a sign,
    so that a message can show it; there is no reading that back.
    """
    total = duration // timedelta(microseconds=1)
    rest = abs(total)
    parts = ["-"] if total < 0 else []
    for unit, size in _UNITS.items():
        if unit == "ms":
            break
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    if rest:
        whole, fine = divmod(rest, _MILLISECOND)
        parts.append(f"{whole}.{fine:03}".rstrip("0").rstrip(".") + "ms")
    return "".join(parts) or "0"


def shown(value: object) -> str:
    """
    Return *value* as an error message shows it: quoted where it is text, and cut where it is long.
    """
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python is ready to write
        text = f"{type(value).__name__} too long to show"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def counted(number: int, noun: str) -> str:
    """
    Return ``1 job``, ``2 jobs``.
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _from_text(text: str) -> timedelta:
    if text == "0":
        return timedelta(0)
    if not text:
        raise ValueError(f"an empty text is not a duration: {_EXAMPLE}")
    if text.startswith("-") and _PART.match(text, 1):
        raise ValueError(f"{shown(text)} is negative, which no duration can be")
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"{shown(text)} is not a duration, it has {len(text)} characters: {_EXAMPLE}")
    total = 0
    named: list[str] = []
    for whole, fraction, unit in list(_parts(text)):  # all of it, before a unit is judged
        _check_unit(text, unit, named)
        named.append(unit)
        total += _microseconds(text, whole, fraction, unit)
    try:
        return timedelta(microseconds=total)
    except OverflowError:
        raise ValueError(f"{shown(text)} is too long: at most {timedelta.max.days}d") from None


def _parts(text: str) -> Iterator[tuple[str, str, str]]:
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError(f"{shown(text)} is not a duration: {_EXAMPLE}")
        whole, fraction, unit = part.groups(default="")
        yield whole, fraction, unit
        at = part.end()


def _check_unit(text: str, unit: str, named: list[str]) -> None:
    order = list(_UNITS)
    if not unit:
        raise ValueError(f"{shown(text)} has a number with no unit: {_EXAMPLE}")
    if unit not in _UNITS:
        raise ValueError(f"{shown(text)} has the unknown unit {shown(unit)}: the units are {', '.join(order)}")
    if unit in named:
        raise ValueError(f"{shown(text)} names {unit} twice: each unit stands once, as in '1h30m'")
    if named and order.index(unit) < order.index(named[-1]):
        raise ValueError(f"{shown(text)} names {named[-1]} before {unit}: the longer unit comes first, as in '1h30m'")


def _microseconds(text: str, whole: str, fraction: str, unit: str) -> int:
    denominator: int = 10 ** len(fraction)
    scaled, lost = divmod(int(whole + fraction) * _UNITS[unit], denominator)
    if lost:
        raise ValueError(f"{shown(text)} is finer than a microsecond (0.001ms): leave out the last decimals")
    return scaled
