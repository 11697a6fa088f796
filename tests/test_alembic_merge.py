"""
The main way in, by command: ours is merged into a consumer's own chain, in each kind of project that alembic makes.

The page ``how-to/alembic.md`` does the same in the commonest kind, and names the traps that the second half tries.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, NullPool, create_engine

from sqlalchemy_brooq.schema import VERSIONS, drift
from tests.catalogs import contents, run_sql
from tests.chains import CUSTOMER, MERGE, ORDER, Chain
from tests.projects import OURS, THEIRS, MakeProject, Template
from tests.servers import ROOT

#: What an ini file, a variable and a URL each have their own opinion about.
PASSWORD = "p@ss%w:rd/%(x)s%%"  # noqa: S105 - made up
ORDERS = """

class Order(Base):
    __tablename__ = "order_"

    id: Mapped[int] = mapped_column(primary_key=True)
"""


@pytest.mark.parametrize("template", ["async", "pyproject"])
def test_ours_joins_a_consumers_chain_and_leaves_it_without_a_trace(
    make_project: MakeProject, empty_database_url: URL, template: Template
) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    before = contents(engine)
    project = make_project(database=empty_database_url.set(password=PASSWORD)).init(template)
    project.locate(THEIRS)
    project.target("Base.metadata")
    project.revise("customers")

    project.locate(THEIRS, OURS)
    assert len(project.alembic("heads").out.splitlines()) == 2
    project.alembic("merge", "-m", "adopt sqlalchemy-brooq", "heads")
    assert len(project.revisions) == 2
    project.alembic("upgrade", "head")
    with engine.connect() as connection:
        assert drift(connection) == []

    project.target("[brooq.metadata, Base.metadata]")
    project.append("models.py", ORDERS)
    written = project.revise("orders").read_text()
    assert written.count("op.create_table(") == 1
    assert "'order_'" in written
    project.alembic("upgrade", "head")
    assert "No new upgrade operations" in project.alembic("check").out

    project.alembic("downgrade", "base")
    run_sql(engine, "DROP TABLE alembic_version")
    assert contents(engine) == before


# What the page warns of is true.


def scripts(folder: Path, **options: str) -> ScriptDirectory:
    """
    Return what alembic sees of a project with one revision, in a folder where nothing else is.
    """
    (folder / "alembic/versions").mkdir(parents=True)
    (folder / "alembic/versions/customer.py").write_text("revision, down_revision = 'customer', None")
    lines = [f"{name} = {value}" for name, value in options.items()]
    (folder / "alembic.ini").write_text("\n".join(["[alembic]", "script_location = %(here)s/alembic", *lines]))
    return ScriptDirectory.from_config(Config(folder / "alembic.ini"))


@pytest.mark.parametrize(
    ("separator", "locations", "heads"),
    [
        ("newline", f"\n    {THEIRS}\n    {VERSIONS}", ["customer", "brooq0001"]),
        ("space", f"{THEIRS} {VERSIONS}", ["customer", "brooq0001"]),
        ("os", f"{THEIRS}:{VERSIONS}", ["customer"]),
        ("os", f"\n    {THEIRS}\n    {VERSIONS}", []),
        ("space", f"\n    {THEIRS}\n    {VERSIONS}", []),
    ],
)
def test_only_a_separator_that_leaves_our_path_whole_shows_our_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str, locations: str, heads: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert scripts(tmp_path, path_separator=separator, version_locations=locations).get_heads() == heads


@pytest.mark.parametrize(("first", "folder"), [("theirs", "alembic/versions"), ("ours", "package")])
def test_a_merge_lands_in_the_folder_that_is_listed_first(tmp_path: Path, first: str, folder: str) -> None:
    package = copied_versions(tmp_path)
    places = [str(tmp_path / "alembic/versions"), str(package)]
    listed = "".join(f"\n    {place}" for place in (places if first == "theirs" else reversed(places)))
    scripts(tmp_path, path_separator="newline", version_locations=listed)
    shutil.copy(ROOT / "alembic/script.py.mako", tmp_path / "alembic")

    merge = command.merge(Config(tmp_path / "alembic.ini"), "heads", "adopt")

    assert merge is not None
    assert Path(merge.path).parent == tmp_path / folder


def test_a_first_revision_lands_in_our_folder_while_ours_is_the_only_head(tmp_path: Path) -> None:
    package = copied_versions(tmp_path)
    listed = f"\n    {tmp_path}/alembic/versions\n    {package}"
    scripts(tmp_path, path_separator="newline", version_locations=listed)
    shutil.copy(ROOT / "alembic/script.py.mako", tmp_path / "alembic")
    (tmp_path / "alembic/versions/customer.py").unlink()

    revision = command.revision(Config(tmp_path / "alembic.ini"), "customers")

    assert Path(revision.path).parent == package  # type: ignore[union-attr] # one, without a directive


def copied_versions(tmp_path: Path) -> Path:
    return shutil.copytree(
        ROOT / "sqlalchemy_brooq/migrations/versions",
        tmp_path / "package",
        ignore=shutil.ignore_patterns("__pycache__"),
    )


def test_a_later_revision_is_seen_only_where_its_folder_is_listed(tmp_path: Path) -> None:
    package = copied_versions(tmp_path)
    (package / "0002").mkdir()
    (package / "0002/brooq0002.py").write_text("revision, down_revision = 'brooq0002', 'brooq0001'")
    chain = [f"\n    {tmp_path}/alembic/versions", f"\n    {package}", f"\n    {package}/0002"]
    options = {"path_separator": "newline", "version_locations": "".join(chain[:2])}

    assert scripts(tmp_path / "a", **options).get_heads() == ["brooq0001"]
    recursive = scripts(tmp_path / "b", **options, recursive_version_locations="true")
    assert recursive.get_heads() == ["brooq0002"]
    listed = scripts(tmp_path / "c", **{**options, "version_locations": "".join(chain)})
    assert listed.get_heads() == ["brooq0002"]


def test_our_label_spreads_to_what_follows_the_merge(tmp_path: Path, empty_database_url: URL) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    chain = Chain(tmp_path / "chain", engine, CUSTOMER, MERGE, ORDER)

    for name in ("merge", "order"):
        script = ScriptDirectory.from_config(chain.config()).get_revision(name)
        assert script is not None
        assert "brooq" in script.branch_labels


def test_a_downgrade_past_the_merge_takes_the_revisions_since_then_along(
    tmp_path: Path, empty_database_url: URL
) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    chain = Chain(tmp_path / "chain", engine, CUSTOMER, MERGE, ORDER)
    chain.upgrade()

    chain.downgrade("merge")
    with pytest.raises(CommandError, match="Ambiguous walk"):
        chain.downgrade("-1")
    chain.upgrade()
    chain.downgrade("brooq0001")

    assert ("relation", "order_") not in contents(engine)
    assert {("relation", "customer"), ("relation", "job")} <= set(contents(engine))
