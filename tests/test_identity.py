"""
Ids: version 7, rising within a process whatever its clock does, and never shared with another process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq import Job
from sqlalchemy_brooq.identity import IdSource, new_id

MILLISECOND = 1_000_000
clocks = st.lists(st.integers(0, 2**47 * MILLISECOND), min_size=1, max_size=50)


def ids_at(clock: list[int]) -> list[UUID]:
    moments = iter(clock)
    source = IdSource(clock_ns=lambda: next(moments))
    return [source() for _ in clock]


def milliseconds(one: UUID) -> int:
    return one.int >> 80


@given(clocks)
def test_ids_rise_whatever_the_clock_does(clock: list[int]) -> None:
    assert all(earlier < later for earlier, later in pairwise(ids_at(clock)))


@given(clocks)
def test_ids_are_of_version_7(clock: list[int]) -> None:
    assert all((one.version, one.variant) == (7, RFC_4122) for one in ids_at(clock))


@given(clocks)
def test_an_id_tells_the_latest_time_that_its_process_has_seen(clock: list[int]) -> None:
    for n, one in enumerate(ids_at(clock)):
        seen = max(clock[: n + 1]) // MILLISECOND
        assert seen <= milliseconds(one) <= seen + n


def test_a_full_millisecond_goes_on_in_the_next() -> None:
    source = IdSource(clock_ns=lambda: 5 * MILLISECOND)
    first = source()
    source._tail = 2**74 - 1

    later = [source() for _ in range(3)]

    assert [milliseconds(one) for one in (first, *later)] == [5, 6, 6, 6]
    assert [first, *later] == sorted({first, *later})


def test_ids_carry_the_time_of_now() -> None:
    made = datetime.fromtimestamp(milliseconds(new_id()) / 1_000, UTC)

    assert abs(datetime.now(UTC) - made) < timedelta(minutes=1)


def test_threads_never_share_an_id() -> None:
    barrier = threading.Barrier(8)

    def make(_: int) -> list[UUID]:
        barrier.wait(10)
        return [new_id() for _ in range(2_000)]

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(8)))

    assert all(one == sorted(one) for one in made)
    assert len({one for thread in made for one in thread}) == 16_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_makes_ids_of_its_own() -> None:
    new_id()
    mine = set(_ids_of_a_child()) | {new_id() for _ in range(100)}

    assert len(mine | set(_ids_of_a_child())) == 300


def _ids_of_a_child() -> Iterator[UUID]:
    """
    Make ids in a child that was forked while another thread held the lock.
    """
    reader, writer = os.pipe()
    with new_id._lock:
        child = os.fork()
        if child == 0:
            os.write(writer, b"".join(new_id().bytes for _ in range(100)))
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    os.waitpid(child, 0)
    return (UUID(bytes=data[at : at + 16]) for at in range(0, len(data), 16))


def test_jobs_rise_in_the_order_in_which_they_were_built() -> None:
    built = [Job("t").id for _ in range(100)]

    assert built == sorted(built)
