"""
What the engine's loops ask of the database: narrow protocols, so that time is tested without one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.vocabulary import JobState, Outcome
from sqlalchemy_brooq.worker.turns import Request

BATCH: Final = 500
"""Jobs a statement of a pump, each way."""
RETRY_HELD: Final = 0.05
"""Seconds before an outcome is written again whose row somebody else held."""


class Settlement(NamedTuple):
    """
    An outcome, and the claim that it is about.
    """

    claim: Claim
    outcome: Outcome


class Exchanged(NamedTuple):
    """
    What an exchange did.
    """

    unwritten: Sequence[int]
    """Places in the input of the outcomes that were not written: their rows are held by others, or lost."""
    claims: Sequence[Claim]
    """The freshly claimed jobs, in their running order."""
    broken: Mapping[Claim, Exception]
    """Those whose payloads can't be decoded, and why."""


class Fate(NamedTuple):
    """
    What became of a claim whose row a statement didn't touch.
    """

    held: bool
    """Still ours; somebody else holds the row's lock at the moment."""
    state: JobState | None
    """The row's state; ``None`` where a later claim took it, or it is gone."""


class SpoiledBatch(Exception):  # noqa: N818 - names what was found
    """
    One of the outcomes can't be written, and none of the batch was.
    """


class Reaped(NamedTuple):
    """
    A job whose lease had run out, and the state that it was put in.
    """

    id: UUID
    topic: str
    attempts: int
    state: JobState


class PumpPort(Protocol):
    """
    What a pump asks for.
    """

    def exchange(self, settlements: Sequence[Settlement], request: Request | None) -> Exchanged:
        """
        Settle and claim, in one statement.

        Raises:
            SpoiledBatch: One of *settlements* can't be written; nothing was done.
        """

    def fates(self, claims: Sequence[Claim]) -> Sequence[Fate]:
        """
        Find out about claims whose outcomes were not written.
        """

    def release(self, known: Sequence[Claim]) -> Sequence[Reaped]:
        """
        Give back at once what this worker holds by the table, but for *known* claims.
        """

    def recover(self) -> None:
        """
        Drop what an error may have broken.
        """


class HeartbeatPort(Protocol):
    """
    What the heartbeat asks for.
    """

    def renew(self, claims: Sequence[Claim]) -> Sequence[datetime | None]:
        """
        Renew the leases; ``None`` for a claim whose row was not touched.
        """

    def held(self, claims: Sequence[Claim]) -> Sequence[bool]:
        """
        Tell which of the claims still own their rows.
        """

    def recover(self) -> None:
        """
        Drop what an error may have broken.
        """


class ReaperPort(Protocol):
    """
    What the reaper asks for.
    """

    def reap(self, guards: dict[str, int], batch: int) -> Sequence[Reaped]:
        """
        Return up to *batch* jobs with an expired lease to circulation.

        Args:
            guards: Topics with a poison guard, and their ``max_requeues``.
            batch: The most to take at once.
        """
