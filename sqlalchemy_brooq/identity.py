"""
Time-ordered ids, made on the client; knows nothing of jobs or of SQL.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

_VERSION: Final = 0x7 << 76
_VARIANT: Final = 0b10 << 62
_TAIL_BITS: Final = 74
_TAIL_MASK: Final = (1 << _TAIL_BITS) - 1
_HIGH: Final = (1 << 12) - 1
_LOW: Final = (1 << 62) - 1


class IdSource:
    """
    Makes UUIDs of version 7 (RFC 9562) that rise from call to call, also when the clock steps back.

    Within a millisecond the 74 random bits count up by a random step (method 2 of the RFC's section 6.2),
    so that the order of the ids is the order in which they were made.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._millisecond = 0
        self._tail = 0

    def __call__(self) -> UUID:
        """
        Return the next id.
        """
        now = self._clock_ns() // 1_000_000
        with self._lock:
            if now > self._millisecond:
                self._millisecond = now
                # The top bit stays free, so that counting up has room.
                self._tail = int.from_bytes(os.urandom(10)) & (_TAIL_MASK >> 1)
            else:
                self._tail += 1 + int.from_bytes(os.urandom(4))
                if self._tail > _TAIL_MASK:
                    self._millisecond += 1
                    self._tail &= _TAIL_MASK >> 1
            millisecond, tail = self._millisecond, self._tail
        return UUID(int=millisecond << 80 | _VERSION | (tail >> 62 & _HIGH) << 64 | _VARIANT | tail & _LOW)

    def renew_lock(self) -> None:
        """
        Replace the lock, in a forked child: another thread may have held it at the fork.
        """
        self._lock = threading.Lock()


new_id = IdSource()
os.register_at_fork(after_in_child=new_id.renew_lock)
