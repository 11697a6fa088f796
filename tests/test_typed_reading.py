"""
JSON values read into dataclasses and TypedDicts: what was written comes back, and what doesn't fit is named, not shown.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import pydantic
import pytest
import typing_extensions
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sqlalchemy_brooq import InvalidPayload
from sqlalchemy_brooq.payload import copied
from sqlalchemy_brooq.typed.annotations import Unreadable
from sqlalchemy_brooq.typed.reading import reader_of
from sqlalchemy_brooq.typed.values import Reader

if TYPE_CHECKING:
    from decimal import Context

T = TypeVar("T")
Bounded = TypeVar("Bounded", bound=int)
Constrained = TypeVar("Constrained", int, str)
Number = NewType("Number", int)
Many = typing_extensions.TypeAliasType("Many", list[T], type_params=(T,))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Shade(StrEnum):
    DARK = "dark"


class Odd(Enum):
    PAIR = (1, 2)


@dataclass
class Line:
    sku: str
    price: float


Lines = typing_extensions.TypeAliasType("Lines", list[Line])


@dataclass(frozen=True, slots=True)
class Wide:
    """
    One field of each kind.
    """

    text: str
    whole: int
    number: float
    truth: bool
    nothing: None
    anything: Any
    id: UUID
    moment: datetime
    day: date
    clock: time
    span: timedelta
    amount: Decimal
    colour: Colour
    size: Size
    shade: Shade
    word: Literal["a", "b", 1, None]  # noqa: PYI061 - a way to write it
    alias: Number
    noted: Annotated[int, "metres"]
    maybe: int | None
    perhaps: Optional[Line]  # noqa: UP045 - a way to write it
    either: int | str
    lines: list[Line]
    parts: Sequence[int]
    pair: tuple[int, str]
    row: tuple[int, ...]
    unique: frozenset[str]
    by_name: dict[str, Line]
    by_number: Mapping[int, str]
    by_id: dict[UUID, int]
    bare: list  # type: ignore[type-arg]
    address: Address
    box: Box[Line]
    inner: Wide | None = None


class Address(typing_extensions.TypedDict, total=False):  # pydantic knows no other before Python 3.12
    street: Required[str]
    number: NotRequired[int]
    town: str


@dataclass(frozen=True)
class Box(Generic[T]):
    content: T
    more: tuple[T, ...] = ()


finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)
small = st.integers(-(10**6), 10**6)
lines = st.builds(Line, text, finite)
zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-3, minutes=-30))])
addresses = st.fixed_dictionaries({"street": text}, optional={"number": small, "town": text})
widest = st.builds(
    Wide,
    text=text,
    number=finite,
    anything=st.none() | small | text | st.lists(small),
    moment=st.datetimes(timezones=zones),
    amount=st.decimals(allow_nan=False, allow_infinity=False),
    lines=st.lists(lines, max_size=3),
    parts=st.lists(small, max_size=3),
    clock=st.times(),
    by_name=st.dictionaries(text, lines, max_size=2),
    by_number=st.dictionaries(small, text, max_size=2),
    bare=st.lists(st.none() | text, max_size=2),
    unique=st.frozensets(text, max_size=3),
    pair=st.tuples(small, text),
    row=st.lists(small, max_size=3).map(tuple),
    either=small | text,
    perhaps=st.none() | lines,
    address=addresses,
    box=st.builds(Box, lines, st.lists(lines, max_size=2).map(tuple)),
    alias=small.map(Number),
    inner=st.none(),
)

read_wide = reader_of(Wide, {})
FIELDS = [one.name for one in fields(Wide)]


@settings(deadline=None)
@given(widest, st.none() | widest)
def test_what_a_job_was_given_is_what_its_handler_gets(value: Wide, inner: Wide | None) -> None:
    object.__setattr__(value, "inner", inner)

    assert read_wide(copied(value)) == value


@settings(deadline=None)
@given(widest)
def test_pydantic_reads_the_same_out_of_what_we_write(value: Wide) -> None:
    text = json.dumps(copied(value))

    assert pydantic.TypeAdapter(Wide).validate_json(text) == read_wide(json.loads(text)) == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | st.just("s3cr3t") | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("s3cr3t") | text, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(widest, st.dictionaries(st.sampled_from(FIELDS), json_values, min_size=1, max_size=4))
@example(None, {})
def test_any_other_value_is_refused_without_being_shown(value: Wide | None, changes: dict[str, Any]) -> None:
    refusal = refusal_of(read_wide, {} if value is None else {**copied(value), **changes})

    if refusal is not None:
        named = {re.split(r"[:.\[]", problem)[0] for problem in refusal.problems}
        assert {name for name in named if not name.startswith("and ")} <= set(FIELDS)
        assert "s3cr3t" not in str(refusal)
        assert refusal.__cause__ is refusal.__context__ is None


def refusal_of(read: Reader, value: Any) -> InvalidPayload | None:
    try:
        read(value)
    except InvalidPayload as error:
        return error
    return None


CASES: dict[str, tuple[Any, Any, str]] = {
    "number for text": (Line, {"sku": 5, "price": 1}, "sku: expected a string, got a number"),
    "text for number": (Line, {"sku": "a", "price": "1"}, "price: expected a number, got a string"),
    "boolean for number": (Line, {"sku": "a", "price": True}, "price: expected a number, got a boolean"),
    "too great": (
        Line,
        {"sku": "a", "price": 10**400},
        "price: expected a number within a float's range, got a number",
    ),
    "two at once": (
        Line,
        {"sku": None, "price": []},
        "sku: expected a string, got null; price: expected a number, got an array",
    ),
    "missing": (Line, {"sku": "a"}, "price: missing"),
    "no object": (Line, ["a", 1], "payload: expected an object (Line), got an array"),
    "deep inside": (
        Box[list[Line]],
        {"content": [{"sku": "a", "price": 1}, {"sku": "a", "price": {}}]},
        "content[1].price: expected a number, got an object",
    ),
    "boolean for whole": (Box[int], {"content": True}, "content: expected a whole number, got a boolean"),
    "float for whole": (Box[int], {"content": 1.0}, "content: expected a whole number, got a number"),
    "whole for boolean": (Box[bool], {"content": 1}, "content: expected a boolean, got a number"),
    "something for null": (Box[None], {"content": 0}, "content: expected null, got a number"),
    "no UUID": (Box[UUID], {"content": "x"}, "content: expected a UUID, got another string"),
    "no date": (Box[date], {"content": "2026-02-30"}, "content: expected a date in ISO 8601, got another string"),
    "no moment": (Box[datetime], {"content": 5}, "content: expected a date and time in ISO 8601, got a number"),
    "no duration": (Box[timedelta], {"content": "P"}, "content: expected a duration in ISO 8601, got another string"),
    "endless duration": (
        Box[timedelta],
        {"content": f"P{'9' * 20}D"},
        "content: expected a duration in ISO 8601, got another string",
    ),
    "no decimal": (Box[Decimal], {"content": "NaN"}, "content: expected a decimal number, got another string"),
    "no member": (Box[Colour], {"content": "green"}, "content: expected one of 'red', 'blue', got another string"),
    "member of another": (Box[Size], {"content": "red"}, "content: expected one of 1, 2, got a string"),
    "true is not one": (Box[Size], {"content": True}, "content: expected one of 1, 2, got a boolean"),
    "no literal": (Box[Literal["a"]], {"content": "b"}, "content: expected 'a', got another string"),
    "true is no literal one": (Box[Literal[1]], {"content": True}, "content: expected 1, got a boolean"),
    "no array": (Box[list[int]], {"content": {}}, "content: expected an array, got an object"),
    "no pair": (Box[tuple[int, str]], {"content": [1]}, "content: expected an array of 2, got one of 1"),
    "half a pair": (
        Box[tuple[int, str]],
        {"content": ["a", 1]},
        "content[0]: expected a whole number, got a string; content[1]: expected a string, got a number",
    ),
    "an entry": (Box[dict[str, int]], {"content": {"k3y": "a"}}, "content[…]: expected a whole number, got a string"),
    "a key": (
        Box[dict[int, int]],
        {"content": {"k3y": 1}},
        "content[key]: expected a whole number, got another string",
    ),
    "no mapping": (Box[dict[str, int]], {"content": []}, "content: expected an object, got an array"),
    "neither": (Box[int | str], {"content": []}, "content: expected a whole number or a string, got an array"),
    "not even null": (Box[Line | None], {"content": 5}, "content: expected an object (Line) or null, got a number"),
    "the one that was meant": (Box[Line | None], {"content": {"sku": "a"}}, "content.price: missing"),
    "twenty-five": (Box[list[int]], {"content": ["a"] * 25}, "and 5 more"),
    "key of a TypedDict": (Address, {"street": "a", "number": "5"}, "number: expected a whole number, got a string"),
    "required key": (Address, {}, "street: missing"),
}


@pytest.mark.parametrize(("annotation", "value", "said"), CASES.values(), ids=CASES)
def test_each_problem_is_named_by_its_path(annotation: Any, value: Any, said: str) -> None:
    with pytest.raises(InvalidPayload) as refusal:
        reader_of(annotation, {})(value)

    assert str(refusal.value).endswith(said)
    assert "; ".join(refusal.value.problems) == str(refusal.value)


@dataclass
class Placed:
    kind: Literal["placed"]
    number: int
    buyer: str


@dataclass
class Paid:
    kind: Literal["paid"]
    number: int


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"kind": "placed", "number": 1}, "buyer: missing"),
        ({"kind": "placed"}, "number: missing; buyer: missing"),
        ({"kind": "paid", "number": "x"}, "number: expected a whole number, got a string"),
        ({"kind": "paid", "number": "x", "buyer": "ada"}, "number: expected a whole number, got a string"),
        ([], "payload: expected an object (Paid) or an object (Placed), got an array"),
    ],
)
def test_of_a_union_the_member_is_named_that_was_meant(value: Any, said: str) -> None:
    read = reader_of(Paid | Placed, {})

    assert read({"kind": "paid", "number": 1}) == Paid("paid", 1)
    assert read({"kind": "placed", "number": 1, "buyer": "ada"}) == Placed("placed", 1, "ada")
    with pytest.raises(InvalidPayload) as refusal:
        read(value)
    assert str(refusal.value) == said


@dataclass
class Rich:
    needed: int
    fallback: int = 5
    made: list[int] = field(default_factory=lambda: [1])
    computed: int = field(init=False, default=0)
    seed: InitVar[int] = 2
    shared: ClassVar[int] = 9
    _: KW_ONLY
    keyword: str = "k"

    def __post_init__(self, seed: int) -> None:
        self.computed = self.needed * seed
        if self.needed < 0:
            raise ValueError("needed is negative")


def test_a_dataclass_is_built_by_its_own_constructor() -> None:
    read = reader_of(Rich, {})

    assert read({"needed": 1}) == Rich(1)
    assert read({"needed": 1}).made is not read({"needed": 1}).made
    assert read({"needed": 3, "seed": 7, "computed": "mine", "shared": 1, "keyword": "x"}).computed == 21
    with pytest.raises(InvalidPayload, match=r"^seed: expected a whole number"):
        read({"needed": 1, "seed": "x"})
    with pytest.raises(InvalidPayload, match=r"^payload: needed is negative$"):
        read({"needed": -1})
    with pytest.raises(InvalidPayload, match=r"^content: needed is negative$"):
        reader_of(Box[Rich | None], {})({"content": {"needed": -1}})


def test_what_no_field_has_is_left_out() -> None:
    assert reader_of(Line, {})({"sku": "a", "price": 1, "new": True}) == Line("a", 1)
    assert reader_of(Address, {})({"street": "a", "new": True}) == {"street": "a"}


class Old(typing_extensions.TypedDict):
    name: str
    nick: NotRequired[Annotated[str, "short"]]
    fixed: typing_extensions.ReadOnly[int]


class New(Old, total=False):
    late: int


def test_the_keys_that_a_typed_dict_needs_are_those_that_it_says() -> None:
    read = reader_of(New, {})

    assert read({"name": "a", "fixed": 1}) == {"name": "a", "fixed": 1}
    with pytest.raises(InvalidPayload) as refusal:
        read({"nick": 1, "late": "x"})
    assert sorted(problem.partition(":")[0] for problem in refusal.value.problems) == ["fixed", "late", "name", "nick"]


Functional = TypedDict("Functional", {"order-id": int})


@dataclass
class Node:
    children: list[Node]
    parent: Node | None = None


class IntBox(Box[int]):
    pass


@dataclass(frozen=True)
class Twice(Box[list[T]], Generic[T]):
    again: Box[T] | None = None


@pytest.mark.parametrize(
    ("annotation", "value", "result"),
    [
        (Functional, {"order-id": 5}, {"order-id": 5}),
        (Node, {"children": [{"children": []}]}, Node([Node([])])),
        (IntBox, {"content": 5}, IntBox(5)),
        (Twice[int], {"content": [5], "again": {"content": 6}}, Twice([5], (), Box(6))),
        (Box[Box[int]], {"content": {"content": 5}}, Box(Box(5))),
        (Box, {"content": {"any": [1]}}, Box({"any": [1]})),
        (Box[Lines], {"content": [{"sku": "a", "price": 1}]}, Box([Line("a", 1)])),
        (Box[Many[int]], {"content": [1]}, Box([1])),
        (Box[list[Annotated[int, []]]], {"content": [1]}, Box([1])),
        (Box[Box[Annotated[int, []]]], {"content": {"content": 1}}, Box(Box(1))),
        (Box[tuple[()]], {"content": []}, Box(())),
        (Box[tuple], {"content": [1, "a"]}, Box((1, "a"))),  # type: ignore[type-arg]
        (Box[dict], {"content": {"a": 1}}, Box({"a": 1})),  # type: ignore[type-arg]
        (Box[set[int]], {"content": [1, 1]}, Box({1})),
        (Box[Literal[Colour.RED]], {"content": "red"}, Box(Colour.RED)),
        (Box[Decimal], {"content": 0.1}, Box(Decimal("0.1"))),
        (Box[float], {"content": Decimal("0.5")}, Box(0.5)),
        (Box[datetime], {"content": datetime(2026, 1, 1, tzinfo=UTC)}, Box(datetime(2026, 1, 1, tzinfo=UTC))),
        (Box[timedelta], {"content": "-P1DT2H3M4,5S"}, Box(-timedelta(days=1, hours=2, minutes=3, seconds=4.5))),
    ],
    ids=lambda value: getattr(value, "__name__", None) or "value",
)
def test_annotations_of_every_form_are_read(annotation: Any, value: Any, result: Any) -> None:
    found = reader_of(annotation, {})(value)

    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(("variable", "value", "bad"), [(Bounded, 1, "x"), (Constrained, "x", 1.5)])
def test_a_type_variable_that_nothing_was_given_for_takes_what_it_may_be(variable: Any, value: Any, bad: Any) -> None:
    read = reader_of(Box[variable], {})

    assert read({"content": value}) == Box(value)
    with pytest.raises(InvalidPayload):
        read({"content": bad})


@dataclass
class Hidden:
    context: Context


@dataclass
class Misspelt:
    line: "Lyne"  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Box[bytes], "Box.content: no JSON value can be read into bytes"),
        (Box[Callable[[], None]], "Box.content: no JSON value can be read into collections.abc.Callable[[], None]"),
        (Box[list[Box[object | complex]]], "Box.content: Box.content: no JSON value can be read into complex"),
        (Box[Odd], "Box.content: Odd has the value (1, 2), which no JSON value is equal to"),
        (
            Hidden,
            "Hidden: its annotation can't be resolved (NameError: name 'Context' is not defined): what it names has",
        ),
        (
            Misspelt,
            "Misspelt: its annotation can't be resolved (NameError: name 'Lyne' is not defined): what it names has",
        ),
    ],
    ids=str,
)
def test_what_no_json_value_can_satisfy_is_refused_before_there_is_one(annotation: Any, said: str) -> None:
    with pytest.raises(Unreadable) as refusal:
        reader_of(annotation, {})

    assert str(refusal.value).startswith(said)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a new statement")
def test_an_alias_that_names_itself_is_read() -> None:
    names: dict[str, Any] = {"Box": Box}
    exec("type Tree = dict[str, Tree] | int\nannotation = Box[Tree]", names)  # noqa: S102 - older versions can't compile it

    assert reader_of(names["annotation"], {})({"content": {"a": {"b": 1}}}) == Box({"a": {"b": 1}})


def test_a_value_that_nests_too_deeply_is_refused() -> None:
    value: Any = {"children": []}
    for _ in range(5_000):
        value = {"children": [value]}

    with pytest.raises(InvalidPayload, match=r"^payload: nested too deeply$"):
        reader_of(Node, {})(value)
