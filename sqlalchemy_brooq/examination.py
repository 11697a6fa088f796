"""
What is wrong with a set of values: every problem at once, also those that two settings have with each other.

Goes by the tables in `settings`; knows neither where the values come from nor who holds them afterwards.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from sqlalchemy_brooq.durations import format_duration, shown
from sqlalchemy_brooq.kinds import OFF, host_and_port, is_loopback
from sqlalchemy_brooq.settings import SETTINGS, Setting

#: (the one that must not be longer, the one that it must not exceed)
_ORDERED: Final = (("attempt_timeout", "max_execution_timeout"), ("backoff_base", "backoff_max"))


def examine(
    table: Mapping[str, Setting],
    given: Mapping[str, object],
    label: Callable[[str], str] = str,
    noun: str = "setting",
) -> tuple[dict[str, Any], list[str]]:
    """
    Return the values of all rows of *table* that can be had, and every problem with what was *given*.
    """
    values: dict[str, Any] = {}
    problems = [f"{name}: unknown {noun}{suggestion(name, table)}" for name in given if name not in table]
    for name, row in table.items():
        try:
            values[name] = row.accept(given.get(name, row.default))
        except ValueError as error:
            problems.append(f"{label(name)}: {error}")
    problems += contradictions(values, label, lambda name: "" if name in given else " (the default)")
    problems += _exposed(values, label)
    return values, problems


def contradictions(
    values: Mapping[str, Any], label: Callable[[str], str], origin: Callable[[str], str]
) -> Iterator[str]:
    """
    Yield a problem for each two of *values* that don't go together.

    Args:
        values: Accepted ones; a setting that is missing, as it was refused, contradicts nothing.
        label: Name of a setting -> what a message calls it.
        origin: Name of a setting -> what a message says about where its value is from, if anything.
    """
    for low, high in _ORDERED:
        short, long = values.get(low), values.get(high)
        if short is not None and long is not None and short > long:
            yield (
                f"{label(low)}: {format_duration(short)}{origin(low)} is longer than"
                f" {label(high)}, {format_duration(long)}{origin(high)}: lower the one or raise the other"
            )


def _exposed(values: Mapping[str, Any], label: Callable[[str], str]) -> Iterator[str]:
    address = values.get("listen_address", OFF)
    if address == OFF or values.get("allow_public") or is_loopback(host_and_port(address)[0]):
        return
    yield (
        f"{label('listen_address')}: {shown(address)} is not a loopback address, so other hosts could reach it:"
        f" use 127.0.0.1, or allow it with {label('allow_public')}"
    )


def suggestion(name: str, known: Iterable[str], prefix: str = "") -> str:
    """
    Return the end of a message about the unknown *name*: which of the *known* ones was probably meant, if any.
    """
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {prefix}{close[0]}?" if close else ""


def derive(values: dict[str, Any]) -> frozenset[str]:
    """
    Fill in the values that derive from others; return their names.
    """
    derived = {
        name: row.derived for name, row in SETTINGS.items() if row.derived and values[name] == row.accept(row.default)
    }
    for name, default in derived.items():
        values[name] = default.of(values)
    return frozenset(derived)
