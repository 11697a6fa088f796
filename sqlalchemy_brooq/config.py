"""
The frozen objects that hold settings: `Config` of a queue, `HandlerOptions` of a handler, and both resolved into one.

They are validated whole when they are built, by the rules of `settings`. Nothing here is read at import; the
environment only by `Config.from_env`. Knows nothing of SQL, of threads, or of what a setting does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TypedDict, Unpack, cast

from sqlalchemy_brooq import environment
from sqlalchemy_brooq.durations import DurationLike
from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.examination import contradictions, derive, examine
from sqlalchemy_brooq.kinds import OFF, host_and_port
from sqlalchemy_brooq.settings import OPTIONS, SETTINGS, SHARED

__all__ = [
    "SETTINGS",
    "CallKeywords",
    "Config",
    "ConfigKeywords",
    "HandlerKeywords",
    "HandlerOptions",
    "ResolvedOptions",
]


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
    The settings of a queue, validated.

    Durations are given as a ``timedelta`` or as text with a unit (``"30s"``, ``"1h30m"``) and read as a ``timedelta``.
    A default that derives from another setting follows it, also through ``dataclasses.replace``, until it is given.

    Args:
        settings: The settings by their names, in small letters; what is left out has its default. The reference of the
            settings, and ``brooq-worker config``, say what each one means.

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
        values, problems = examine(SETTINGS, _given(dict(settings)))
        if problems:
            raise ConfigError(problems)
        derived = derive(values)  # fills them in
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
        given, problems = environment.read(os.environ if environ is None else environ, overrides)
        values, more = examine(
            SETTINGS, given | dict(overrides), lambda name: name if name in overrides else SETTINGS[name].variable
        )
        if problems or more:
            raise ConfigError(problems + more)
        return cls(**cast("ConfigKeywords", values))

    @property
    def listen(self) -> tuple[str, int] | None:
        """
        Host and port of ``listen_address``; ``None`` where it is off.
        """
        return None if self.listen_address == OFF else host_and_port(self.listen_address)

    def __repr__(self) -> str:
        values = (f"{row.name}={row.plain(getattr(self, row.name))!r}" for row in SETTINGS.values())
        return f"{type(self).__name__}({', '.join(values)})"


class CallKeywords(TypedDict, total=False):
    """
    The options that don't change what a handler is called with, for type checkers; ``None``: the queue's setting.
    """

    max_attempts: int | None
    attempt_timeout: DurationLike | None
    max_execution_timeout: DurationLike | None
    backoff_base: DurationLike | None
    backoff_max: DurationLike | None
    max_requeues: int | None
    keep_result: bool
    interrupt: str
    on_invalid: str


class HandlerKeywords(CallKeywords, total=False):
    """
    What `HandlerOptions` takes.
    """

    transactional: bool


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
    keep_result: bool
    interrupt: str
    on_invalid: str = "retry"
    transactional: bool


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class HandlerOptions:
    """
    What a handler sets for itself, validated; ``None`` means the queue's setting.

    Args:
        options: The options by their names, as for `Queue.handler`. The reference of the settings says what each one
            means. Durations are given and read as in `Config`.

    Raises:
        ConfigError: Options were refused; all of them are named.
    """

    max_attempts: int | None
    attempt_timeout: timedelta | None
    max_execution_timeout: timedelta | None
    backoff_base: timedelta | None
    backoff_max: timedelta | None
    max_requeues: int | None
    keep_result: bool
    interrupt: str
    on_invalid: str
    transactional: bool

    def __init__(self, **options: Unpack[HandlerKeywords]) -> None:
        values, problems = examine(OPTIONS, dict(options), noun="option")
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
        values = {name: getattr(config, name) for name in SHARED} | own
        problems = [*contradictions(values, str, lambda name: "" if name in own else " (the queue's)")]
        if problems:
            raise ConfigError(problems)
        return ResolvedOptions(**values)


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


def _fill(target: object, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        object.__setattr__(target, name, value)  # as a generated constructor of a frozen dataclass does
