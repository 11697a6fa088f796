"""
JSON as text: what is hidden in it, and that all the rest stays as it is.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.documents import HIDDEN, Masks, RawJson, to_json

NAMES = st.sampled_from(["a", "b", "secret", "SECRET", "card", "number", '"', "\\", "é", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["secret", "{", '"}']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def hidden(value: Any, path: tuple[str, ...] = ()) -> Any:
    """
    Return *value* as `Masks` of secret and card.number should show it; the plain way, over what was decoded.
    """
    if path and (path[-1].lower() == "secret" or path[-2:] == ("card", "number")):
        return HIDDEN
    if isinstance(value, dict):
        return {name: hidden(inner, (*path, name)) for name, inner in value.items()}
    # The last name of an array stands for its items, which have none of their own.
    return [hidden_item(inner, path) for inner in value] if isinstance(value, list) else value


def hidden_item(value: Any, path: tuple[str, ...]) -> Any:
    return hidden({"": value}, path)[""] if not isinstance(value, dict | list) else inside(value, path)


def inside(value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return {name: hidden(inner, (*path, name)) for name, inner in value.items()}
    return [hidden_item(inner, path) for inner in value]


@given(VALUES, st.sampled_from([None, 4]))
def test_what_is_named_is_hidden_and_nothing_else(value: Any, indent: int | None) -> None:
    shown = Masks(["Secret", "card.number"]).applied(RawJson(json.dumps(value, indent=indent)))

    assert json.loads(shown.text) == hidden(value)


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ('{"n": 1e400, "m": 1.10, "secret": {"a": [1, {"b": 2}]}}', '{"n": 1e400, "m": 1.10, "secret": "•••"}'),
        ('{\n  "card": [\n    {"number": "4"}\n  ]\n}', '{\n  "card": [\n    {"number": "•••"}\n  ]\n}'),
        ('{"number": 1, "CARD": {"Number": 2}}', '{"number": 1, "CARD": {"Number": "•••"}}'),
        ('["secret", "card"]', '["secret", "card"]'),
        ('"secret"', '"secret"'),
        ('{"a\\"secret": 1, "\\u0073ecret": 2}', '{"a\\"secret": 1, "\\u0073ecret": "•••"}'),
    ],
)  # fmt: skip
def test_the_rest_stays_to_the_last_space(document: str, shown: str) -> None:
    assert Masks(["secret", "card.number"]).applied(RawJson(document)).text == shown


def test_a_document_may_be_nested_deeper_than_python_calls() -> None:
    deep = '{"a":' * 50_000 + '{"secret":1}' + "}" * 50_000

    assert Masks(["secret"]).applied(RawJson(deep)).text == deep.replace('"secret":1', f'"secret":"{HIDDEN}"')


def test_a_text_for_masks_would_hide_letters_and_is_refused() -> None:
    with pytest.raises(TypeError, match=r"\['secret'\], not one text"):
        Masks("secret")


@pytest.mark.parametrize(
    ("path", "is_covered"),
    [("secret", True), ("a.0.SECRET.b", True), ("card.number", True), ("card.0.number", True), ("number", False)],
)
def test_a_path_to_what_is_hidden_is_known(path: str, is_covered: bool) -> None:
    assert Masks(["secret", "card.number"]).cover(path.split(".")) is is_covered


@pytest.mark.parametrize("place", ["0", "-1", "+0", " 0", "\t-12 ", "-0", "٣"])
def test_whatever_may_be_a_place_in_an_array_hides_no_path(place: str) -> None:
    masks = Masks(["card.number", "items.0.key"])

    assert masks.cover(["payload", "card", place, "number"])
    assert masks.cover([place, "card", place, place, "number", "x"])
    assert masks.cover(["items", place, "0", "key"])
    assert not masks.cover(["card", place])
    assert not masks.cover(["card", "x", "number"])
    assert not masks.cover(["items", "1", "key"])


def test_raw_json_is_written_as_it_is_within_other_json() -> None:
    written = to_json({"a": [RawJson("1e400"), RawJson('"é"')], "b": "x"})

    assert written == '{"a": [1e400, "\\u00e9"], "b": "x"}'
