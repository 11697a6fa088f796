"""
Settings: the one table of them, and the frozen objects that hold them validated.

`SETTINGS` is the only list of names, defaults, rules and help texts: the checks, the environment, the command line and
the docs read it. Nothing here is read at import; the environment only by `Config.from_env`. Knows nothing of SQL, of
threads, or of what a setting does.
"""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self, TypedDict, Unpack, cast

from sqlalchemy_brooq.durations import DurationLike, format_duration, parse_duration, shown
from sqlalchemy_brooq.errors import ConfigError

__all__ = [
    "MAX_DURATION",
    "MAX_INTEGER",
    "OPTIONS",
    "SETTINGS",
    "Config",
    "ConfigKeywords",
    "DurationLike",
    "HandlerKeywords",
    "HandlerOptions",
    "ResolvedOptions",
    "Setting",
    "format_duration",
    "parse_duration",
]

MAX_INTEGER: Final = 2**31 - 1
"""What PostgreSQL's ``integer`` holds."""
MAX_DURATION: Final = timedelta(days=36_500)
"""A century: a thread can't wait three, and a Python datetime ends with the year 9999."""

_PREFIX: Final = "QUEUE_"
_TOKEN_FILE: Final = "QUEUE_API_TOKEN_FILE"  # noqa: S105 - a variable's name
_MAX_TOKEN: Final = 4_096
"""Characters of a token: servers refuse longer headers."""
_OFF: Final = "off"
_FLAGS: Final = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")
_ADDRESS: Final = re.compile(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]+)):(?P<port>[0-9]{1,9})")

_logger = logging.getLogger(__name__)
_warned: set[str] = set()


# Kinds: how a value is read. Each function returns the value as it is stored, or raises a ValueError whose
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
    if text != _OFF:
        _host_and_port(text)
    return text


def _host_and_port(text: str) -> tuple[str, int]:
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


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name: where it leads is not known before it is looked up
        return False


def _token(value: object) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f"the token is not text but {type(value).__name__} (it is not shown)")  # noqa: TRY004 - see above
    if len(value) > _MAX_TOKEN:
        raise ValueError(f"the token is longer than {_MAX_TOKEN} characters (it is not shown)")
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


def _at_least(least: int) -> Rule:
    return Rule(f"{least} or more", lambda value: value >= least)


def _one_of(*words: str) -> Rule:
    return Rule(" or ".join(map(repr, words)), lambda value: value in words)


_ANY: Final = Rule("", lambda _: True)
_POSITIVE: Final = Rule("longer than 0", lambda value: value > timedelta(0))
_NOT_NEGATIVE: Final = Rule("0 or longer", lambda value: value >= timedelta(0))


class Derived(NamedTuple):
    """
    A default that follows from other settings.
    """

    text: str
    of: Callable[[Mapping[str, Any]], timedelta]


class _Text(NamedTuple):
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
    rule: Rule = _ANY
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
        return _PREFIX + self.name.upper()

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
        if isinstance(value, _Text):
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
    return Setting(name, DURATION, _NOT_NEGATIVE, derived=derived, optional=True, help=f"The same for {state} jobs.")


def _table(*rows: Setting) -> Mapping[str, Setting]:
    return MappingProxyType({row.name: row for row in rows})


