"""
What becomes of the attempts of one worker, written down in one place: the table, the outbox and the journal agree.

Decides nothing: what an end means is `policy`'s to say, and who may say so is the attempt's.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy_brooq import policy
from sqlalchemy_brooq.errors import LeaseLost
from sqlalchemy_brooq.vocabulary import Event, Outcome
from sqlalchemy_brooq.worker.attempt import Attempt, InFlight
from sqlalchemy_brooq.worker.journal import Journal
from sqlalchemy_brooq.worker.outbox import Outbox

GIVEN_BACK: Final = Outcome(Event.REQUEUED, refund=True)
"""Of an attempt that has not begun."""


class Desk:
    """
    What every part of a worker shares with the others.

    Args:
        worker: The worker's identity, half of the fence.
        journal: Is told what happened.
    """

    def __init__(self, worker: str, journal: Journal) -> None:
        self.worker = worker
        self.journal = journal
        self.in_flight = InFlight()
        self.outbox = Outbox()

    def settle(self, attempt: Attempt, outcome: Outcome) -> None:
        """
        Send *outcome* of an attempt that was concluded on its way.
        """
        attempt.outcome = outcome
        self.outbox.put(attempt)

    def fail(self, attempt: Attempt, error: BaseException) -> None:
        """
        Let an attempt that was concluded have failed of *error*.
        """
        claim, options = attempt.claim, attempt.handler.options
        self.settle(attempt, policy.failure(claim.attempt, claim.requeues, options, error))

    def give_back(self, attempt: Attempt) -> None:
        """
        Requeue an attempt that can't begin, unless it was concluded meanwhile.
        """
        if attempt.conclude():
            self.settle(attempt, GIVEN_BACK)

    def lose(self, attempt: Attempt) -> None:
        """
        Give an attempt up whose lease is lost: its handler is told, and nothing is written.
        """
        if attempt.give_up(LeaseLost(f"the lease on {attempt.claim.topic} {attempt.claim.id} is lost")):
            self.lost(attempt)

    def lost(self, attempt: Attempt) -> None:
        """
        Close an attempt that ended without an outcome of ours.
        """
        self.in_flight.remove([attempt])
        self.journal.lost(attempt.claim)

    def written(self, attempt: Attempt, outcome: Outcome) -> None:
        """
        Close an attempt whose outcome is in the database.
        """
        self.in_flight.remove([attempt])
        self.journal.settled(attempt.claim, outcome)
