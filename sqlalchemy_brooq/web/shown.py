"""
How facts are written for people: numbers, moments, durations, and text that may be anything.

Owns the words and the escaping; knows no page. Text from the database is never trusted: besides what HTML needs
escaped, characters that can't be seen, or that turn the direction of what follows, are written out by their number.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from markupsafe import Markup, escape

from sqlalchemy_brooq.durations import counted

UNKNOWN: Final = "unknown"
DASH: Final = "\N{EN DASH}"
CUT: Final = "…"
LINE: Final = 160
"""Characters that a cell shows of a text."""
_TAIL: Final = 8
_UNITS: Final = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
_PLAIN_SPACES: Final = frozenset(" \n\t")
#: Control, format (what turns the direction is among it), surrogate, private, unassigned; ends of lines and paragraphs.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def number(count: float | None) -> str:
    """
    Return *count* with its thousands apart.
    """
    if count is None:
        return UNKNOWN
    return f"{count:,}" if isinstance(count, int) else f"{count:,.1f}"


def short(count: int) -> str:
    """
    Return a round *count* in little room: ``40k``, ``2M``.
    """
    for unit, size in (("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)):
        if count >= size:
            return f"{count / size:g}{unit}"
    return str(count)


def share(part: float | None) -> str:
    """
    Return a share of one as percent: exactly zero is ``0%``, and what is less than it can show is not.
    """
    if part is None:
        return DASH
    if 0 < part < 0.001:  # noqa: PLR2004 - the finest that is shown
        return "<0.1%"
    return f"{part:.0%}" if part in {0, 1} else f"{part:.1%}"


def brief(duration: timedelta | float | None) -> str:
    """
    Return *duration*, seconds if it is a number, in its one or two largest units: ``3d 4h``, ``1.25s``, ``8ms``.
    """
    if duration is None:
        return DASH
    rest = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
    if rest < timedelta(seconds=10):
        return _fine(max(rest, timedelta(0)))
    parts: list[str] = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(filter(None, parts[:2]))


def _fine(duration: timedelta) -> str:
    milliseconds = duration / timedelta(milliseconds=1)
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return "0s" if not milliseconds else f"{max(milliseconds, 1):.0f}ms"
    return f"{milliseconds / 1000:.2f}".rstrip("0").rstrip(".") + "s"


def moment(at: datetime, *, fine: bool = False) -> str:
    """
    Return *at* in UTC, to the second, or to the millisecond.
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds" if fine else "seconds")


def clock(at: datetime, *, fine: bool = False) -> str:
    """
    Return the time of day in UTC, to the minute, or to the second.
    """
    return f"{at.astimezone(UTC):%H:%M:%S}" if fine else f"{at.astimezone(UTC):%H:%M}"


def stamp(at: datetime) -> str:
    """
    Return *at* for the attribute ``datetime``.
    """
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def tail(job_id: UUID | str) -> str:
    """
    Return the end of an id, which is random; its beginning, the time, is the same for neighbours.
    """
    return str(job_id)[-_TAIL:]


def text(value: object) -> Markup:
    """
    Return *value* escaped, with each character that can't be seen as a mark that names it.
    """
    return Markup("").join(_marked(str(value)))


def _marked(value: str) -> Iterator[Markup]:
    for unseen, characters in groupby(value, key=_is_unseen):
        if not unseen:
            yield escape("".join(characters))
            continue
        for character in characters:
            yield Markup('<span class="unseen">U+{:04X}</span>').format(ord(character))


def _is_unseen(character: str) -> bool:
    return character not in _PLAIN_SPACES and unicodedata.category(character) in _UNSEEN


def first_line(value: str, room: int = LINE) -> str:
    """
    Return the first line of *value*, cut to *room* characters.
    """
    line = value.strip().partition("\n")[0]
    return line if len(line) <= room and line == value.strip() else line[:room].rstrip() + CUT


def document(value: Any) -> str:
    """
    Return a payload or a result as lines of JSON; text is taken to be that already.
    """
    raw = getattr(value, "text", value)
    return raw if isinstance(raw, str) else json.dumps(raw, indent=4, ensure_ascii=False, default=str)


def span(duration: timedelta | datetime) -> str:
    """
    Return a round *duration* in words: ``day``, ``30 days``, ``90m``; of a moment, the moment.
    """
    if isinstance(duration, datetime):
        return moment(duration)
    days, rest = divmod(duration, timedelta(days=1))
    if rest or not days:
        return "hour" if duration == timedelta(hours=1) else brief(duration)
    return "day" if days == 1 else counted(days, "day")


def is_id(value: object) -> bool:
    """
    Tell whether *value* is the id of a job, and not some text that stands where one should.
    """
    try:
        UUID(str(value))
    except ValueError:
        return False
    return True


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "brief": brief,
    "clock": clock,
    "counted": counted,
    "document": document,
    "first_line": first_line,
    "is_id": is_id,
    "moment": moment,
    "number": number,
    "share": share,
    "short": short,
    "span": span,
    "stamp": stamp,
    "tail": tail,
    "text": text,
}
"""What the templates call by these names."""