#: Every setting, in the order of the docs; a derived one stands after those that it derives from.
SETTINGS: Final = _table(
    Setting("workers", INTEGER, _at_least(1), 2, help="Handlers that run at once in this process."),
    Setting(
        "prefetch",
        INTEGER,
        _at_least(0),
        0,
        help="Jobs claimed ahead of free slots, waiting under lease in this process.",
    ),
    Setting(
        "poll_interval",
        DURATION,
        _POSITIVE,
        "1s",
        help="How often an idle worker looks for ready jobs; jitter adds up to half of it.",
    ),
    Setting(
        "wakeup", WORD, _one_of("listen", "poll"), "listen", help="Whether NOTIFY wakes workers, or they only poll."
    ),
    Setting("lease", DURATION, _POSITIVE, "2m", help="How long a claim holds without a heartbeat."),
    Setting("attempt_timeout", DURATION, _POSITIVE, "1m", help="After this long the handler is interrupted."),
    Setting(
        "max_execution_timeout", DURATION, _POSITIVE, "5m", help="After this long the attempt has failed, ended or not."
    ),
    Setting(
        "backoff_base", DURATION, _POSITIVE, "1s", help="The wait after a first failure; each further one doubles it."
    ),
    Setting("backoff_max", DURATION, _POSITIVE, "1m", help="The longest wait between attempts, also for RetryLater."),
    Setting("max_attempts", INTEGER, _at_least(1), 5, help="Attempts a job has; a failure of the last makes it dead."),
    Setting(
        "max_requeues",
        INTEGER,
        _at_least(1),
        optional=True,
        help="Expired leases a job may have; one more makes it dead. None: no limit.",
    ),
    Setting(
        "reaper_period",
        DURATION,
        _POSITIVE,
        derived=Derived("max(5s, lease/4)", lambda values: max(timedelta(seconds=5), values["lease"] / 4)),
        optional=True,
        help="How often expired leases are looked for.",
    ),
    Setting(
        "watchdog_grace",
        DURATION,
        _POSITIVE,
        derived=Derived("lease", lambda values: values["lease"]),
        optional=True,
        help="A handler that still runs this long after its interruption is hung.",
    ),
    Setting(
        "shutdown_grace",
        DURATION,
        _NOT_NEGATIVE,
        "30s",
        help="How long a stopping worker waits before it interrupts handlers.",
    ),
    Setting("retention_ttl", DURATION, _NOT_NEGATIVE, "30d", help="How long finished jobs are kept; 0: for good."),
    _ttl_of("done"),
    _ttl_of("dead"),
    _ttl_of("canceled"),
    Setting("retention_batch", INTEGER, _at_least(1), 1000, help="Rows that retention deletes in one transaction."),
    Setting(
        "retention_period",
        DURATION,
        _NOT_NEGATIVE,
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

_SHARED: Final = (
    "max_attempts",
    "attempt_timeout",
    "max_execution_timeout",
    "backoff_base",
    "backoff_max",
    "max_requeues",
)
#: What a handler may set for itself; of the settings among them, ``None`` means the queue's.
OPTIONS: Final = _table(
    *(replace(SETTINGS[name], default=None, optional=True) for name in _SHARED),
    Setting("transactional", FLAG, default=False, help="Whether the outcome commits with the handler's own writes."),
    Setting("keep_result", FLAG, default=False, help="Whether the handler's return value is stored in the job's row."),
    Setting(
        "interrupt",
        WORD,
        _one_of("cooperative", "raise"),
        "cooperative",
        help="Whether a plain handler asks its claim about an interruption, or has it raised in its thread.",
    ),
)

#: (the one that must not be longer, the one that it must not exceed)
_ORDERED: Final = (("attempt_timeout", "max_execution_timeout"), ("backoff_base", "backoff_max"))


class ConfigKeywords(TypedDict, total=False):
    """
    What `Config` takes, for type checkers; ``None`` stands for the derived default.
    """

    workers: int
    prefetch: int
    poll_interval: DurationLike
    wakeup: str
    lease: DurationLike
    attempt_timeout: DurationLike
    max_execution_timeout: DurationLike
    backoff_base: DurationLike
    backoff_max: DurationLike
    max_attempts: int
    max_requeues: int | None
    reaper_period: DurationLike | None
    watchdog_grace: DurationLike | None
    shutdown_grace: DurationLike
    retention_ttl: DurationLike
    retention_ttl_done: DurationLike | None
    retention_ttl_dead: DurationLike | None
    retention_ttl_canceled: DurationLike | None
    retention_batch: int
    retention_period: DurationLike
    listen_address: str
    allow_public: bool
    api_token: str | None


# A dataclass for equality, hashing, freezing and `dataclasses.replace`, with a constructor of our own: a generated one
# would type what it takes as what it stores, and would end at an unknown keyword with a TypeError that hides the other
# problems. `Unpack` gives type checkers and editors the real keywords.
@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False)
class Config:
    """
    The settings of a queue, validated; `SETTINGS` says what each one means.

    Durations are given as a ``timedelta`` or as text with a unit (``"30s"``, ``"1h30m"``) and read as a ``timedelta``.
    A default that derives from another setting follows it, also through ``dataclasses.replace``, until it is given.

    Raises:
        ConfigError: Settings were refused; all of them are named.
    """

    _derived: frozenset[str] = field(compare=False)  # the first field: see _given
    workers: int
    prefetch: int
    poll_interval: timedelta
    wakeup: str
    lease: timedelta
    attempt_timeout: timedelta
    max_execution_timeout: timedelta
    backoff_base: timedelta
    backoff_max: timedelta
    max_attempts: int
    max_requeues: int | None
    reaper_period: timedelta
    watchdog_grace: timedelta
    shutdown_grace: timedelta
    retention_ttl: timedelta
    retention_ttl_done: timedelta
    retention_ttl_dead: timedelta
    retention_ttl_canceled: timedelta
    retention_batch: int
    retention_period: timedelta
    listen_address: str
    allow_public: bool
    api_token: str | None

    def __init__(self, **settings: Unpack[ConfigKeywords]) -> None:
        values, problems = _examine(SETTINGS, _given(dict(settings)))
        if problems:
            raise ConfigError(problems)
        derived = _derive(values)  # fills them in
        _fill(self, values | {"_derived": derived})

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Unpack[ConfigKeywords]) -> Self:
        """
        Return the settings that the ``QUEUE_*`` variables give.

        An empty variable counts as unset. An unknown one is warned about in the log, once a process: whoever runs the
        worker may not be who set it.

        Args:
            environ: The variables; ``None`` means the process's own.
            overrides: Settings that go before their variables, which are then not even read.

        Raises:
            ConfigError: Settings were refused; all of them are named, by their variables.
        """
        given, problems = _read(os.environ if environ is None else environ, overrides)
        values, more = _examine(
            SETTINGS, given | dict(overrides), lambda name: name if name in overrides else SETTINGS[name].variable
        )
        if problems or more:
            raise ConfigError(problems + more)
        return cls(**cast("ConfigKeywords", values))

    @property
    def listen(self) -> tuple[str, int] | None:
        """
        Host and port of `listen_address`; ``None`` where it is off.
        """
        return None if self.listen_address == _OFF else _host_and_port(self.listen_address)

    def __repr__(self) -> str:
        values = (f"{row.name}={row.plain(getattr(self, row.name))!r}" for row in SETTINGS.values())
        return f"{type(self).__name__}({', '.join(values)})"


