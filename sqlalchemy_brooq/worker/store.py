"""
Runs the engine's statements: parameters in, records out.

Owns the translation between rows and the engine's words. Each verb is one statement in one short
READ COMMITTED transaction. Decides nothing: what an answer means is for the loops.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import Executable
from sqlalchemy.exc import DataError, IntegrityError

from sqlalchemy_brooq.claim import Claim, annotate
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.statements import exchange, upkeep
from sqlalchemy_brooq.vocabulary import PRIORITIES, SUCCESS, JobState
from sqlalchemy_brooq.worker.connection import PrivateConnection, Rows, Transactions
from sqlalchemy_brooq.worker.port import Exchanged, Fate, Reaped, Settlement, SpoiledBatch
from sqlalchemy_brooq.worker.turns import Request

SETTLE: Final = exchange.settle()
CLAIM: Final = exchange.claim()
EXCHANGE: Final = exchange.exchange()
FATES: Final = exchange.fates()
RENEW: Final = upkeep.renew()
STILL_HELD: Final = upkeep.still_held()
REAP: Final = upkeep.reap()
RELEASE: Final = upkeep.release()

#: What says that an outcome, not the database, is at fault: the server or the driver refuses a value.
SPOILING: Final = (DataError, IntegrityError, ValueError, TypeError, OverflowError)
#: Where a branch begins beside others that go on from a mark. What plain SQL puts before it, the next claim
#: from the left finds.
LEFT: Final = datetime(1, 1, 1, tzinfo=UTC)
FIRST: Final = UUID(int=0)
LEVELS: Final = tuple(reversed(PRIORITIES))
GONE: Final = Fate(held=False, state=None)

Parameters = dict[str, Any]


class Line(Protocol):
    """
    What the pump's verbs are sent over: a connection of the engine's own, or what stands for one in a test.
    """

    def rows(self, statement: Executable, parameters: Mapping[str, Any], *, limit: float) -> Rows:
        """
        Run one statement in a transaction of its own.
        """

    def drop(self) -> None:
        """
        Let go of what an error may have broken.
        """


class PumpStore:
    """
    The pump's verbs, on a connection of its own.

    Args:
        connection: The pump's connection.
        worker: This worker's identity.
        lease: How long a claim is good for.
        limit: Seconds after which a statement that has not answered is broken off.
        deserializer: The engine's ``json_deserializer``; ``None`` means the standard library's.
    """

    def __init__(
        self,
        connection: Line,
        worker: str,
        lease: timedelta,
        limit: float,
        deserializer: Callable[[str], Any] | None = None,
    ) -> None:
        self._connection = connection
        self._worker = worker
        self._lease = lease
        self._limit = limit
        self._decode = deserializer or json.JSONDecoder().decode

    def exchange(self, settlements: Sequence[Settlement], request: Request | None) -> Exchanged:
        """
        Write *settlements* and claim what *request* asks for; one of them may be missing.

        Raises:
            SpoiledBatch: One of *settlements* can't be written; nothing was done.
        """
        try:
            return self._exchange(settlements, request)
        except SPOILING as error:
            if not settlements:
                raise
            raise SpoiledBatch(error_text(error)) from error

    def fates(self, claims: Sequence[Claim]) -> Sequence[Fate]:
        """
        Find out what became of claims whose rows a settle did not touch.
        """
        answer = self._connection.rows(FATES, claim_columns(self._worker, claims), limit=self._limit)
        found = {n - 1: Fate(is_held, JobState(state)) for n, is_held, state in answer}
        return [found.get(place, GONE) for place in range(len(claims))]

    def release(self, known: Sequence[Claim]) -> Sequence[Reaped]:
        """
        Give back what this worker holds, but for *known* claims.
        """
        answer = self._connection.rows(RELEASE, claim_columns(self._worker, known), limit=self._limit)
        return [Reaped(id_, topic, attempts, JobState(state)) for id_, topic, attempts, state in answer]

    def recover(self) -> None:
        """
        Drop the connection.
        """
        self._connection.drop()

    def _exchange(self, settlements: Sequence[Settlement], request: Request | None) -> Exchanged:
        parameters: Parameters = {"worker": self._worker}
        if settlements:
            parameters |= settlement_columns(settlements)
        if request is None:
            answer = self._connection.rows(SETTLE, parameters, limit=self._limit)
            return Exchanged([n - 1 for n in answer[0].missing], (), {})
        parameters |= self._claiming(request)
        if not settlements:
            answer = self._connection.rows(CLAIM, parameters, limit=self._limit)
            return Exchanged((), *self._claimed(answer))
        answer = self._connection.rows(EXCHANGE, parameters, limit=self._limit)
        # One row stands for "nothing claimed"; its last column is there all the same.
        claimed = answer if answer[0][0] is not None else ()
        return Exchanged([n - 1 for n in answer[0].missing], *self._claimed(claimed))

    def _claiming(self, request: Request) -> Parameters:
        return {"lease": self._lease, "want": request.want, **request_columns(request)}

    def _claimed(self, rows: Rows) -> tuple[list[Claim], dict[Claim, Exception]]:
        """
        Return the claims of *rows*; a payload that can't be decoded spoils only its own.
        """
        claims: list[Claim] = []
        broken: dict[Claim, Exception] = {}
        decode, worker = self._decode, self._worker
        for id_, topic, text, attempt, requeues, priority, created, available, claimed_at, until, meta, *_ in rows:
            payload, error = None, None
            try:
                payload = decode(text)
            except Exception as caught:  # noqa: BLE001 - the decoder may be the consumer's
                error = caught
            claim = Claim(
                id_, topic, payload, attempt, requeues, priority, created, available, claimed_at, worker, until
            )
            if meta is not None:
                annotate(claim, meta)
            claims.append(claim)
            if error is not None:
                broken[claim] = error
        return claims, broken


class HeartbeatStore:
    """
    The heartbeat's verbs, on a connection of its own.
    """

    def __init__(self, connection: PrivateConnection, worker: str, lease: timedelta, limit: float) -> None:
        self._connection = connection
        self._worker = worker
        self._lease = lease
        self._limit = limit

    def renew(self, claims: Sequence[Claim]) -> Sequence[datetime | None]:
        """
        Renew the leases of *claims*, which are sorted by id.
        """
        parameters = {"lease": self._lease, **claim_columns(self._worker, claims)}
        renewed = {n - 1: until for n, until in self._connection.rows(RENEW, parameters, limit=self._limit)}
        return [renewed.get(place) for place in range(len(claims))]

    def held(self, claims: Sequence[Claim]) -> Sequence[bool]:
        """
        Tell which of *claims* still own their rows, as far as others have committed.
        """
        held = {
            n - 1 for (n,) in self._connection.rows(STILL_HELD, claim_columns(self._worker, claims), limit=self._limit)
        }
        return [place in held for place in range(len(claims))]

    def recover(self) -> None:
        """
        Drop the connection.
        """
        self._connection.drop()


class ReaperStore:
    """
    The reaper's verb.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def reap(self, guards: dict[str, int], batch: int) -> Sequence[Reaped]:
        """
        Return up to *batch* jobs with an expired lease to circulation.
        """
        parameters = {"batch": batch, "guard_topic": list(guards), "guard_limit": list(guards.values())}
        with self._transactions() as connection:
            answer = connection.execute(REAP, parameters).all()
        return [Reaped(id_, topic, attempts, JobState(state)) for id_, topic, attempts, state in answer]


