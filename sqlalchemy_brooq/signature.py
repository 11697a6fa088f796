"""
What a handler's parameters ask for: a claim, a payload of a type, a session; and how it is called with these.

Looks at functions when they are registered, and refuses those that could not be called. The engine knows nothing of
types: for it, a handler takes a claim, and a session if it is transactional.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from inspect import Parameter
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.errors import RegistrationError
from sqlalchemy_brooq.typed.annotations import Scope, Unreadable, names_models, resolved
from sqlalchemy_brooq.typed.reading import reader_of
from sqlalchemy_brooq.typed.values import Reader

MODELS: Final = "a dataclass, a TypedDict, a msgspec Struct or a pydantic model"
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Asked(NamedTuple):
    """
    A parameter after the claim's, and its annotation, resolved; ``unresolved`` says why that failed.
    """

    parameter: Parameter
    annotation: Any
    unresolved: Unreadable | None = None

    @property
    def is_payload(self) -> bool:
        """
        Whether it is annotated with what a payload is read into.
        """
        return self.unresolved is None and names_models(self.annotation)


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """
    Tell whether *function* is ``async def``, also behind ``functools.partial`` or as a callable object.
    """
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - its method


def call_of(function: Callable[..., Any], *, transactional: bool) -> Callable[..., Any]:
    """
    Return *function* as the engine calls it: with the claim, and with a session if it is transactional.

    Where a parameter asks for it, the payload is read into what its annotation says, each time it is called.

    Raises:
        RegistrationError: It could not be called like that. The text goes on after "handler for ... refused: ".
    """
    if not callable(function):
        raise RegistrationError(f"{function!r} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RegistrationError(f"{function!r} yields, and would never run")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature: the first call will tell
        return function
    scope = _scope(function)
    others = _asked(function, list(signature.parameters.values())[1 : 2 + transactional], scope)
    payloads = [place for place, one in enumerate(others) if one.is_payload]
    if len(payloads) > 1:
        raise RegistrationError(f"two of its parameters are annotated with {MODELS}: one of them gets the session")
    _check_arguments(signature, others, transactional=transactional, typed=bool(payloads))
    if transactional:
        _check_session(others, is_async=is_coroutine_function(function))
    if not payloads:
        return function
    asked = others[payloads[0]]
    try:
        return TypedCall(function, payloads[0] == 0, reader_of(asked.annotation, scope))
    except TypeError as error:
        raise RegistrationError(f"its parameter {asked.parameter.name!r}: {error}") from error


class TypedCall:
    """
    Calls a handler with its claim, the payload as its annotation says, and a session if there is one.
    """

    def __init__(self, function: Callable[..., Any], payload_first: bool, read: Reader) -> None:
        self._function = self.__wrapped__ = function
        self._payload_first = payload_first
        self._read = read

    def __repr__(self) -> str:
        return repr(self._function)

    def __call__(self, claim: Claim, *session: Session | AsyncSession) -> Any:
        """
        Raise `InvalidPayload` before the handler is called, if the payload isn't what it takes.
        """
        payload = self._read(claim.payload)
        return self._function(claim, *((payload, *session) if self._payload_first else (*session, payload)))


def _asked(function: Callable[..., Any], parameters: list[Parameter], scope: Scope) -> list[Asked]:
    names = getattr(_innermost(function), "__globals__", {})
    found = []
    for parameter in parameters:
        if parameter.kind not in _POSITIONAL:
            break
        try:
            found.append(Asked(parameter, resolved(parameter.annotation, names, scope)))
        except Unreadable as error:
            found.append(Asked(parameter, None, error))
    return found


def _check_arguments(signature: inspect.Signature, others: list[Asked], *, transactional: bool, typed: bool) -> None:
    arguments = ["the claim", *["its payload"] * typed, *["a session"] * transactional]
    try:
        signature.bind(*arguments)
    except TypeError as error:
        listed = " and ".join(part for part in (", ".join(arguments[:-1]), arguments[-1]) if part)
        text = f"it is called with {listed}: {error}"
        unresolved = next((one for one in others if one.unresolved), None)
        if unresolved is not None:
            text += f"; of its parameter {unresolved.parameter.name!r}, {unresolved.unresolved}"
        elif not transactional and any(map(_is_session, others)):
            text += "; a handler gets a session with transactional=True"
        elif not typed:
            text += f"; annotated with {MODELS}, its second parameter gets the payload"
        raise RegistrationError(text) from error


def _is_session(asked: Asked) -> bool:
    """
    Tell whether a parameter was meant for a session.
    """
    annotation = asked.annotation
    is_annotated = isinstance(annotation, type) and issubclass(annotation, Session | AsyncSession)
    return is_annotated or asked.parameter.name == "session"


def _check_session(others: list[Asked], *, is_async: bool) -> None:
    wrong, right = (
        (Session, "an async handler gets an AsyncSession")
        if is_async
        else (AsyncSession, "a plain handler gets a Session")
    )
    for one in others:
        if isinstance(one.annotation, type) and issubclass(one.annotation, wrong):
            raise RegistrationError(f"its parameter {one.parameter.name!r} is annotated with {wrong.__name__}: {right}")


def _innermost(function: Any) -> Any:
    """
    Return the function whose module the annotations of *function* were written in.
    """
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isfunction(function) or not inspect.isfunction(vars(type(function)).get("__call__")):
            return function
        else:
            function = type(function).__call__


def _scope(function: Callable[..., Any]) -> Scope:
    """
    Return the local names that the annotations of *function* may mean: those of the functions that it stands in.

    A decorator is called while these still run. So they are looked for among the callers, by their very code.
    """
    inner = _innermost(function)
    code: CodeType | None = getattr(inner, "__code__", None)
    found = _enclosed(inner)
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe() that is never None
    while frame is not None and code is not None:
        if _holds(frame.f_code, code):
            found = {**frame.f_locals, **found}
            code = frame.f_code
        frame = frame.f_back
    return found


def _enclosed(function: Any) -> dict[str, Any]:
    """
    Return the names of the functions around *function* that it uses itself.
    """
    cells = (
        zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        if hasattr(function, "__code__")
        else ()
    )
    found = {}
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not assigned yet
            found[name] = cell.cell_contents
    return found


def _holds(outer: CodeType, code: CodeType) -> bool:
    inner = [constant for constant in outer.co_consts if isinstance(constant, CodeType)]
    return any(one is code or _holds(one, code) for one in inner)
