"""
Our revisions, called from a revision of the consumer's: one linear history, the consumer's own.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from sqlalchemy_brooq.migrations.chain import BASE, modules, rank
from sqlalchemy_brooq.migrations.revising import Op, schema_option, state_in
from sqlalchemy_brooq.schema import REVISIONS, Verdict

if TYPE_CHECKING:
    from alembic.util import CommandError


def upgrade(op: Op, to: str = "brooq0001", since: str | None = None) -> None:
    """
    Bring the table ``job`` to the revision *to*, as a part of the revision of yours that calls this.

    In an environment with ``--sql`` nothing can be read, so *since* is needed there, unless *to* is the first revision.

    Args:
        op: Alembic's ``op``.
        to: The revision to reach, by its name: your revision has to do the same for ever, so ``"head"`` is refused.
        since: The revision that the table is of before, or ``"base"`` where there is none; checked against the
            database. By default whatever is found there.

    Raises:
        alembic.util.CommandError: There is no such revision, or the table is somebody else's or of another revision.
    """
    _known("to", to)
    start = _start(op, to, since)
    if rank(start) > rank(to):
        raise _error(f"the table job is of revision {start}, which is newer than {to}: use downgrade(op, to={to!r})")
    for module in modules(start, to):
        _lend(module, op).upgrade()


def downgrade(op: Op, to: str | None = None, since: str = "brooq0001") -> None:
    """
    Take back what `upgrade` did, as a part of the ``downgrade()`` of the revision of yours that called it.

    Args:
        op: Alembic's ``op``.
        to: The revision to go back to; ``None`` drops the table with all its jobs.
        since: The revision that the table is of before; checked against the database.

    Raises:
        alembic.util.CommandError: There is no such revision, or the table is somebody else's or not of *since*.
    """
    _known("since", since)
    end = None if to in (None, BASE) else to
    if end is not None:
        _known("to", end)
    _start(op, since, since)
    if rank(end) >= rank(since):
        raise _error(f"downgrade(op, to={end!r}, since={since!r}) leads nowhere: {since} is not newer")
    for module in reversed(list(modules(end, since))):
        _lend(module, op).downgrade()


def _start(op: Op, to: str, since: str | None) -> str | None:
    """
    Return the revision that the table is of now, ``None`` where there is no table.
    """
    given = None if since in (None, BASE) else since
    if given is not None:
        _known("since", given)
    if op.get_context().as_sql:
        if since is None and to != REVISIONS[0]:
            raise _error(f"with --sql nothing can be read: say upgrade(op, to={to!r}, since='{REVISIONS[0]}')")
        return given
    state = state_in(op.get_bind(), schema_option(op.get_context()))
    if state.verdict in (Verdict.FOREIGN, Verdict.NEWER):
        raise _error(str(state.problem))
    if since is not None and state.revision != given:
        raise _error(f"{state.found}, but since={since!r} says otherwise: something else changed it")
    return state.revision


def _known(name: str, revision: str) -> None:
    if revision not in REVISIONS:
        known = ", ".join(REVISIONS)
        raise _error(f"{name}={revision!r} is no revision of this version of sqlalchemy-brooq: it knows {known}")


def _lend(module: ModuleType, op: Op) -> ModuleType:
    """
    Make *module* use *op*, which may be another one than alembic's global that it imported.
    """
    vars(module)["op"] = op
    return module


def _error(text: str) -> CommandError:
    from alembic.util import CommandError

    return CommandError(text)
