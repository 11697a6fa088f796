"""
The next version of the library, made up: nobody's chain breaks by installing it, and each way leads to its schema.

It is a copy of the package with a revision ``brooq0002``, which adds a column, in a folder of its own.
"""

from __future__ import annotations

import compileall
import shutil
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, inspect, text

from tests.chains import CUSTOMER, MERGE, Chain
from tests.commands import RunningWorker, shown
from tests.pages import Reader
from tests.projects import BOTH, OURS, THEIRS, MakeProject, Project
from tests.servers import ROOT
from tests.waiting import eventually

NEXT = f"{OURS}/0002"
REVISION = '''\
"""
A column for notes.
"""

import sqlalchemy as sa
from alembic import op

from sqlalchemy_brooq.migrations.revising import begin

revision = "brooq0002"
down_revision = "brooq0001"
branch_labels = None
depends_on = None
MARK = "sqlalchemy-brooq: "


def upgrade():
    schema = begin(op, since=down_revision)
    op.add_column("job", sa.Column("note", sa.Text()), schema=schema)
    op.create_table_comment("job", MARK + revision, existing_comment=MARK + down_revision, schema=schema)


def downgrade():
    schema = begin(op, since=revision)
    op.drop_column("job", "note", schema=schema)
    op.create_table_comment("job", MARK + down_revision, existing_comment=MARK + revision, schema=schema)
'''
FIRST = '''\
"""customers"""
import sqlalchemy as sa
from alembic import op

revision = "a1"
down_revision = None


def upgrade():
    op.create_table(
        "customer", sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String, nullable=False)
    )


def downgrade():
    op.drop_table("customer")
'''
JOBS = """\
import os

import sqlalchemy_brooq as brooq
from sqlalchemy import create_engine

queue = brooq.Queue(create_engine(os.environ["DATABASE_URL"]), brooq.Config(poll_interval="20ms"))


@queue.handler("greet")
def greet(claim: brooq.Claim) -> None:
    pass
"""


