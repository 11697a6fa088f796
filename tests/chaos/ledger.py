"""
What the database says: how far the load is, and what came of it in the end.

Owns every query about the run, and the figures. It reads only, on a connection of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, text

from sqlalchemy_brooq.vocabulary import MOVES, TERMINAL
from tests.chaos.workload import FOLLOW, INSIDE, OUTSIDE

#: Jobs of the *topics* with the number of their effects in *place*.
EFFECTS: Final = """
SELECT count(effect.job_id) FROM job LEFT JOIN effect ON effect.job_id = job.id AND effect.place = :place
WHERE job.topic = ANY(:topics) GROUP BY job.id
"""
#: ``chained`` jobs with the number of jobs that they have enqueued.
FOLLOWERS: Final = """
SELECT count(follow.id) FROM job LEFT JOIN job AS follow
    ON follow.topic = :follow AND follow.payload ->> 'parent' = job.id::text
WHERE job.topic = 'chained' GROUP BY job.id
"""
#: Effects inside of jobs that aren't there: a follow-up that ran, and whose enqueuing was rolled back.
STRAYS: Final = "SELECT count(*) FROM effect WHERE NOT EXISTS (SELECT FROM job WHERE job.id = effect.job_id)"
#: Outcomes that were written by another process than the one that held the job.
FOREIGN: Final = """
SELECT count(*) FROM move WHERE new IN ('done', 'failed', 'dead') AND writer IS DISTINCT FROM holder
"""
#: Jobs that one worker took from another, whose lease had not run out. (What takes leases away has no name.)
ROBBED: Final = """
SELECT count(*) FROM move WHERE old = 'processing' AND new = 'pending' AND held AND writer NOT IN (holder, '')
"""
TWICE: Final = "SELECT count(*) FROM (SELECT FROM move WHERE new = 'done' GROUP BY job_id HAVING count(*) > 1) AS twice"


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What came of the load.
    """

    jobs: int
    """That the producer enqueued, as the table has them."""
    follow_ups: int
    not_done: int
    lost_outside: int
    """Jobs without the effect that they make at least once."""
    repeated_outside: int
    """Jobs that made it more than once, as they may."""
    lost_inside: int
    """Jobs without the effect that is to be there exactly once."""
    doubled_inside: int
    lost_follow_ups: int
    doubled_follow_ups: int
    strays: int
    done_twice: int
    """Jobs that became ``done`` more than once."""
    left_terminal: int
    """Updates of a job that was over."""
    forbidden_moves: int
    """Moves that are not in the table of moves."""
    foreign: int
    """Outcomes written by another worker than the one that held the job."""
    robbed: int
    """Jobs that were taken from a worker before the lease had run out."""
    requeued: int
    """Jobs that were taken from their workers: the lease ran out, or was taken away."""
    failed: int
    """Attempts that failed and were tried again."""

    @property
    def lost(self) -> int:
        """
        What should be there and isn't.
        """
        return self.not_done + self.lost_outside + self.lost_inside + self.lost_follow_ups

    @property
    def doubled(self) -> int:
        """
        What should be there once, and is there more often.
        """
        return self.doubled_inside + self.doubled_follow_ups + self.strays + self.done_twice


class Ledger:
    """
    Asks the database.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def outcome(self) -> Outcome:
        """
        Count what came of the load.
        """
        outside = self._column(EFFECTS, place="outside", topics=list(OUTSIDE))
        inside = self._column(EFFECTS, place="inside", topics=list(INSIDE))
        follow_ups = self._column(FOLLOWERS, follow=FOLLOW)
        moves = self._rows("SELECT old, new, count(*) FROM move GROUP BY old, new")
        return Outcome(
            jobs=self._one("SELECT count(*) FROM job WHERE topic <> :follow", follow=FOLLOW),
            follow_ups=self._one("SELECT count(*) FROM job WHERE topic = :follow", follow=FOLLOW),
            not_done=self._one("SELECT count(*) FROM job WHERE state <> 'done'"),
            lost_outside=outside.count(0),
            repeated_outside=sum(count > 1 for count in outside),
            lost_inside=inside.count(0),
            doubled_inside=sum(count > 1 for count in inside),
            lost_follow_ups=follow_ups.count(0),
            doubled_follow_ups=sum(count > 1 for count in follow_ups),
            strays=self._one(STRAYS),
            done_twice=self._one(TWICE),
            left_terminal=sum(count for old, _, count in moves if old in TERMINAL),
            forbidden_moves=sum(count for old, new, count in moves if not _is_allowed(old, new)),
            foreign=self._one(FOREIGN),
            robbed=self._one(ROBBED),
            requeued=self._one("SELECT coalesce(sum(requeues), 0) FROM job"),
            failed=sum(count for _, new, count in moves if new == "failed"),
        )

    def unfinished(self) -> int:
        """
        Return how many jobs are not over.
        """
        return self._one("SELECT count(*) FROM job WHERE state IN ('pending', 'processing', 'failed')")

    def done(self) -> int:
        """
        Return how many jobs are done, follow-ups included.
        """
        return self._one("SELECT count(*) FROM job WHERE state = 'done'")

    def held_by(self, *workers: str) -> int:
        """
        Return how many jobs are pinned to one of *workers*.
        """
        return self._one(
            "SELECT count(*) FROM job WHERE state = 'processing' AND locked_by = ANY(:workers)", workers=list(workers)
        )

    def processing(self) -> int:
        """
        Return how many jobs are pinned to anyone.
        """
        return self._one("SELECT count(*) FROM job WHERE state = 'processing'")

    def _one(self, query: str, **parameters: Any) -> int:
        (value,) = self._column(query, **parameters)
        return value

    def _column(self, query: str, **parameters: Any) -> list[int]:
        return [row[0] for row in self._rows(query, **parameters)]

    def _rows(self, query: str, **parameters: Any) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(text(query), parameters))


def _is_allowed(old: str, new: str) -> bool:
    return any(old in leaves and new == enters for leaves, enters in MOVES.values())
