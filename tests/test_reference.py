"""
The reference of the API is whole: each public name is there, says what it is and takes and raises, and links lead out.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import re
import textwrap
import typing
import zlib
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import migrations, testing, tracing
from tests.pages import blocks
from tests.servers import ROOT
from tests.test_docs import script

REPLAYED = "019aa000-0000-7000-8000-000000000013"
"""The job that the page of SQL replays."""
API = (ROOT / "docs/reference/api.md").read_text()

MODULES: list[ModuleType] = [brooq, testing, tracing, migrations]


def public_names() -> list[Any]:
    return [pytest.param(module, name, id=f"{module.__name__}.{name}") for module in MODULES for name in module.__all__]


def documented(module: ModuleType) -> str:
    """
    Return the parts of the reference that are about *module*.
    """
    parts = re.split(r"currentmodule:: (\S+)\n", API)
    return "".join(text for name, text in zip(parts[1::2], parts[2::2], strict=True) if name == module.__name__)


@pytest.mark.parametrize(("module", "name"), public_names())
def test_a_public_name_is_in_the_reference(module: ModuleType, name: str) -> None:
    assert re.search(rf"^\.\. (?:auto|py:)\w+:: {name}\b", documented(module), re.MULTILINE)


def functions() -> Iterator[Any]:
    """
    Yield what a consumer may call: functions, methods and constructors of all public names.
    """
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            place = f"{module.__name__}.{name}"
            if isinstance(found, FunctionType):
                yield pytest.param(found, inspect.getdoc(found), id=place)
            elif isinstance(found, type) and found.__module__.startswith("sqlalchemy_brooq"):
                yield from methods(found, place)


def methods(owner: type, place: str) -> Iterator[Any]:
    constructor = vars(owner).get("__init__")
    constructor = getattr(constructor, "_sa_original_init", constructor)  # SQLAlchemy's has no annotations
    if isinstance(constructor, FunctionType) and inspect.getsourcefile(constructor) and owner.__name__ not in MADE:
        yield pytest.param(constructor, inspect.getdoc(owner), id=place)
    for name, member in vars(owner).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if isinstance(function, FunctionType) and not name.startswith("_") and name not in INTERNAL:
            yield pytest.param(function, inspect.getdoc(function), id=f"{place}.{name}")


MADE = {"AttemptRecord", "Claim", "CrashReport", "Fault", "MigrationResult", "NotIdempotent"}
"""Classes whose objects the library makes: nobody calls their constructors."""
INTERNAL = {"strike"}
"""Methods that the library calls itself, and the reference leaves out."""
MIRROR = re.compile(r"(.+; )?(`\w+`[,.]? (for|in|without)\b|.*\b(see|as for|otherwise as) `[\w.]+`)", re.DOTALL)
"""What is said by a function that sends its reader to another one."""


@pytest.mark.parametrize(("function", "text"), [*functions()])
def test_what_can_be_called_says_what_it_does_takes_and_raises(function: Callable[..., Any], text: str | None) -> None:
    assert text, "it has no docstring"
    parameters = [name for name in inspect.signature(function).parameters if name not in {"self", "cls"}]

    assert [name for name in parameters if name not in annotated(function)] == [], "without type"
    if MIRROR.match(text):
        return
    assert [name for name in parameters if not is_explained(name, text)] == []
    assert [error for error in raised(function) if error not in text] == [], "raises what it doesn't name"
    for name in durations(function):
        assert re.search(r"timedelta|with a unit|As for", text), f"{name} has no unit"


def classes() -> Iterator[Any]:
    for module in MODULES:
        for name in module.__all__:
            found = getattr(module, name)
            if isinstance(found, type) and found.__module__.startswith("sqlalchemy_brooq") and name not in LISTED:
                yield pytest.param(found, id=f"{module.__name__}.{name}")


LISTED = {"Config", "HandlerOptions", "Job"}
"""Classes whose attributes a page lists, which is compared with the code: the settings, and the columns."""


@pytest.mark.parametrize("owner", [*classes()])
def test_a_public_attribute_says_what_it_is(owner: type) -> None:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(tree, ast.ClassDef)
    after = zip(tree.body, [*tree.body[1:], None], strict=True)

    silent = [
        node.target.id
        for node, text in after
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not isinstance(text, ast.Expr)
    ]
    assert [name for name in silent if not name.startswith("_")] == []


def annotated(function: Any) -> dict[str, str]:
    return inspect.get_annotations(inspect.unwrap(function))


def is_explained(name: str, text: str) -> bool:
    return re.search(rf"(\*{name}\*|``{name}``|^    {name}: )", text, re.MULTILINE) is not None


def raised(function: Callable[..., Any]) -> set[str]:
    """
    Return the names of the exceptions that stand in *function* itself after ``raise``.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = (node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise))
    names = {call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    return {name for name in names if name[0].isupper()}


def durations(function: Callable[..., Any]) -> list[str]:
    hints = annotated(function)
    return [name for name, hint in hints.items() if "DurationLike" in hint or "timedelta" in hint]


def sqlalchemy_s(function: Any) -> Iterator[str]:
    """
    Yield the classes of SQLAlchemy's that the signature of *function* names, as autodoc writes them.
    """
    waiting = []
    for annotation in annotated(function).values():
        with contextlib.suppress(NameError):  # of an extra, for type checkers alone
            waiting.append(eval(annotation, inspect.unwrap(function).__globals__))  # noqa: S307 - our own source
    while waiting:
        hint = waiting.pop()
        waiting.extend(part for part in (typing.get_origin(hint), *typing.get_args(hint)) if part is not None)
        if isinstance(hint, type) and hint.__module__.startswith("sqlalchemy."):
            yield f"{hint.__module__}.{hint.__qualname__}"


def inventories() -> dict[str, Any]:
    module = script("inventories.py")
    return {file.stem: module.inventory(file) for file in module.FOLDER.glob("*.txt")}


def test_sqlalchemy_s_classes_in_our_signatures_are_links() -> None:
    named = {name for parameter in functions() for name in sqlalchemy_s(parameter.values[0])}

    assert {"sqlalchemy.orm.session.Session", "sqlalchemy.engine.base.Engine"} < named
    assert named - inventories()["sqlalchemy"].objects.keys() == set()


@pytest.mark.parametrize("project", ["alembic", "python", "sqlalchemy"])
def test_what_links_lead_to_exists(project: str) -> None:
    objects = inventories()[project].objects
    names = [name for name in objects if "." in name]

    assert [name for name in names if not is_importable(name)] == []
    assert [name for name, (_, place) in objects.items() if name.split(".")[-1] != place.split(".")[-1]] == []


def is_importable(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return hasattr(importlib.import_module(module), last)


def test_an_inventory_is_what_sphinx_reads() -> None:
    packed = inventories()["sqlalchemy"].packed()

    *head, body = packed.split(b"\n", 4)
    assert head[0] == b"# Sphinx inventory version 2"
    assert b"sqlalchemy.orm.Session py:class 1 orm/session_api.html#sqlalchemy.orm.Session -\n" in zlib.decompress(body)


def test_a_replay_by_sql_and_one_by_python_are_the_same(engine: Engine) -> None:
    page = blocks(ROOT / "docs/reference/sql.md")
    [statement] = [
        block.text for block in page if block.language == "sql" and "'replays'" in block.text and "INSERT" in block.text
    ]
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO job (id, topic, state) VALUES (:id, 't', 'dead')"), {"id": REPLAYED})
        session.execute(text(statement))
        made = session.scalars(select(brooq.Job).where(brooq.Job.id != REPLAYED)).one()

        assert brooq.replay(session, REPLAYED) == (made.id, False)
        assert made.meta == {"replays": REPLAYED}