@pytest.fixture(scope="session")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The folder that the next version is installed in.
    """
    folder = tmp_path_factory.mktemp("next")
    package = folder / "sqlalchemy_brooq"
    shutil.copytree(ROOT / "sqlalchemy_brooq", package, ignore=shutil.ignore_patterns("__pycache__"))
    own = package / "migrations/versions/0002"
    own.mkdir()
    (own / "brooq0002_note.py").write_text(REVISION)
    edit(package / "model.py", 'REVISION: Final = "brooq0001"', 'REVISION: Final = "brooq0002"')
    meta = "    meta: Mapped[Any | None] = "
    edit(package / "model.py", meta, f"    note: Mapped[str | None]\n{meta}")
    edit(package / "schema.py", '("brooq0001",)', '("brooq0001", "brooq0002")')
    compileall.compile_dir(folder, quiet=1)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert content.count(old) == 1, (path, old)
    path.write_text(content.replace(old, new))


def install(project: Project, release: Path) -> None:
    """
    Let the project's Python find another version of the library.
    """
    installed, _ = project.path
    project.path = (installed, release)


def columns(url: URL) -> set[str]:
    engine = create_engine(url, poolclass=NullPool)
    return {column["name"] for column in inspect(engine).get_columns("job")}


def worker(project: Project) -> RunningWorker:
    python_path = ":".join(map(str, project.path))
    return RunningWorker("jobs:queue", cwd=project.folder, DATABASE_URL=shown(project.database), PYTHONPATH=python_path)


def refusal_of_a_worker(project: Project) -> str:
    with worker(project) as running:
        assert running.process.wait(timeout=30) == 1, running.err
        (line,) = running.err.splitlines()
        return line


def adopted(project: Project) -> Project:
    """
    Return the project with ours merged into its chain, at its head.
    """
    project.init()
    project.write("jobs.py", JOBS)
    project.write("alembic/versions/a1_customers.py", FIRST)
    project.alembic("merge", "-m", "adopt sqlalchemy-brooq", "heads")
    project.alembic("upgrade", "head")
    return project


@pytest.mark.slow
def test_a_merged_chain_goes_on_until_the_next_revision_is_adopted(
    make_project: MakeProject, next_release: Path
) -> None:
    project = adopted(make_project())
    install(project, next_release)

    # Nothing breaks, and what needs the new schema says so.
    project.alembic("upgrade", "head")
    project.target("Base.metadata")
    assert "No new upgrade operations" in project.alembic("check").out
    project.target(BOTH)
    for refused in (project.refused("check"), refusal_of_a_worker(project)):
        assert "the table job is of revision brooq0001; this version needs brooq0002: " in refused
        assert f"list {NEXT} in version_locations and run `alembic merge heads` and `alembic upgrade head`" in refused

    # As the page says, one line and a merge adopt it.
    with Reader(project.folder, project.database, path=project.path) as reader:
        reader.follow(ROOT / "docs/how-to/alembic.md", "Adopt a later revision")
    assert "note" in columns(project.database)
    assert "No new upgrade operations" in project.alembic("check").out
    with worker(project) as running:
        running.announcement()

    # A worker of the previous version says so, and the whole way back and forth works.
    install(project, ROOT)
    assert "the table job is of revision brooq0002; this version needs brooq0001 and doesn't know that one" in (
        refusal_of_a_worker(project)
    )
    install(project, next_release)
    project.alembic("downgrade", "base")
    project.alembic("upgrade", "head")
    assert "note" in columns(project.database)


def test_before_the_merge_the_next_revision_can_be_taken_back(
    tmp_path: Path, empty_database_url: URL, next_release: Path
) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    own = str(next_release / "sqlalchemy_brooq/migrations/versions/0002")
    chain = Chain(tmp_path / "chain", engine, CUSTOMER, MERGE, locations=(OURS, own))

    chain.upgrade("heads")
    assert "note" in columns(empty_database_url)
    chain.downgrade("brooq0002@brooq0001")

    assert "note" not in columns(empty_database_url)
    chain.upgrade("merge")


def test_migrate_changes_the_table_while_a_worker_of_the_previous_version_runs(
    make_project: MakeProject, next_release: Path
) -> None:
    project = make_project()
    project.write("jobs.py", JOBS)
    project.brooq_worker("migrate")
    engine = create_engine(project.database, poolclass=NullPool)
    install(project, next_release)
    assert "or run `brooq-worker migrate`" in refusal_of_a_worker(project)
    install(project, ROOT)

    with worker(project) as running:
        running.announcement()
        enqueue(engine, 200)
        install(project, next_release)
        answer = project.brooq_worker("migrate")
        assert answer.out == "migrated the schema 'public' from brooq0001 to brooq0002\n"
        enqueue(engine, 200)
        eventually(lambda: done(engine) == 400, message=running.err)
        answer = project.brooq_worker("migrate", "--to", "brooq0001")
        assert answer.out == "migrated the schema 'public' from brooq0002 to brooq0001\n"
        enqueue(engine, 200)
        eventually(lambda: done(engine) == 600, message=running.err)
        assert running.end() == 0

    assert "note" not in columns(project.database)
    install(project, ROOT)
    assert project.brooq_worker("migrate").out.startswith("nothing to do: ")


def enqueue(engine: Engine, jobs: int) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO job (topic) SELECT 'greet' FROM generate_series(1, {jobs})"))


def done(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalars(text("SELECT count(*) FROM job WHERE state = 'done'")).one())


CALL = """\
import sqlalchemy_brooq as brooq
from alembic import op

revision = "{revision}"
down_revision = "{previous}"


def upgrade():
    brooq.migrations.upgrade(op, to="{to}", since="{since}")


def downgrade():
    brooq.migrations.downgrade(op, to="{since}", since="{to}")
"""


def test_a_linear_history_calls_the_next_revision_when_it_likes(make_project: MakeProject, next_release: Path) -> None:
    project = make_project().init("generic", "Base.metadata")
    project.locate(THEIRS)
    project.write("alembic/versions/a1_customers.py", FIRST)
    calls = CALL.format(revision="a2", previous="a1", to="brooq0001", since="base")
    project.write("alembic/versions/a2_jobs.py", calls)
    project.alembic("upgrade", "head")

    install(project, next_release)
    project.alembic("upgrade", "head")
    assert "note" not in columns(project.database)
    calls = CALL.format(revision="a3", previous="a2", to="brooq0002", since="brooq0001")
    project.write("alembic/versions/a3_notes.py", calls)
    offline = project.alembic("upgrade", "a2:a3", "--sql").out
    project.alembic("upgrade", "head")
    assert "note" in columns(project.database)
    assert "ALTER TABLE job ADD COLUMN note TEXT" in offline
    assert "COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq0002'" in offline
    project.alembic("downgrade", "a1")
    project.alembic("upgrade", "head")
    assert "note" in columns(project.database)

    install(project, ROOT)
    refused = project.refused("downgrade", "a1")
    assert "'brooq0002' is no revision of this version of sqlalchemy-brooq: it knows brooq0001" in refused
