"""
The one table of settings: names, kinds, rules, defaults and help texts.

There is no other list of them: `Config`, the environment, the command line and the docs read this one. Data, and the
check of one value by its row; knows neither who gives a value nor what a setting does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy_brooq.durations import shown
from sqlalchemy_brooq.kinds import (
    ADDRESS,
    ANY,
    DURATION,
    FLAG,
    INTEGER,
    NOT_NEGATIVE,
    POSITIVE,
    SECRET,
    WORD,
    Kind,
    Rule,
    at_least,
    one_of,
)

PREFIX: Final = "QUEUE_"
"""What the name of every variable begins with."""


class Derived(NamedTuple):
    """
    A default that follows from other settings.
    """

    text: str
    of: Callable[[Mapping[str, Any]], timedelta]


class Unparsed(NamedTuple):
    """
    A value that stands in a variable, still to be parsed.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Setting:
    """
    One row of the table of settings.
    """

    name: str
    kind: Kind
    rule: Rule = ANY
    default: object = None
    """As one would write it; of a setting with `derived`, the value that asks for the derived one."""
    help: str = field(kw_only=True)
    """One line."""
    derived: Derived | None = field(default=None, kw_only=True)
    optional: bool = field(default=False, kw_only=True)
    """Whether ``None`` (in a variable: ``none``) is a value."""

    @property
    def variable(self) -> str:
        """
        The name of the environment variable.
        """
        return PREFIX + self.name.upper()

    @property
    def default_text(self) -> str:
        """
        The default as the docs state it.
        """
        text = "none" if self.default is None else str(self.default)
        if self.derived is None:
            return text
        return self.derived.text if self.default is None else f"{text} = {self.derived.text}"

    def accept(self, value: object) -> object:
        """
        Return *value* as it is stored; raise a ``ValueError`` that begins with the value.
        """
        if isinstance(value, Unparsed):
            value = self._parsed(value.text)
        if value is None and self.optional:
            return None
        accepted = self.kind.check(value)
        if not self.rule.holds(accepted):
            raise ValueError(f"{shown(self.plain(accepted))} is refused: it must be {self.rule.text}")
        return accepted

    def plain(self, value: object) -> object:
        """
        Return a stored *value* as something to print: durations as text, secrets masked.
        """
        return None if value is None else self.kind.plain(value)

    def _parsed(self, text: str) -> object:
        if self.kind is SECRET:
            return text
        stripped = text.strip()
        return None if self.optional and stripped.lower() == "none" else self.kind.parse(stripped)


def _retention_period(values: Mapping[str, Any]) -> timedelta:
    """
    Go by the shortest TTL in force: it decides how long a row may stay beyond its time.
    """
    ttls = [ttl for state in ("done", "dead", "canceled") if (ttl := values[f"retention_ttl_{state}"])]
    return min(max(min(ttls, default=timedelta(0)) / 100, timedelta(minutes=1)), timedelta(hours=1))


def _ttl_of(state: str) -> Setting:
    derived = Derived("retention_ttl", lambda values: values["retention_ttl"])
    name = f"retention_ttl_{state}"
    return Setting(name, DURATION, NOT_NEGATIVE, derived=derived, optional=True, help=f"The same for {state} jobs.")


def _table(*rows: Setting) -> Mapping[str, Setting]:
    return MappingProxyType({row.name: row for row in rows})


#: Every setting, in the order of the docs; a derived one stands after those that it derives from.
SETTINGS: Final = _table(
    Setting("workers", INTEGER, at_least(1), 2, help="Handlers that run at once in this process."),
    Setting(
        "prefetch",
        INTEGER,
        at_least(0),
        0,
        help="Jobs claimed ahead of free slots, waiting under lease in this process.",
    ),
    Setting(
        "poll_interval",
        DURATION,
        POSITIVE,
        "1s",
        help="How often an idle worker looks for ready jobs; jitter adds up to half of it.",
    ),
    Setting(
        "wakeup", WORD, one_of("listen", "poll"), "listen", help="Whether NOTIFY wakes workers, or they only poll."
    ),
    Setting("lease", DURATION, POSITIVE, "2m", help="How long a claim holds without a heartbeat."),
    Setting("attempt_timeout", DURATION, POSITIVE, "1m", help="After this long the handler is interrupted."),
    Setting(
        "max_execution_timeout", DURATION, POSITIVE, "5m", help="After this long the attempt has failed, ended or not."
    ),
    Setting(
        "backoff_base", DURATION, POSITIVE, "1s", help="The wait after a first failure; each further one doubles it."
    ),
    Setting("backoff_max", DURATION, POSITIVE, "1m", help="The longest wait between attempts, also for RetryLater."),
    Setting("max_attempts", INTEGER, at_least(1), 5, help="Attempts a job has; a failure of the last makes it dead."),
    Setting(
        "max_requeues",
        INTEGER,
        at_least(1),
        optional=True,
        help="Expired leases a job may have; one more makes it dead. None: no limit.",
    ),
    Setting(
        "reaper_period",
        DURATION,
        POSITIVE,
        derived=Derived("max(5s, lease/4)", lambda values: max(timedelta(seconds=5), values["lease"] / 4)),
        optional=True,
        help="How often expired leases are looked for.",
    ),
    Setting(
        "watchdog_grace",
        DURATION,
        POSITIVE,
        derived=Derived("lease", lambda values: values["lease"]),
        optional=True,
        help="A handler that still runs this long after its interruption is hung.",
    ),
    Setting(
        "shutdown_grace",
        DURATION,
        NOT_NEGATIVE,
        "30s",
        help="How long a stopping worker waits before it interrupts handlers.",
    ),
    Setting("retention_ttl", DURATION, NOT_NEGATIVE, "30d", help="How long finished jobs are kept; 0: for good."),
    _ttl_of("done"),
    _ttl_of("dead"),
    _ttl_of("canceled"),
    Setting("retention_batch", INTEGER, at_least(1), 1000, help="Rows that retention deletes in one transaction."),
    Setting(
        "retention_period",
        DURATION,
        NOT_NEGATIVE,
        "0",
        derived=Derived("min(max(ttl/100, 1m), 1h)", _retention_period),
        help="How often retention runs; 0: by the shortest TTL in force.",
    ),
    Setting(
        "listen_address",
        ADDRESS,
        default="127.0.0.1:8090",
        help="Where /healthz and /metrics are served; port 0: any free one, off: nowhere.",
    ),
    Setting("allow_public", FLAG, default=False, help="Whether listen_address may be one that other hosts reach."),
    Setting("api_token", SECRET, optional=True, help="The bearer token of the API; without one there is no API."),
)

SHARED: Final = (
    "max_attempts",
    "attempt_timeout",
    "max_execution_timeout",
    "backoff_base",
    "backoff_max",
    "max_requeues",
)
#: What a handler may set for itself; of the settings among them, ``None`` means the queue's.
OPTIONS: Final = _table(
    *(replace(SETTINGS[name], default=None, optional=True) for name in SHARED),
    Setting("keep_result", FLAG, default=False, help="Whether the handler's return value is stored in the job's row."),
    Setting(
        "interrupt",
        WORD,
        one_of("cooperative", "raise"),
        "cooperative",
        help="Whether a plain handler asks its claim about an interruption, or has it raised in its thread.",
    ),
    Setting(
        "on_invalid",
        WORD,
        one_of("retry", "dead"),
        "retry",
        help="Whether a payload that the handler's annotation refuses is a failure like others, or the last one.",
    ),
    Setting("transactional", FLAG, default=False, help="Whether the outcome commits with the handler's own writes."),
)
