"""
Canceling and replaying many jobs: in slices, each a short transaction, beside workers that go on.

Owns what is counted as what. A slice waits for no row that somebody else holds; those are tried again for a while.
Each commit is told to the workers as that of a producer is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from sqlalchemy_brooq import commits
from sqlalchemy_brooq.browse import Filter, Transactions
from sqlalchemy_brooq.commits import Tally
from sqlalchemy_brooq.identity import new_id
from sqlalchemy_brooq.sqlstates import BLOCKED, sqlstate
from sqlalchemy_brooq.statements import operating
from sqlalchemy_brooq.statements.waiting import limit_lock_waits
from sqlalchemy_brooq.vocabulary import MOVES, TERMINAL, Enqueued, Event, JobState

CANCELABLE: Final = MOVES[Event.CANCELED][0]
SLICE: Final = 500
"""Jobs in one transaction."""
READ: Final = 10_000
"""Rows that are taken from the server at a time."""
PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds before those that others held are tried again."""
LOCK_LIMIT: Final = "200ms"
"""How long a replay waits for somebody who writes the same one."""


class Ids:
    """
    Ids of any number of jobs, 16 bytes each.
    """

    def __init__(self, ids: Iterable[UUID] = ()) -> None:
        self._bytes = bytearray()
        for one in ids:
            self.append(one)

    def __len__(self) -> int:
        return len(self._bytes) // 16

    def append(self, job_id: UUID) -> None:
        """
        Add one.
        """
        self._bytes += job_id.bytes

    def slices(self) -> Iterator[list[UUID]]:
        """
        Yield them in order, as many at a time as a transaction takes.
        """
        for begin in range(0, len(self._bytes), SLICE * 16):
            part = self._bytes[begin : begin + SLICE * 16]
            yield [UUID(bytes=bytes(part[at : at + 16])) for at in range(0, len(part), 16)]


@dataclass(slots=True)
class Chosen:
    """
    The jobs that a filter means, as of one moment.
    """

    ids: Ids = field(default_factory=Ids)
    counts: dict[str, int] = field(default_factory=dict)
    """state -> how many."""


@dataclass(slots=True)
class Counts:
    """
    What became of the jobs so far; still true if the work is broken off.
    """

    changed: int = 0
    """Canceled, or replayed, by this work."""
    already: int = 0
    """Over before they could be canceled; replayed before."""
    unfit: int = 0
    """In a state that isn't wanted (any more)."""
    held: int = 0
    """Left alone, as a transaction of somebody else's held them to the end."""
    missing: list[UUID] = field(default_factory=list)
    """Not found: never there, or deleted meanwhile."""

    @property
    def total(self) -> int:
        """
        How many have been dealt with.
        """
        return self.changed + self.already + self.unfit + self.held + len(self.missing)


def choose(transactions: Transactions, wanted: Filter) -> Chosen:
    """
    Find the jobs that *wanted* means.

    Later ones are not among them, so who is asked about so many jobs agrees to these and no others.
    """
    found = Chosen()
    with transactions() as connection:
        rows = connection.execution_options(yield_per=READ).execute(operating.chosen(wanted))
        for job_id, state in rows:
            found.ids.append(job_id)
            found.counts[state] = found.counts.get(state, 0) + 1
    return found


def cancel_jobs(
    transactions: Transactions,
    ids: Ids,
    *,
    counts: Counts,
    states: Collection[JobState] = CANCELABLE,
    told: Callable[[], object] = lambda: None,
) -> None:
    """
    Call off those of some jobs that are in one of *states* when their turn comes.

    Args:
        transactions: Where to write; READ COMMITTED.
        ids: Which jobs, in the order of their ids.
        counts: Kept up to date after each transaction, for whoever breaks it off.
        states: A job that was claimed, or ended, since it was chosen is left alone unless they allow for it.
        told: Called after each transaction.
    """
    statement = operating.cancel_slice(states)

    def cancel(connection: Connection, ids: list[UUID]) -> tuple[set[UUID], Tally]:
        rows = connection.execute(statement, {"job_id": ids}).all()
        return {row.id for row in rows}, Tally(holders={row.locked_by for row in rows if row.locked_by})

    def judge(row: Any) -> str | None:
        if row.state in TERMINAL:
            return "already"
        return None if row.state in states else "unfit"

    _Work(transactions, cancel, judge, counts, told).run(ids)


