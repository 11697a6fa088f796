"""
What a consumer must not write, and type checkers say so: an ignore that turns out to be unused is an error of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq


@dataclass
class Order:
    number: int


def nothing_asked_for() -> None: ...


def three_things(claim: brooq.Claim, order: Order, more: int) -> None: ...


def forgot_transactional(claim: brooq.Claim, session: Session) -> None: ...


def whole_number(claim: brooq.Claim, number: int) -> None: ...


def plain_dict(claim: brooq.Claim, payload: dict[str, Any]) -> None: ...


def no_claim(order: Order) -> None: ...


def no_session(claim: brooq.Claim) -> None: ...


def order_for_session(claim: brooq.Claim, order: Order) -> None: ...


def async_session(claim: brooq.Claim, session: AsyncSession) -> None: ...


def typed_async_session(claim: brooq.Claim, order: Order, session: AsyncSession) -> None: ...


def wrong(queue: brooq.Queue) -> None:
    queue.handler("t")(nothing_asked_for)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t")(three_things)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t")(forgot_transactional)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t")(whole_number)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t")(plain_dict)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t")(no_claim)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t", transactional=True)(no_session)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t", transactional=True)(order_for_session)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t", transactional=True)(async_session)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t", transactional=True)(typed_async_session)  # type: ignore[type-var]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t", max_attempt=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    queue.handler("t", max_attempts="3")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    queue.handler("t", transactional="yes")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    brooq.HandlerOptions(on_invalid=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
