"""
The description of the API is true: of its routes, of their answers, and of what they take.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import schemathesis
from flask import Flask
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import load_all_checks
from schemathesis.generation.modes import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from sqlalchemy import Engine

from sqlalchemy_brooq.web import create_app
from sqlalchemy_brooq.web.openapi import document
from tests.pages import table
from tests.servers import ROOT
from tests.test_browse import LEFT, put

TOKEN = "t0ken"  # noqa: S105 - of the test's own application
BEARER = {"Authorization": f"Bearer {TOKEN}"}
REFERENCE = ROOT / "docs" / "reference" / "http-api.md"
EXAMPLES = 12
"""Requests of each kind to each address; a fault was always found by the first few."""

load_all_checks()


def described() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (path, method): operation
        for path, operations in document("")["paths"].items()
        for method, operation in operations.items()
        if method != "parameters"
    }


def routes(app: Flask) -> set[tuple[str, str]]:
    return {
        (re.sub(r"<(?:uuid:)?(?:job_)?([a-z]+)>", r"{\1}", rule.rule), method.lower())
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/api/")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


def test_each_route_is_described_and_nothing_else(engine: Engine) -> None:
    assert described().keys() == routes(create_app(engine, token=TOKEN))


def test_each_part_of_the_description_is_used() -> None:
    text = str(document(""))

    for kind, names in document("")["components"].items():
        for name in names:
            assert kind == "securitySchemes" or f"#/components/{kind}/{name}'" in text, name


def test_the_reference_names_each_route() -> None:
    rows = [[f"{method.upper()} {path}", one["summary"]] for (path, method), one in described().items()]

    assert [[cells[0].strip("`"), cells[1]] for cells in table(REFERENCE, "request")] == rows


def test_the_reference_names_each_parameter() -> None:
    names = [one["name"] for one in described()["/api/jobs", "get"]["parameters"]]

    assert [cells[0].strip("`").replace("payload.PATH", "payload") for cells in table(REFERENCE, "parameter")] == names


def is_refused_with_reason(case: Any) -> bool:
    """
    Tell whether a request is refused for what no schema says: a cursor is made by us, and nobody who waits has ended.
    """
    query = case.query or {}
    return "after" in query or ("state" in query and bool({"ended_since", "ended_until"} & query.keys()))


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_whatever_is_sent_the_answers_are_those_that_are_described(engine: Engine, mode: GenerationMode) -> None:
    for state in LEFT:
        put(engine, state, count=3, topic=f"topic-{state}")
    put(engine, "done", payload='\'{"customer": {"id": 42}}\'', result="'[1e400]'", updated_at="'infinity'")
    app = create_app(engine, token=TOKEN)
    schema = schemathesis.openapi.from_wsgi("/api/openapi.json", app, headers=BEARER)
    tried = set()

    found: list[Any] = [*schema.get_all_operations()]
    for operation in (result.ok() for result in found):

        @seed(0)  # the same on each machine: a fault that it finds is looked at, and not one of another day
        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            database=None,
        )
        def check(case: Any) -> None:
            excluded = [positive_data_acceptance] if is_refused_with_reason(case) else []
            case.call_and_validate(headers=BEARER, excluded_checks=excluded)

        check()
        tried.add(operation.label)

    assert len(tried) == len(described()) - 1  # but for the description itself
