"""
Payloads: what is taken comes back, and what PostgreSQL would refuse is refused before it is asked.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, cast, literal, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from sqlalchemy_brooq import Job, PayloadError, payload
from sqlalchemy_brooq.payload import MAX_DEPTH, copied, encoded

text = st.text(st.characters(exclude_categories=()))  # surrogates and NUL among them
numbers = st.integers(-(10**40), 10**40) | st.floats()
values = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


def as_jsonb(connection: Connection, document: str) -> Any:
    return connection.scalar(select(cast(literal(document), JSONB)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(value=values)
@example("\\u0000")
@example("\\\x00")
@example({"\x00": 1})
@example(["\ud83d\ude00", "\ud83d"])
@example(1e308)
@example(float("nan"))
def test_a_payload_is_either_refused_or_comes_back_from_jsonb(engine: Engine, value: Any) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        try:
            document = encoded(value)
        except PayloadError:
            with pytest.raises((DBAPIError, UnicodeEncodeError, ValueError)):
                as_jsonb(connection, json.dumps(value, ensure_ascii=False))
        else:
            assert as_jsonb(connection, document) == approximately(copied(value))


def approximately(value: Any) -> Any:
    """
    Return *value* with its floats as jsonb writes them: without an exponent, so that great ones come back as ints.
    """
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-15, abs=0)
    if isinstance(value, list):
        return [approximately(item) for item in value]
    if isinstance(value, dict):
        return {key: approximately(item) for key, item in value.items()}
    return value


@given(values)
def test_a_copy_is_what_json_makes_of_a_value(value: Any) -> None:
    try:
        copy = copied(value)
    except PayloadError:
        return

    assert copy == json.loads(json.dumps(value))
    assert copy is not value or not isinstance(value, list | dict)


def test_a_job_keeps_a_copy_of_its_payload() -> None:
    lines = [1, {"sku": "a"}]
    job = Job("t", {"lines": lines, 5: (1, 2)})

    lines.append(2)
    lines[1]["sku"] = "b"  # type: ignore[index]

    assert job.payload == {"lines": [1, {"sku": "a"}], "5": [1, 2]}


def test_a_payload_that_is_not_given_is_an_empty_object_and_none_is_null() -> None:
    first, second = Job("t"), Job("t")
    first.payload["mine"] = 1

    assert second.payload == {}
    assert Job("t", None).payload is None


class Size(IntEnum):
    SMALL = 1


class Colour(StrEnum):
    RED = "red"


def test_what_json_writes_as_a_value_is_one() -> None:
    assert copied({"size": Size.SMALL, "colour": Colour.RED, Colour.RED: True}) == {
        "size": 1,
        "colour": "red",
        "red": True,
    }


def nested(depth: int, inner: Any = 0) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


def cyclic() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("a\x00b", "NUL character"),
        ([{"\x00": 1}], "NUL character"),
        ("\\\x00", "NUL character"),
        ("\ud800", r"lone surrogate \('\\ud800'\)"),
        ({"\udfff": 1}, "lone surrogate"),
        (float("nan"), "not JSON"),
        ([float("-inf")], "not JSON"),
        ({float("nan"): 1}, "not JSON"),
        (10**5_000, "not JSON"),
        (nested(MAX_DEPTH + 1), "nested too deeply"),
        (nested(100_000), "nested too deeply"),
        (nested(100_000, object()), "nested too deeply"),
        (cyclic(), "not JSON|nested too deeply"),
        ({"when": datetime.now(UTC), "nul": "\x00"}, "NUL character"),
        ({"when": datetime.now(UTC), "nan": float("nan")}, "not JSON"),
        ({"when": datetime.now(UTC), "\ud800": 1}, "lone surrogate"),
        ({"open": open(__file__)}, "can't be copied"),  # noqa: PTH123, SIM115 - a thing that can't be copied
    ],
    ids=lambda value: value if isinstance(value, str) and value.isprintable() else "value",
)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_no_serializer_mends_is_refused_when_the_job_is_built(value: Any, fault: str) -> None:
    with pytest.raises(PayloadError, match=fault):
        Job("t", value)


@pytest.mark.parametrize("value", [datetime.now(UTC), Decimal("1.5"), {1, 2}, b"bytes", object(), {(1, 2): 3}])
def test_a_foreign_type_waits_for_the_engines_serializer(value: Any) -> None:
    job = Job("t", {"value": value})

    with pytest.raises(PayloadError, match="the payload is not JSON: "):
        encoded(job.payload)
    assert encoded(job.payload, lambda _: '"written"') == '"written"'


def test_the_deepest_nesting_and_escapes_that_only_look_bad_are_taken(engine: Engine) -> None:
    with engine.connect() as connection:
        for value in (
            nested(MAX_DEPTH),
            {"a": nested(MAX_DEPTH - 1)},
            "[" * 5_000,
            "\\u0000",
            '"\\ud800',
            "\U0001f600",
        ):
            assert as_jsonb(connection, encoded(value)) == copied(value) == value


def test_escaped_pairs_of_a_serializer_are_no_lone_surrogates(engine: Engine) -> None:
    with engine.connect() as connection:
        assert as_jsonb(connection, encoded("\U0001f600", json.dumps)) == "\U0001f600"


def test_what_is_larger_than_jsonb_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "MAX_SIZE", 10)

    assert copied("ü" * 4) == "üüüü"
    with pytest.raises(PayloadError, match="has 12 bytes: jsonb takes at most 10"):
        copied("ü" * 5)


@pytest.mark.parametrize("number", ["1e308", "1e-400", "-1.5e300", "1E5"])
def test_numbers_of_a_serializer_within_a_doubles_range_are_taken(engine: Engine, number: str) -> None:
    with engine.connect() as connection:
        assert as_jsonb(connection, encoded(0, lambda _: number)) == pytest.approx(float(number))
