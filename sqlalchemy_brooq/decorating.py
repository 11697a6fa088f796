"""
What the decorators of handlers take and give back, for type checkers alone.

A handler that takes a claim, or a claim and a `Session`, is given back as what it is. Of one that takes a payload, or
a session of another class, the checkers have to find out what that is, so it is given back as a `Callable`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeVar, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq.claim import Claim


class DataclassLike(Protocol):
    """
    An object of a dataclass.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class TypedDictLike(Protocol):
    """
    A TypedDict; another ``dict`` is none.
    """

    __total__: ClassVar[bool]
    __required_keys__: ClassVar[frozenset[str]]


class StructLike(Protocol):
    """
    An object of a msgspec Struct.
    """

    __struct_fields__: ClassVar[tuple[str, ...]]


class PydanticLike(Protocol):
    """
    An object of a pydantic model.
    """

    __pydantic_validator__: ClassVar[Any]


F = TypeVar("F", bound=Callable[[Claim], Any])
SF = TypeVar("SF", bound=Callable[[Claim, Session], Any])
AF = TypeVar("AF", bound=Callable[[Claim, AsyncSession], Awaitable[Any]])
P = TypeVar("P", bound=DataclassLike | TypedDictLike | StructLike | PydanticLike | None)
S = TypeVar("S", bound=Session)
A = TypeVar("A", bound=AsyncSession)
R = TypeVar("R")
AR = TypeVar("AR", bound=Awaitable[Any])


class Handlers(Protocol):
    """
    Takes a handler that has no transaction: ``(claim)`` or ``(claim, payload)``.
    """

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, function: Callable[[Claim, P], R], /) -> Callable[[Claim, P], R]: ...


class TransactionalHandlers(Protocol):
    """
    Takes a transactional handler: ``(claim, session)``, or with the payload before or behind the session.
    """

    @overload
    def __call__(self, function: AF, /) -> AF: ...
    @overload
    def __call__(self, function: SF, /) -> SF: ...
    @overload
    def __call__(self, function: Callable[[Claim, P, A], AR], /) -> Callable[[Claim, P, A], AR]: ...
    @overload
    def __call__(self, function: Callable[[Claim, P, S], R], /) -> Callable[[Claim, P, S], R]: ...
    @overload
    def __call__(self, function: Callable[[Claim, A, P], AR], /) -> Callable[[Claim, A, P], AR]: ...
    @overload
    def __call__(self, function: Callable[[Claim, S, P], R], /) -> Callable[[Claim, S, P], R]: ...
    @overload
    def __call__(self, function: Callable[[Claim, A], AR], /) -> Callable[[Claim, A], AR]: ...
    @overload
    def __call__(self, function: Callable[[Claim, S], R], /) -> Callable[[Claim, S], R]: ...
