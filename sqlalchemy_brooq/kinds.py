"""
What a value may be: its kind, which reads it from code and from text, and the rules that it may have to keep to.

Pure checks, each with a refusal that says the value, the rule and the way out. Knows no setting by name, and not where
a value came from.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from sqlalchemy_brooq.durations import DurationLike, format_duration, parse_duration, shown

MAX_INTEGER: Final = 2**31 - 1
"""What PostgreSQL's ``integer`` holds."""
MAX_DURATION: Final = timedelta(days=36_500)
"""A century: a thread can't wait three, and a Python datetime ends with the year 9999."""
MAX_TOKEN: Final = 4_096
"""Characters of a token: servers refuse longer headers."""
OFF: Final = "off"
"""The address of nowhere."""
_FLAGS: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]+)):(?P<port>[0-9]{1,9})")


# How each kind is read. Each function returns the value as it is stored, or raises a ValueError whose
# text begins with the value (never with a secret). A wrong type is a ValueError too: one kind of refusal to collect.


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not an int: write a whole number, such as 4")  # noqa: TRY004 - see above
    if abs(value) > MAX_INTEGER:
        raise ValueError(f"{shown(value)} is out of range: at most {MAX_INTEGER}")
    return int(value)


def _integer_text(text: str) -> int:
    try:
        if re.fullmatch(r"[+-]?[0-9]+", text):
            return int(text)
    except ValueError:  # more digits than Python is ready to read
        raise ValueError(f"{shown(text)} is out of range: at most {MAX_INTEGER}") from None
    raise ValueError(f"{shown(text)} is not a whole number: write digits, such as 4")


def _duration(value: object) -> timedelta:
    duration = parse_duration(cast("DurationLike", value))
    if duration > MAX_DURATION:
        raise ValueError(f"{format_duration(duration)} is too long: at most {format_duration(MAX_DURATION)}")
    return duration


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither True nor False")  # noqa: TRY004 - see above
    return value


def _flag_text(text: str) -> bool:
    if text.lower() not in _FLAGS:
        raise ValueError(f"{shown(text)} is neither yes nor no: one of {', '.join(_FLAGS)}")
    return _FLAGS[text.lower()]


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")  # noqa: TRY004 - see above
    return value


def _address(value: object) -> str:
    text = _word(value)
    if text != OFF:
        host_and_port(text)
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """
    Return what an address such as ``127.0.0.1:8090`` or ``[::1]:8090`` names; raise a ``ValueError`` for no such text.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or not (_is_ipv6(match["six"]) if match["six"] else _HOST.fullmatch(match["host"])):
        raise ValueError(f"{shown(text)} is not host:port: write '127.0.0.1:8090', '[::1]:8090' or 'off'")
    port = int(match["port"])
    if port > 65_535:  # noqa: PLR2004 - TCP's own figure
        raise ValueError(f"{shown(text)} has the port {port}: at most 65535, and 0 means any free one")
    return match["six"] or match["host"], port


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """
    Tell whether *host* can be reached from this machine alone, as far as that is known without looking it up.
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name: where it leads is not known before it is looked up
        return False


def _token(value: object) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f"the token is not text but {type(value).__name__} (it is not shown)")  # noqa: TRY004 - see above
    if len(value) > MAX_TOKEN:
        raise ValueError(f"the token is longer than {MAX_TOKEN} characters (it is not shown)")
    if not value.isprintable() or value != value.strip():  # an HTTP header couldn't carry it
        raise ValueError(
            "the token has a line break, white space at an end, or something else unprintable (it is not shown)"
        )
    return value or None  # an empty token must never open anything


class Kind(NamedTuple):
    """
    A kind of value: how it is read from code and from text, and how it is shown.
    """

    name: str
    check: Callable[[object], object]
    """A value given in code -> the value that is stored."""
    parse: Callable[[str], object]
    """The text of a variable -> what `check` takes."""
    plain: Callable[[Any], object]
    """A stored value -> an int, a bool or text that says it."""


INTEGER: Final = Kind("whole number", _integer, _integer_text, int)
DURATION: Final = Kind("duration", _duration, str, format_duration)
FLAG: Final = Kind("yes or no", _flag, _flag_text, bool)
WORD: Final = Kind("word", _word, str, str)
ADDRESS: Final = Kind("address", _address, str, str)
SECRET: Final = Kind("secret", _token, str, lambda _: "***")


class Rule(NamedTuple):
    """
    What else a value must keep to.
    """

    text: str
    """Completes "it must be ..."."""
    holds: Callable[[Any], bool]


def at_least(least: int) -> Rule:
    """
    Return the rule of a number that has a lower bound.
    """
    return Rule(f"{least} or more", lambda value: value >= least)


def one_of(*words: str) -> Rule:
    """
    Return the rule of a word that is one of a few.
    """
    return Rule(" or ".join(map(repr, words)), lambda value: value in words)


ANY: Final = Rule("", lambda _: True)
POSITIVE: Final = Rule("longer than 0", lambda value: value > timedelta(0))
NOT_NEGATIVE: Final = Rule("0 or longer", lambda value: value >= timedelta(0))
