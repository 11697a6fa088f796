"""
What becomes of queues in a forked child: they are there, but nothing of them runs, and no connection is shared.

Two processes on one connection would read each other's answers. So a child forgets the worker of its parent, cuts the
worker's connections off (on its own side), and lets engines make new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakMethod

_kept: Final[list[object]] = []
"""What must never be finalized here: SQLAlchemy would roll back what the parent is in the middle of."""
_told: Final[set[WeakMethod[Callable[[], None]]]] = set()


def in_each_child(method: Callable[[], None]) -> None:
    """
    Call *method*, of an object that still lives, in each forked child, before anything else happens there.
    """
    _told.add(WeakMethod(method, _told.discard))


def _in_child() -> None:
    for reference in list(_told):
        if (method := reference()) is not None:
            method()


os.register_at_fork(after_in_child=_in_child)


def keep(parents: object) -> None:
    """
    Keep what is the parent's for as long as this process lives.
    """
    _kept.append(parents)


def cut_off(driver_connection: Any) -> None:
    """
    Let this process have nothing of a connection of its parent's, whose end stays as it is.

    Whatever is still written to it here goes nowhere.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nowhere, driver_connection.fileno(), inheritable=False)
    finally:
        os.close(nowhere)