class HandlerKeywords(TypedDict, total=False):
    """
    What `HandlerOptions` takes, for type checkers; ``None`` stands for the queue's setting.
    """

    max_attempts: int | None
    attempt_timeout: DurationLike | None
    max_execution_timeout: DurationLike | None
    backoff_base: DurationLike | None
    backoff_max: DurationLike | None
    max_requeues: int | None
    transactional: bool
    keep_result: bool
    interrupt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedOptions:
    """
    The options of a handler, with the queue's settings filled in.
    """

    max_attempts: int
    attempt_timeout: timedelta
    max_execution_timeout: timedelta
    backoff_base: timedelta
    backoff_max: timedelta
    max_requeues: int | None
    transactional: bool
    keep_result: bool
    interrupt: str


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class HandlerOptions:
    """
    What a handler sets for itself, validated; `OPTIONS` says what each one means, ``None`` means the queue's setting.

    Raises:
        ConfigError: Options were refused; all of them are named.
    """

    max_attempts: int | None
    attempt_timeout: timedelta | None
    max_execution_timeout: timedelta | None
    backoff_base: timedelta | None
    backoff_max: timedelta | None
    max_requeues: int | None
    transactional: bool
    keep_result: bool
    interrupt: str

    def __init__(self, **options: Unpack[HandlerKeywords]) -> None:
        values, problems = _examine(OPTIONS, dict(options), noun="option")
        if problems:
            raise ConfigError(problems)
        _fill(self, values)

    def resolve(self, config: Config) -> ResolvedOptions:
        """
        Return the options with what is ``None`` taken from *config*.

        Raises:
            ConfigError: An option and a setting of the queue don't go together.
        """
        own: dict[str, Any] = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        values = {name: getattr(config, name) for name in _SHARED} | own
        problems = [*_out_of_order(values, str, lambda name: "" if name in own else " (the queue's)")]
        if problems:
            raise ConfigError(problems)
        return ResolvedOptions(**values)


