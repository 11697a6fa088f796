"""
The plugin that alembic, from 1.18 on, finds by its entry point: ``alembic.autogenerate.brooq``.

It acts in every environment that doesn't list ``"~alembic.autogenerate.brooq"`` in its ``autogenerate_plugins``.
Alembic imports it while it is being imported itself, so nothing here imports alembic before a function needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sqlalchemy import MetaData

from sqlalchemy_brooq.migrations.autogenerate import included, is_ours, refuse_twins
from sqlalchemy_brooq.migrations.runner import VERSION_TABLE
from sqlalchemy_brooq.private import FILTERS

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult


def setup(plugin: Plugin) -> None:
    """
    Take part in each comparison: before it, to say what isn't compared, and after it, to make sure.
    """
    from alembic.util import DispatchPriority

    plugin.add_autogenerate_comparator(announce, "autogenerate", priority=DispatchPriority.FIRST)
    plugin.add_autogenerate_comparator(strip, "autogenerate", priority=DispatchPriority.LAST)


def announce(context: AutogenContext, _operations: UpgradeOps) -> PriorityDispatchResult:
    """
    Add our rule to the filters of this comparison, beside the environment's own ``include_object``.
    """
    from alembic.util import PriorityDispatchResult

    targets = context.metadata
    refuse_twins([targets] if isinstance(targets, MetaData) else targets or ())

    def compared(table: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:
        return type_ != "table" or included(
            table, name, reflected=reflected, compare_to=compare_to, migration=context.migration_context
        )

    filters = _filters(context)
    if filters is not None:
        filters.append(compared)
    return PriorityDispatchResult.CONTINUE


def _filters(context: AutogenContext) -> list[Any] | None:
    """
    Return the filters, which alembic doesn't publish: where they are gone one day, `strip` still keeps our table.
    """
    filters = getattr(context, FILTERS, None)
    return filters if isinstance(filters, list) else None


def strip(_context: AutogenContext, operations: UpgradeOps) -> PriorityDispatchResult:
    """
    Take out what would drop our tables.
    """
    from alembic.operations.ops import DropTableOp, ModifyTableOps
    from alembic.util import PriorityDispatchResult

    dropped = [
        (operation.schema, operation.table_name)
        for operation in operations.ops
        if isinstance(operation, DropTableOp)
        and (operation.table_name == VERSION_TABLE or is_ours(operation.to_table()))
    ]
    operations.ops[:] = [
        operation
        for operation in operations.ops
        if not isinstance(operation, DropTableOp | ModifyTableOps)
        or (operation.schema, operation.table_name) not in dropped
    ]
    return PriorityDispatchResult.CONTINUE


class _Plugin(ModuleType):
    """
    A module, and a collection of the one module that it is.

    Alembic 1.18.0 to 1.20.0 iterate over what the entry point leads to; later versions want the module.
    """

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _Plugin
