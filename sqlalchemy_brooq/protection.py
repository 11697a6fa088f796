"""
Which columns of a job are the engine's, and what stands in the way of ORM code that would write them.

Knows no SQL and no session: the model takes its class from here, and hands itself in once it is mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ClauseElement, event
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.base import NO_VALUE

from sqlalchemy_brooq.errors import InvalidJob, ProtectedColumn

_CALL_OFF: Final = "call cancel(session, job_id) to call a job off, replay(session, job_id) to run a finished one again"
_ENGINE: Final = "the engine alone writes it, when it claims a job and when it settles one"

#: column -> what to do instead of assigning it.
ENGINE_COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "state": _CALL_OFF,
        "attempts": _ENGINE,
        "requeues": _ENGINE,
        "claimed_at": _ENGINE,
        "locked_by": _ENGINE,
        "locked_until": _ENGINE,
        "last_error": _ENGINE,
        "result": f"{_ENGINE}; a handler's return value gets there with keep_result=True",
    }
)
_OTHERS: Final = frozenset(
    {"id", "topic", "priority", "payload", "available_at", "idempotency_key", "meta", "created_at", "updated_at"}
)
"""The columns that may be assigned."""


class Protected:
    """
    A model whose engine columns can't be assigned once an object stands for a row (invariant 3).

    An object that has no row yet is the producer's own. Loading and refreshing don't pass through here.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ENGINE_COLUMNS:
            _refuse(self, name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in ENGINE_COLUMNS:
            _refuse(self, name)
        if name in _OTHERS and instance_state(self).key is not None:
            # No flush of SQLAlchemy's can write that: it ends in a KeyError.
            raise InvalidJob(f"job.{name} can't be deleted from a stored job: assign another value")
        super().__delattr__(name)


def _refuse(job: object, name: str) -> None:
    if instance_state(job).key is not None:
        raise ProtectedColumn(f"job.{name} can't be assigned or deleted: {ENGINE_COLUMNS[name]}")


def guard(model: type[Protected], checks: Mapping[str, Callable[[Any], Any]]) -> None:
    """
    Watch the columns of the mapped *model*: what is the engine's stays, what is the producer's is checked.

    Args:
        model: The mapped class.
        checks: column -> what makes an assigned value right, or raises.
    """
    for name in ENGINE_COLUMNS:
        event.listen(getattr(model, name), "set", _keep, retval=True, active_history=True)
    for name, check in checks.items():
        event.listen(getattr(model, name), "set", _checking(name, check), retval=True)


def _keep(job: Protected, value: Any, loaded: Any, _initiator: Any) -> Any:
    """
    Keep what is in the row: ``session.merge()`` of an older copy must not bring back its state.
    """
    return value if instance_state(job).key is None or loaded is NO_VALUE else loaded


def _checking(name: str, check: Callable[[Any], Any]) -> Callable[..., Any]:
    """
    Return a listener that applies *check* to what is assigned to the column *name*.
    """

    def checked(job: Protected, value: Any, _loaded: Any, _initiator: Any) -> Any:
        stored = instance_state(job).key is not None
        if stored and isinstance(value, ClauseElement):
            return value  # an UPDATE may compute it
        if stored and value is None and name == "available_at":
            raise InvalidJob("available_at can't be None on a stored job: give it a datetime with a time zone")
        return check(value)

    return checked