def _examine(
    table: Mapping[str, Setting],
    given: Mapping[str, object],
    label: Callable[[str], str] = str,
    noun: str = "setting",
) -> tuple[dict[str, Any], list[str]]:
    """
    Return the values of all rows of *table* that can be had, and every problem with what was *given*.
    """
    values: dict[str, Any] = {}
    problems = [f"{name}: unknown {noun}{_hint(name, table)}" for name in given if name not in table]
    for name, row in table.items():
        try:
            values[name] = row.accept(given.get(name, row.default))
        except ValueError as error:
            problems.append(f"{label(name)}: {error}")
    problems += _out_of_order(values, label, lambda name: "" if name in given else " (the default)")
    problems += _exposed(values, label)
    return values, problems


def _out_of_order(
    values: Mapping[str, Any], label: Callable[[str], str], origin: Callable[[str], str]
) -> Iterator[str]:
    for low, high in _ORDERED:
        short, long = values.get(low), values.get(high)
        if short is not None and long is not None and short > long:
            yield (
                f"{label(low)}: {format_duration(short)}{origin(low)} is longer than"
                f" {label(high)}, {format_duration(long)}{origin(high)}: lower the one or raise the other"
            )


def _exposed(values: Mapping[str, Any], label: Callable[[str], str]) -> Iterator[str]:
    address = values.get("listen_address", _OFF)
    if address == _OFF or values.get("allow_public") or _is_loopback(_host_and_port(address)[0]):
        return
    yield (
        f"{label('listen_address')}: {shown(address)} is not a loopback address, so other hosts could reach it:"
        f" use 127.0.0.1, or allow it with {label('allow_public')}"
    )


def _hint(name: str, known: Iterable[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {prefix}{close[0]}?" if close else ""


def _given(settings: dict[str, object]) -> dict[str, object]:
    """
    Drop the derived values that ``dataclasses.replace`` has copied, so that they are derived anew.

    It passes what its caller changes first and then the other fields in their order; `Config._derived` is the first
    of those, so whatever follows it was copied. (Values can't tell: a caller may pin one that was derived.)
    """
    derived = settings.get("_derived")
    if not isinstance(derived, frozenset):
        return settings
    names = list(settings)
    dropped = derived.intersection(names[names.index("_derived") :]) | {"_derived"}
    return {name: value for name, value in settings.items() if name not in dropped}


def _derive(values: dict[str, Any]) -> frozenset[str]:
    """
    Fill in the values that derive from others; return their names.
    """
    derived = {
        name: row.derived for name, row in SETTINGS.items() if row.derived and values[name] == row.accept(row.default)
    }
    for name, default in derived.items():
        values[name] = default.of(values)
    return frozenset(derived)


def _fill(target: object, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        object.__setattr__(target, name, value)  # as a generated constructor of a frozen dataclass does


def _read(environ: Mapping[str, str], overridden: Container[str]) -> tuple[dict[str, object], list[str]]:
    _warn_of_strangers(environ)
    given: dict[str, object] = {}
    for name, row in SETTINGS.items():
        text = environ.get(row.variable, "")
        if text.strip() and name not in overridden:
            given[name] = _Text(text)
    path = environ.get(_TOKEN_FILE, "").strip()
    if not path or "api_token" in overridden:
        return given, []
    if "api_token" in given:
        return given, [f"{_TOKEN_FILE}: {SETTINGS['api_token'].variable} is set as well: keep one of the two"]
    try:
        given["api_token"] = _token_in(Path(path))
    except ValueError as error:
        return given, [f"{_TOKEN_FILE}: {error}"]
    return given, []


def _token_in(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(4 * _MAX_TOKEN)  # and no more: the path may be a device's
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"{shown(str(path))} can't be read: {reason}") from None
    text = content.decode(errors="surrogateescape").removesuffix("\n").removesuffix("\r")
    token = _token(text)
    if token is None:
        raise ValueError(f"{shown(str(path))} is empty: put the token into it, or unset the variable")
    return token


def _warn_of_strangers(environ: Mapping[str, str]) -> None:
    known = [_TOKEN_FILE.removeprefix(_PREFIX), *(name.upper() for name in SETTINGS)]
    for variable in sorted(environ):
        name = variable.removeprefix(_PREFIX)
        if name != variable and name not in known and environ[variable] and variable not in _warned:
            _warned.add(variable)
            hint = _hint(name, known, _PREFIX)
            _logger.warning("%s: unknown setting, it has no effect%s", variable, hint)
