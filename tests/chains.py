"""
Chains of revisions of a consumer's, ours among them, run in this process: where it is not the command that matters.
"""

from __future__ import annotations

import textwrap
from io import StringIO
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine

from tests.projects import OURS

CUSTOMER: Final = """
    import sqlalchemy as sa
    from alembic import op

    revision, down_revision = "customer", None


    def upgrade():
        op.create_table("customer", sa.Column("id", sa.Integer, primary_key=True))


    def downgrade():
        op.drop_table("customer")
    """
EMPTY: Final = """
    revision, down_revision = "customer", None


    def upgrade():
        pass


    def downgrade():
        pass
    """
MERGE: Final = """
    revision, down_revision = "merge", ("customer", "brooq0001")


    def upgrade():
        pass


    def downgrade():
        pass
    """
ORDER: Final = """
    import sqlalchemy as sa
    from alembic import op

    revision, down_revision = "order", "merge"


    def upgrade():
        op.create_table("order_", sa.Column("id", sa.Integer, primary_key=True))


    def downgrade():
        op.drop_table("order_")
    """

_ENV: Final = """
    from alembic import context
    from sqlalchemy import Connection

    given = context.config.attributes


    def run(**how):
        context.configure(**how, **given["options"])
        with context.begin_transaction():
            context.run_migrations()


    if context.is_offline_mode():
        run(dialect_name="postgresql", literal_binds=True, dialect_opts={"paramstyle": "named"})
    elif isinstance(given["database"], Connection):
        run(connection=given["database"])
    else:
        with given["database"].connect() as connection:
            run(connection=connection)
    """


class Chain:
    """
    An environment with revisions of its own.

    Args:
        folder: Where to make it.
        database: An ``Engine``, or a ``Connection`` that is handed over as it is.
        revisions: The text of each revision of the consumer's.
        locations: What ``version_locations`` lists after the folder of these.
        options: For ``context.configure()``.
        config: Options of alembic's configuration.
    """

    def __init__(
        self,
        folder: Path,
        database: Engine | Connection,
        *revisions: str,
        locations: tuple[str, ...] = (OURS,),
        options: dict[str, Any] | None = None,
        config: dict[str, str] | None = None,
    ) -> None:
        self._versions = folder / "versions"
        self._versions.mkdir(parents=True)
        (folder / "env.py").write_text(textwrap.dedent(_ENV))
        for number, revision in enumerate(revisions):
            (self._versions / f"r{number}.py").write_text(textwrap.dedent(revision))
        self._folder = folder
        self.database = database
        self.options = options or {}
        self._config = {
            "script_location": str(folder),
            "path_separator": "newline",
            "version_locations": "\n".join([str(self._versions), *locations]),
            **(config or {}),
        }

    def config(self) -> Config:
        """
        Return its configuration, ready for a command.
        """
        config = Config(output_buffer=StringIO())
        for name, value in self._config.items():
            config.set_main_option(name, value)
        config.attributes.update(database=self.database, options=self.options)
        return config

    def upgrade(self, to: str = "head") -> None:
        command.upgrade(self.config(), to)

    def downgrade(self, to: str = "base") -> None:
        command.downgrade(self.config(), to)

    def stamp(self, revision: str) -> None:
        command.stamp(self.config(), revision)

    def check(self) -> None:
        command.check(self.config())

    def sql(self, to: str = "head") -> str:
        """
        Return what ``--sql`` prints about an upgrade, or for ``start:end`` about a downgrade.
        """
        config = self.config()
        (command.downgrade if ":" in to else command.upgrade)(config, to, sql=True)
        buffer = config.output_buffer
        assert isinstance(buffer, StringIO)
        return buffer.getvalue()