def replay_jobs(
    transactions: Transactions,
    ids: Ids,
    *,
    counts: Counts,
    replays: dict[UUID, Enqueued] | None = None,
    told: Callable[[], object] = lambda: None,
) -> None:
    """
    Enqueue a new job for each of some that are over and have no replay yet, as `producer.replay` does.

    Args:
        transactions: As for `cancel_jobs`, like *ids*, *counts* and *told*.
        ids: Which jobs.
        counts: What became of them.
        replays: Gets what `producer.replay` would answer, by the id of the job.
        told: Called after each transaction.
    """

    def replay(connection: Connection, ids: list[UUID]) -> tuple[set[UUID], Tally]:
        connection.execute(limit_lock_waits(), {"limit": LOCK_LIMIT})
        originals = {new_id(): one for one in ids}
        rows = connection.execute(operating.replay_slice(), {"copy_job_id": ids, "copy_id": list(originals)}).all()
        tally = Tally()
        for row in rows:
            tally.counts[row.topic, True] += 1
        made = {originals[row.id]: Enqueued(row.id, created=True) for row in rows}
        if replays is not None:
            replays.update(made)
        return set(made), tally

    def judge(row: Any) -> str | None:
        if row.state not in TERMINAL:
            return "unfit"
        if row.replay_id is None:
            return None
        if replays is not None:
            replays[row.id] = Enqueued(row.replay_id, created=False)
        return "already"

    _Work(transactions, replay, judge, counts, told).run(ids)


Act: TypeAlias = Callable[[Connection, list[UUID]], tuple[set[UUID], Tally]]
"""Changes what it can of some jobs, without waiting; returns which, and what to tell of it."""
Judge: TypeAlias = Callable[[Any], str | None]
"""Says as which of `Counts` a row counts that wasn't changed; ``None``: somebody holds it."""


@dataclass(frozen=True, slots=True)
class _Work:
    """
    One thing done to many jobs.
    """

    transactions: Transactions
    act: Act
    judge: Judge
    counts: Counts
    told: Callable[[], object]

    def run(self, ids: Ids) -> None:
        """
        Do it, slice by slice; what somebody holds comes last, several times over.
        """
        for pause in (0.0, *PAUSES):
            time.sleep(pause)
            held = Ids()
            for part in ids.slices():
                for job_id in self._slice(part):
                    held.append(job_id)
                self.told()
            ids = held
            if not ids:
                return
        self.counts.held += len(ids)
        self.told()

    def _slice(self, ids: list[UUID]) -> list[UUID]:
        """
        Do it in one transaction, and return the jobs that somebody holds.
        """
        try:
            with self.transactions() as connection:
                done, tally = self.act(connection, ids)
                rest = [one for one in ids if one not in done]
                found = {row.id: row for row in self._fates(connection, rest)}
                tally.announced.append(commits.wake(connection, tally.wakeups()))
        except OperationalError as error:
            if sqlstate(error) not in BLOCKED:
                raise
            return self._halves(ids)
        self.counts.changed += len(done)  # first: a Ctrl-C may come any time
        commits.publish(tally)
        return [one for one in rest if not self._is_settled(one, found.get(one))]

    def _fates(self, connection: Connection, ids: list[UUID]) -> Sequence[Any]:
        return connection.execute(operating.fates(), {"job_id": ids}).all() if ids else ()

    def _halves(self, ids: list[UUID]) -> list[UUID]:
        """
        Find out which job is in the way, so that it alone is left.
        """
        middle = len(ids) // 2
        return self._slice(ids[:middle]) + self._slice(ids[middle:]) if middle else ids

    def _is_settled(self, job_id: UUID, row: Any) -> bool:
        """
        Count a job that wasn't changed, unless somebody holds it.
        """
        if row is None:
            self.counts.missing.append(job_id)
            return True
        verdict = self.judge(row)
        if verdict is not None:
            setattr(self.counts, verdict, getattr(self.counts, verdict) + 1)
        return verdict is not None
