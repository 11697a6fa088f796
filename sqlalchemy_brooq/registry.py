"""
What a queue serves: its handlers with their options, and the callbacks of events. Refuses what could not be called.

Knows neither when it is too late to register, nor what becomes of what was registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqlalchemy_brooq.config import Config, HandlerOptions
from sqlalchemy_brooq.errors import ConfigError, RegistrationError
from sqlalchemy_brooq.examination import suggestion
from sqlalchemy_brooq.signature import call_of, is_coroutine_function
from sqlalchemy_brooq.vocabulary import Event
from sqlalchemy_brooq.worker.attempt import Handler
from sqlalchemy_brooq.worker.hooks import Callback, Callbacks


class Registry:
    """
    The handlers and the callbacks of one queue.

    Args:
        has_async_engine: Whether transactional handlers get an `AsyncSession`, or a `Session`.
    """

    def __init__(self, *, has_async_engine: bool) -> None:
        self._has_async_engine = has_async_engine
        self._options: dict[str, HandlerOptions] = {}
        self._callbacks: dict[Event, list[Callback]] = {}
        self.handlers: Mapping[str, Handler] = MappingProxyType({})
        """By topic. Replaced, never changed."""

    @property
    def callbacks(self) -> Callbacks:
        """
        Whom to tell of which events, as of now.
        """
        return {event: tuple(callbacks) for event, callbacks in self._callbacks.items()}

    def add(self, topic: str, function: Callable[..., Any], options: HandlerOptions, config: Config) -> None:
        """
        Make *function* the handler of *topic*.

        Raises:
            ConfigError: An option disagrees with *config*.
            RegistrationError: The topic has a handler, or the function doesn't fit.
        """
        resolved = options.resolve(config)
        if topic in self.handlers:
            taken = self.handlers[topic].function
            raise RegistrationError(f"topic {topic!r} has a handler already: {taken!r}; register each topic once")
        try:
            call, is_async = self._checked(function, transactional=resolved.transactional)
        except RegistrationError as error:
            raise RegistrationError(f"handler for {topic!r} refused: {error}") from error.__cause__
        self.handlers = MappingProxyType({**self.handlers, topic: Handler(topic, call, resolved, is_async)})
        self._options[topic] = options

    def call_on(self, event: str, callback: Callback) -> None:
        """
        Call *callback* with each *event*.

        Raises:
            RegistrationError: There is no such event, or the function doesn't fit.
        """
        self._callbacks.setdefault(_checked_event(event, callback), []).append(callback)

    def resolve_again(self, config: Config) -> None:
        """
        Let the handlers have the settings of *config* where they have none of their own.

        Raises:
            ConfigError: It disagrees with some handler's options; nothing was changed.
        """
        handlers: dict[str, Handler] = {}
        problems: list[str] = []
        for topic, handler in self.handlers.items():
            try:
                handlers[topic] = replace(handler, options=self._options[topic].resolve(config))
            except ConfigError as error:
                problems += (f"handler for {topic!r}: {problem}" for problem in error.problems)
        if problems:
            raise ConfigError(problems)
        self.handlers = MappingProxyType(handlers)

    def _checked(self, function: Callable[..., Any], *, transactional: bool) -> tuple[Callable[..., Any], bool]:
        """
        Return *function* as the engine calls it, and whether it is async; raise what is wrong with it.
        """
        is_async = is_coroutine_function(function)
        call = call_of(function, transactional=transactional)
        if transactional and is_async != self._has_async_engine:
            kind, needed = ("an async", "AsyncEngine") if is_async else ("a plain", "Engine")
            raise RegistrationError(f"{kind} transactional handler needs a queue with an {needed}")
        return call, is_async


def _checked_event(event: str, callback: Callback) -> Event:
    """
    Return the event that *event* names, if *callback* can be called with one.
    """
    names = [each.value for each in Event]
    if event not in names:
        hint = suggestion(event, names) if isinstance(event, str) else ""
        raise RegistrationError(f"there is no event {event!r}{hint}: it is one of {', '.join(names)}")
    if not callable(callback):
        raise RegistrationError(f"callback for {event} refused: {callback!r} is not a function")
    if is_coroutine_function(callback):
        raise RegistrationError(
            f"callback for {event} refused: {callback!r} is async def, and is called on a thread without a loop:"
            " let a plain function hand over to your loop, with asyncio.run_coroutine_threadsafe"
        )
    return Event(event)
