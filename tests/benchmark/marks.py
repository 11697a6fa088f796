"""
What the handlers of a measurement leave behind, in memory that its processes share: which jobs began, and when.

The parent watches it without asking the database anything. Knows nothing of jobs but their numbers.
"""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path
from typing import Final, Self

_TIME: Final = struct.Struct("d")


class Marks:
    """
    Places for *count* jobs, numbered from 0, in a file.

    A job has a place of its own, so that threads and processes that write at once don't get into each other's way.

    Args:
        path: The file; it is made if it doesn't exist.
        count: As many as there are jobs.
    """

    def __init__(self, path: Path, count: int) -> None:
        size = _TIME.size + count + count * _TIME.size
        if not path.exists():
            with path.open("wb") as new:
                new.truncate(size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._count = count
        self._times = _TIME.size + count
        self._begun = False
        self._first_missing = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()

    def mark(self, number: int) -> None:
        """
        Note that job *number* has begun.
        """
        if not self._begun:
            self._begun = True
            if not self.began:
                _TIME.pack_into(self._map, 0, time.monotonic())
        self._map[_TIME.size + number] = 1

    def stamp(self, number: int) -> None:
        """
        Note the moment of job *number*, by the clock that all processes of a machine share.
        """
        _TIME.pack_into(self._map, self._times + _TIME.size * number, time.monotonic())
        self.mark(number)

    @property
    def began(self) -> float:
        """
        When the first job began; 0 before.
        """
        moment: float = _TIME.unpack_from(self._map, 0)[0]
        return moment

    def all_begun(self, *, among: int | None = None) -> bool:
        """
        Whether all jobs have begun, or the first *among* of them; cheap to ask often.
        """
        end = _TIME.size + (self._count if among is None else among)
        found = self._map.find(b"\0", _TIME.size + self._first_missing, end)
        self._first_missing = (end if found < 0 else found) - _TIME.size
        return found < 0

    def count(self) -> int:
        """
        How many jobs have begun; looks at each.
        """
        return self._map[_TIME.size : self._times].count(1)

    def moments(self) -> list[float]:
        """
        The moment of each job that has one stamped, and 0 for the others.
        """
        return [moment for (moment,) in _TIME.iter_unpack(self._map[self._times :])]
