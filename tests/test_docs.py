"""
The documentation is true: its pages are followed block by block, and its tables say what the code says.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import re
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import URL, CheckConstraint, Engine, Index
from sqlalchemy.dialects import postgresql

import sqlalchemy_brooq
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.model import JOB, STORAGE
from sqlalchemy_brooq.settings import OPTIONS, SETTINGS, Setting
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, MOVES, TERMINAL, Event, JobState
from tests.pages import Reader, asks_for_something, blocks, makes_the_table, table
from tests.servers import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
GUIDES = DOCS / "how-to"
FOLLOWED = [page for page in PAGES if asks_for_something(page) and GUIDES not in page.parents]
"""The guides are followed by a file of their own."""
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.timeout(300)  # dozens of processes, one after the other, on a machine that may be busy
@pytest.mark.parametrize("page", FOLLOWED, ids=name)
def test_a_page_works_as_it_is_written(
    request: pytest.FixtureRequest, tmp_path: Path, installed: Path, page: Path
) -> None:
    database = "empty_database_url" if makes_the_table(page) else "database_url"

    with Reader(tmp_path, request.getfixturevalue(database), path=(installed, ROOT)) as reader:
        reader.follow(page)


@pytest.mark.parametrize(
    "untrue",
    [
        "```sql\nSELECT 1 AS one;\n```\n```text\none\n-\n2\n(1 row)\n```\n",
        "```sql\nSELECT 1 AS one;\n```\n```text\none\n-\n1\n```\n",
        "```shell\npython -c 'print(1)'\n```\n```text\n2\n```\n",
        "```shell\npython -c '1 / 0'\n```\n",
        "```shell\nmake tea\n```\n",
        "```python\nprint('in no file')\n```\n",
    ],
)
def test_a_page_that_is_not_true_does_not_pass(tmp_path: Path, empty_database_url: URL, untrue: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(untrue)

    with Reader(tmp_path, empty_database_url, patience=0.1) as reader, pytest.raises(BaseException, match=r"page\.md:"):
        reader.follow(page)


def test_the_readme_s_test_command_is_the_one_that_ci_runs() -> None:
    commands = [block.text for block in blocks(README) if block.language == "shell" and not block.is_run]

    assert commands[1] in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("text", TEXTS, ids=name)
def test_a_link_leads_somewhere(text: Path) -> None:
    dead = [target for target in LINK.findall(text.read_text()) if not (text.parent / target).exists()]

    assert dead == []


def test_the_settings_are_those_of_the_code() -> None:
    page = DOCS / "reference/settings.md"

    assert table(page, "variable") == [[f"`{row.variable}`", *about(row)] for row in SETTINGS.values()]
    assert table(page, "option") == [[f"`{row.name}`", *about(row)] for row in OPTIONS.values()]


def about(row: Setting) -> list[str]:
    return [row.kind.name, row.default_text, row.rule.text, row.help]


def test_the_moves_are_those_of_the_code() -> None:
    assert table(DOCS / "explanation/states.md", "event") == [
        [f"`{event}`", ", ".join(f"`{state}`" for state in JobState if state in leaves), f"`{enters}`"]
        for event, (leaves, enters) in MOVES.items()
    ]


def test_the_drawing_of_the_states_is_up_to_date() -> None:
    picture = script("states.py")

    assert picture.FILE.read_text() == picture.drawn(), "python docs/states.py draws it anew"


def test_a_move_that_the_drawing_does_not_know_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = script("states.py")
    monkeypatch.setattr(picture, "MOVES", {**MOVES, Event.DONE: (CLAIMABLE, JobState.DONE)})

    with pytest.raises(KeyError, match="JobDone"):
        picture.drawn()


def test_an_arrow_that_ends_elsewhere_than_its_move_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = script("states.py")
    monkeypatch.setattr(picture, "MOVES", {**MOVES, Event.DEAD: (HELD, JobState.DONE)})

    with pytest.raises(ValueError, match="should touch done"):
        picture.drawn()


def test_the_drawing_of_the_states_has_a_text_for_those_who_do_not_see_it() -> None:
    text = re.search(r"!\[([^]]+)\]\(\.\./images/states\.svg\)", (DOCS / "explanation/states.md").read_text())

    assert text is not None
    assert [state for state in JobState if state not in text[1]] == []


def test_the_states_are_those_of_the_code() -> None:
    rows = table(DOCS / "explanation/states.md", "state")

    assert [(state, bool(claimed), bool(over)) for state, _, claimed, over in rows] == [
        (f"`{state}`", state in CLAIMABLE, state in TERMINAL) for state in JobState
    ]


def test_the_schema_is_the_model_s() -> None:
    page = DOCS / "reference/schema.md"
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    types = {"timestamp with time zone": "timestamptz"}

    columns = [(f"`{column.name}`", column.type.compile(dialect).lower(), column.nullable) for column in JOB.c]
    assert [row[:3] for row in table(page, "column")] == [
        [column, f"`{types.get(kind, kind)}`", "yes" if nullable else "no"] for column, kind, nullable in columns
    ]
    checks = [str(check.name) for check in JOB.constraints if isinstance(check, CheckConstraint)]
    assert {row[0] for row in table(page, "constraint")} == {f"`{check}`" for check in ["job_pkey", *checks]}
    assert sorted(table(page, "index")) == sorted(map(indexed, JOB.indexes))
    assert {row[0]: row[1] for row in table(page, "setting")} == {f"`{key}`": value for key, value in STORAGE.items()}


def indexed(index: Index) -> list[str]:
    columns = ", ".join(str(column).removeprefix("job.").replace("job.", "") for column in index.expressions)
    return [
        f"`{index.name}`",
        f"`{columns}`" + (", unique" if index.unique else ""),
        f"`{index.dialect_options['postgresql']['where']}`",
    ]


def test_the_metrics_are_those_of_the_code() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    labels = {"brooq_jobs": ("topic", "state"), "brooq_ready_oldest_age_seconds": ("topic",)}
    for collector, names in registry._collector_to_names.items():
        labels.setdefault(names[0], getattr(collector, "_labelnames", ()))

    assert {tuple(row[:3]) for row in table(DOCS / "reference/metrics.md", "metric")} == {
        (
            f"`{family.name}{'_total' if family.type == 'counter' else ''}`",
            family.type,
            ", ".join(f"`{label}`" for label in labels[family.name]),
        )
        for family in registry.collect()
    }


def test_every_module_is_in_the_architecture() -> None:
    architecture = (DOCS / "architecture.md").read_text()
    package = ROOT / "sqlalchemy_brooq"
    modules = [path for path in package.rglob("*.py") if not {"demo", "versions"} & set(path.parts)]

    names = {path.stem for path in modules} - {"__init__", "__main__"}
    assert sorted(name for name in names if f"`{name}`" not in architecture) == []


def test_the_names_in_the_architecture_are_those_of_the_code() -> None:
    architecture = (DOCS / "architecture.md").read_text()
    life = architecture.partition("## The life of a job")[2].partition("\n## ")[0]
    tables = architecture.partition("## Modules and layers")[2].partition("## Threads")[0]
    modules = {path.stem for path in (ROOT / "sqlalchemy_brooq").rglob("*.py")} | {"pytest_brooq"}
    modules |= {f"{path.name}/" for path in (ROOT / "sqlalchemy_brooq").rglob("*") if path.is_dir()}

    rows = [line.split("|")[1:3] for line in tables.splitlines() if line.startswith("| ") and "`" in line]
    named = re.findall(r"`([a-z_]+/?)`", "".join(cell for row in rows for cell in row))
    assert [name for name in named if name not in modules] == []
    places = re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", life)
    assert len(places) > 30
    assert [place for place in places if place != "session.add" and not leads_somewhere(place)] == []


def test_what_the_guide_for_contributors_names_is_there() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    folders = [ROOT, ROOT / "sqlalchemy_brooq", DOCS]

    files = re.findall(r"`((?:[\w*.]+/)*[\w*]+\.(?:py|md|json|yaml|ini|toml))`", guide)
    assert len(files) > 20
    assert [file for file in files if not any([*folder.glob(file)] for folder in folders)] == []
    names = re.findall(r"`(test_\w+)`", guide)
    assert len(names) > 5
    assert [name for name in names if f"def {name}(" not in tests] == []


def test_the_speed_that_the_readme_states_is_the_measured_one() -> None:
    [row] = [line for line in README.read_text().splitlines() if line.startswith("| empty jobs a second")]
    _, *stated = [cell.strip() for cell in row.strip("|").split("|")]
    results = json.loads((DOCS / "performance/figures.json").read_text())["results"]

    def measured(contestant: str) -> str:
        found = [
            one["figures"]["jobs/s"]
            for one in results
            if (one["scenario"], one["case"], one["contestant"]) == ("queues", "1 process", contestant)
        ]
        return f"{float(f'{median(found):.2g}'):,.0f}"

    queues = ("ours, async", "procrastinate", "pgqueuer, asyncpg", "chancy", "oban")
    assert stated == [*map(measured, queues), "not measured"]


def leads_somewhere(place: str) -> bool:
    """
    Whether *place* is a module of ours, or something in one.
    """
    found: Any = sqlalchemy_brooq
    for name in place.split("."):
        with contextlib.suppress(ModuleNotFoundError):
            if isinstance(found, ModuleType):
                importlib.import_module(f"{found.__name__}.{name}")
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


def test_each_index_serves_the_statement_that_the_architecture_shows(engine: Engine) -> None:
    plans = script("plans.py")
    with engine.begin() as connection:
        plans.fill(connection, 100_000)
        taken = list(plans.plans(connection))

    assert {plan.index for plan in taken} == {"job_pkey", *(index.name for index in JOB.indexes)}
    for plan in taken:
        assert f" {plan.index} " in plan.text, plan
        assert "Seq Scan on job" not in plan.text, plan
        assert f"### {plan.purpose.capitalize()}\n\n`{plan.index}`" in (DOCS / "architecture.md").read_text()


def script(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), DOCS / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
