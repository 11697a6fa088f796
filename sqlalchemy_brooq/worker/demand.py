"""
How many jobs to ask for, and when: what the pumps of one worker share.

Owns the free slots that are spoken for, the next look and where it begins. Knows no SQL.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy_brooq.claim import Claim
from sqlalchemy_brooq.worker.port import BATCH
from sqlalchemy_brooq.worker.turns import Request, Turns

WORTHWHILE: Final = 4
"""While work is there, ask once a quarter of the slots is free: whole batches are cheaper."""
SOON: Final = 0.005
"""Seconds between looks after a wake-up, and before asking for fewer jobs than would be worthwhile."""
LOOK_AGAIN: Final = 0.030
"""Seconds for which a woken worker looks again: what a producer's next commits bring, it brings unannounced."""
FROM_LEFT: Final = 1.0
"""Seconds that a job may lie unseen behind the place where earlier claims ended."""
REST: Final = 10
"""Claims from the left take at most one part in so many of the time, unless the last one is that long ago."""
SLOW: Final = (0.002, 0.000_015)
"""Seconds, and seconds for each job asked for, from which on a claim from the left counts as slow."""


class Demand:
    """
    Plans the claims of a worker.

    Args:
        turns: Says in which order to ask.
        capacity: How many jobs the executor takes in all, those that wait included.
        free: Returns how many more it can take.
        poll_interval: The longest pause between two looks, in seconds; jitter lengthens it to at most 1.5 times.
    """

    def __init__(self, turns: Turns | None, capacity: int, free: Callable[[], int], poll_interval: float) -> None:
        self._turns = turns
        self._quarter = min(max(1, capacity // WORTHWHILE), BATCH // 2)
        self._free = free
        self.poll_interval = poll_interval
        self._change = threading.Condition()
        self._claiming = turns is not None
        self._held = False
        self._spoken_for = 0
        self._under_way = 0
        self._hinted = False
        self._more = False
        self._next_look = 0.0
        self._looking_until = 0.0
        self._left_at = 0.0
        self._left_took = 0.0
        self._left_is_slow = False

    @property
    def quarter(self) -> int:
        """
        How many jobs, or outcomes, make a statement worthwhile that doesn't have to be.
        """
        return self._quarter

    def hint(self) -> None:
        """
        Take note that there may be ready jobs.
        """
        self._hinted = True

    def presses(self) -> bool:
        """
        Whether there is more work, and room for it that is worth a statement.
        """
        return self._more and self._room() >= self._quarter

    def take(self, now: float) -> Request | None:
        """
        Return what to ask for now; the slots for it are spoken for until `done`.
        """
        with self._change:
            self._heed_hint(now)
            want = self._want(now)
            if want <= 0 or self._turns is None:
                return None
            self._spoken_for += want
            self._under_way += 1
            self._next_look = now + self.poll_interval  # until the answer says better
            return self._turns.request(want, from_left=self._begins_at_left(now))

    def done(self, request: Request, claims: Sequence[Claim] | None, began: float, ended: float) -> None:
        """
        Take note of a claim's answer, whose jobs the executor has; ``None`` where there is no answer.

        Args:
            request: What was asked for.
            claims: The answer, in its running order.
            began: When the statement was sent.
            ended: When its answer was dealt with.
        """
        with self._change:
            self._spoken_for -= request.want
            self._under_way -= 1
            if claims is not None and self._turns is not None:
                self._more = len(claims) >= request.want
                if request.from_left:
                    self._left_at, self._left_took = began, ended - began
                    self._left_is_slow = self._left_took > SLOW[0] + SLOW[1] * request.want
                self._turns.learn(request, claims)
                if not self._more:
                    self._turns.forget()
                self._plan_look(began)
            self._change.notify_all()

    def look_now(self) -> None:
        """
        Let the next round ask.
        """
        self._next_look = 0.0

    def pause(self, now: float) -> float:
        """
        Return the seconds until there may be something to ask for.
        """
        if not self._claiming or self._room() <= 0:
            return self.poll_interval
        return 0.0 if self._hinted or self.presses() else max(0.0, min(self.poll_interval, self._next_look - now))

    def hold(self) -> bool:
        """
        Keep claims from beginning until `go_on`; False, and nothing is kept, where one is under way.
        """
        with self._change:
            self._held = not self._under_way
            return self._held

    def go_on(self) -> None:
        """
        Let claims begin again.
        """
        self._held = False

    def stop(self) -> None:
        """
        Ask for nothing more; a claim that is under way has ended when this returns.
        """
        with self._change:
            self._claiming = False
            self._change.wait_for(lambda: not self._under_way)

    @property
    def stopped(self) -> bool:
        """
        Whether nothing more is asked for.
        """
        return not self._claiming

    def _room(self) -> int:
        return self._free() - self._spoken_for

    def _heed_hint(self, now: float) -> None:
        if self._hinted:
            self._hinted = False
            self._looking_until = now + LOOK_AGAIN
            self._next_look = now

    def _want(self, now: float) -> int:
        if not self._claiming or self._held:
            return 0
        room = min(self._room(), BATCH)
        return room if now >= self._next_look or (self._more and room >= self._quarter) else 0

    def _begins_at_left(self, now: float) -> bool:
        """
        Whether to begin where no earlier claim has been, so that what was committed late is found.

        Where that is quick there is nothing to gain from anything else.
        """
        if not (self._more and self._left_is_slow) or now >= self._left_at + FROM_LEFT:
            return True
        return now < self._looking_until and now >= self._left_at + self._left_took * REST

    def _plan_look(self, now: float) -> None:
        """
        Decide when to look for jobs again if nothing else happens.
        """
        if self._more or now < self._looking_until:
            self._next_look = now + SOON
        else:
            self._next_look = now + self.poll_interval * random.uniform(1.0, 1.5)  # noqa: S311 - jitter
