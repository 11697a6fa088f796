"""
Running down a backlog: what several scenarios do in different surroundings.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict, Unpack

from tests.benchmark.children import Child, running
from tests.benchmark.contestants import Contestant
from tests.benchmark.marks import Marks
from tests.benchmark.orders import Work
from tests.benchmark.servers import Database

TICK: Final = 0.002
LIMIT: Final = 60.0
"""Seconds after which what was done so far is taken for the rate."""


Watch = Callable[[Marks, Child], None]


class Handling(TypedDict, total=False):
    """
    What handlers do besides marking their job; see `Work`.
    """

    seconds: float
    failing: int
    steps: int


@dataclass(frozen=True)
class Drained:
    """
    What a backlog took.
    """

    rate: float
    """Jobs per second, from the first one's start until all are settled."""
    wal: float
    """Bytes of write-ahead log for each job."""


@contextmanager
def marks_for(count: int) -> Iterator[tuple[str, Marks]]:
    """
    Open marks for *count* jobs, with the file that the processes are told.
    """
    with tempfile.TemporaryDirectory(prefix="brooq-bench-") as folder:
        path = Path(folder) / "marks"
        with Marks(path, count) as marks:
            yield str(path), marks


def drain(
    database: Database,
    contestant: Contestant,
    count: int,
    slots: int,
    processes: int = 1,
    watch: Watch = lambda _marks, _child: None,
    **handling: Unpack[Handling],
) -> Drained:
    """
    Let workers run the *count* jobs that are ready in *database*.

    Args:
        database: Where they are.
        contestant: Whose workers.
        count: How many jobs.
        slots: How many each process may hold at a time.
        processes: How many.
        watch: Is called again and again, with the first process.
        handling: What the handlers do, as in `Work`.
    """
    with marks_for(count) as (path, marks):
        order = Work(database.url, path, count, slots, **handling)
        with running(contestant, *[order] * processes) as children:
            before = database.wal()
            for child in children:
                child.go()
            return finish(database, contestant, marks, count, before, children, watch)


def finish(
    database: Database,
    contestant: Contestant,
    marks: Marks,
    count: int,
    before: int,
    children: Sequence[Child],
    watch: Watch = lambda _marks, _child: None,
) -> Drained:
    """
    Wait until all *count* jobs are settled, and return what it took.

    Args:
        before: The write-ahead log at the beginning.
    """
    limit = time.monotonic() + LIMIT
    while not marks.all_begun() and time.monotonic() < limit:
        watch(marks, children[0])
        for child in children:
            child.check()
        time.sleep(TICK)
    while database.is_true(contestant.unsettled) and time.monotonic() < limit:
        time.sleep(TICK)
    ended = time.monotonic()
    done = count if marks.all_begun() else marks.count()
    if not done:
        raise TimeoutError(f"no job has begun within {LIMIT:g} s")
    return Drained(done / (ended - marks.began), (database.wal() - before) / done)