def settlement_columns(settlements: Sequence[Settlement]) -> Parameters:
    """
    Return *settlements* as the arrays that the statements take: shorter if those that say more come first.
    """
    claims = [settlement.claim for settlement in settlements]
    outcomes = [settlement.outcome for settlement in settlements]
    while outcomes and outcomes[-1] is SUCCESS:
        outcomes.pop()
    return {
        "outcome_id": [claim.id for claim in claims],
        "outcome_claimed_at": [claim.claimed_at for claim in claims],
        "outcome_state": [outcome.state.value for outcome in outcomes],
        "outcome_delay": [outcome.delay for outcome in outcomes],
        "outcome_refund": [int(outcome.refund) for outcome in outcomes],
        "outcome_error": [outcome.error for outcome in outcomes],
        "outcome_result": [outcome.result for outcome in outcomes],
    }


def request_columns(request: Request) -> Parameters:
    """
    Return the branches of *request*, and the levels that they are at, as the arrays that the statements take.
    """
    priorities, topics, limits, skips, afters = zip(*request.branches, strict=True)
    marked = any(afters)
    return {
        "branch_priority": priorities,
        "branch_topic": topics,
        "branch_limit": limits,
        "branch_skip": skips if any(skips) else (),
        "branch_after_at": [LEFT if after is None else after[0] for after in afters] if marked else (),
        "branch_after_id": [FIRST if after is None else after[1] for after in afters] if marked else (),
        "level_priority": LEVELS,
        "level_sure": list(request.sure),
    }


def claim_columns(worker: str, claims: Sequence[Claim]) -> Parameters:
    """
    Return what names *claims* as the parameters that the statements take.
    """
    return {
        "worker": worker,
        "claim_id": [claim.id for claim in claims],
        "claim_claimed_at": [claim.claimed_at for claim in claims],
    }
