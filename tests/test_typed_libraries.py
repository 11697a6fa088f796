"""
Classes of pydantic and msgspec: their own rules and words, and nothing of the payload in what is said.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from sqlalchemy_brooq import InvalidPayload, Job, PayloadError
from sqlalchemy_brooq.payload import copied
from sqlalchemy_brooq.typed.annotations import Unreadable
from sqlalchemy_brooq.typed.reading import reader_of

T = TypeVar("T")
SECRET = "s3cr3t"  # noqa: S105 - one that must not be told
ID = UUID("0198c0de-0000-7000-8000-000000000001")


class Colour(Enum):
    RED = "red"


class Line(pydantic.BaseModel):
    price: float


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    meows: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Invoice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    number: int = pydantic.Field(alias="invoice-number")
    lines: list[Line] = []
    by_name: dict[str, Line] = {}
    by_number: dict[int, int] = {}
    colour: Colour = Colour.RED
    pet: Cat | Dog | None = None
    tagged: Annotated[Cat | Dog, pydantic.Field(discriminator="kind")] | None = None
    day: date | None = None

    @pydantic.field_validator("number")
    @classmethod
    def positive(cls, number: int) -> int:
        if number < 0:
            raise ValueError("it is negative")
        return number


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    id: UUID
    day: date
    span: timedelta
    pair: tuple[int, str]
    colour: Colour


@pydantic.dataclasses.dataclass
class Refund:
    total: Decimal
    line: Line


class Parcel(msgspec.Struct, forbid_unknown_fields=True):
    weight: int
    items: list[Item] = []
    by_name: dict[str, Item] = {}
    by_number: dict[int, int] = {}
    colour: Colour = Colour.RED
    sent: datetime | None = None

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ValueError("it is negative")


class Item(msgspec.Struct, tag=True):
    price: float


class Crate(msgspec.Struct, Generic[T]):
    content: T


class Renamed(msgspec.Struct, rename="camel"):
    order_number: int
    id: UUID
    amount: Decimal


@dataclass
class Mixed:
    """
    One of ours that has theirs in it.
    """

    invoice: Invoice
    parcel: Parcel | None
    crate: Crate[int]


class Root(pydantic.RootModel[list[int]]):
    pass


OBJECTS = [
    Invoice.model_validate({"invoice-number": 5, "lines": [{"price": 1}], "by_number": {1: 2}, "day": "2026-01-02"}),
    Invoice.model_validate({"invoice-number": 5, "pet": {"kind": "cat", "meows": 1}, "tagged": {"kind": "dog"}}),
    Strict(id=ID, day=date(2026, 1, 2), span=timedelta(seconds=1.5), pair=(1, "a"), colour=Colour.RED),
    Refund(Decimal("1.50"), Line(price=1)),
    Root([1, 2]),
    Parcel(1, [Item(1)], {"a": Item(2)}, {3: 4}, Colour.RED, datetime(2026, 1, 2, tzinfo=UTC)),
    Renamed(5, ID, Decimal("1.50")),
    Mixed(Invoice.model_validate({"invoice-number": 5}), Parcel(1), Crate(5)),
    Mixed(Invoice.model_validate({"invoice-number": 5}), None, Crate(5)),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_what_a_job_was_given_is_what_its_handler_gets(value: Any) -> None:
    payload = Job("t", value).payload

    assert copied(payload) == payload
    assert reader_of(type(value), {})(payload) == value


SAID: dict[str, tuple[Any, Any, str]] = {
    "pydantic: missing": (Invoice, {}, "invoice-number: Field required"),
    "pydantic: type": (
        Invoice,
        {"invoice-number": SECRET},
        "invoice-number: Input should be a valid integer, unable to parse string as an integer, got a string",
    ),
    "pydantic: inside": (
        Invoice,
        {"invoice-number": 1, "lines": [{"price": [SECRET]}]},
        "lines[0].price: Input should be a valid number, got an array",
    ),
    "pydantic: entry": (
        Invoice,
        {"invoice-number": 1, "by_name": {SECRET: {}}},
        "by_name[…].price: Field required",
    ),
    "pydantic: key": (
        Invoice,
        {"invoice-number": 1, "by_number": {SECRET: 1}},
        "by_number[…][key]: Input should be a valid integer, unable to parse string as an integer, got a string",
    ),
    "pydantic: enum": (Invoice, {"invoice-number": 1, "colour": SECRET}, "colour: Input should be 'red', got a string"),
    "pydantic: union": (
        Invoice,
        {"invoice-number": 1, "pet": {"kind": "cat"}},
        "pet.Cat.meows: Field required; pet.Dog.kind: Input should be 'dog', got a string",
    ),
    "pydantic: tag": (
        Invoice,
        {"invoice-number": 1, "tagged": {"kind": SECRET}},
        "tagged: Input tag is none of the expected ones, 'cat', 'dog', got an object",
    ),
    "pydantic: tagged": (
        Invoice,
        {"invoice-number": 1, "tagged": {"kind": "cat", "meows": SECRET}},
        "tagged.cat.meows: Input should be a valid integer, unable to parse string as an integer, got a string",
    ),
    "pydantic: extra": (Invoice, {"invoice-number": 1, "extra": SECRET}, "extra: Extra inputs are not permitted"),
    "pydantic: validator": (Invoice, {"invoice-number": -1}, "invoice-number: Value error, it is negative"),
    "pydantic: all": (Invoice, [SECRET], "payload: Input should be an object, got an array"),
    "pydantic: dataclass": (
        Refund,
        {"total": "1.50", "line": {"price": SECRET}},
        "line.price: Input should be a valid number, unable to parse string as a number, got a string",
    ),
    "msgspec: missing": (Parcel, {}, "payload: Object missing required field `weight`"),
    "msgspec: type": (Parcel, {"weight": SECRET}, "weight: Expected `int`, got `str`"),
    "msgspec: inside": (
        Parcel,
        {"weight": 1, "items": [{"type": "Item", "price": SECRET}]},
        "items[0].price: Expected `float`, got `str`",
    ),
    "msgspec: entry": (
        Parcel,
        {"weight": 1, "by_name": {SECRET: {"type": "Item", "price": "x"}}},
        "by_name[…].price: Expected `float`, got `str`",
    ),
    "msgspec: key": (Parcel, {"weight": 1, "by_number": {SECRET: 1}}, "by_number[key]: Expected `int`, got `str`"),
    "msgspec: enum": (Parcel, {"weight": 1, "colour": f"{SECRET} - at `$.x`"}, "colour: Invalid enum value"),
    "msgspec: tag": (Parcel, {"weight": 1, "items": [{"type": SECRET}]}, "items[0].type: Invalid value"),
    "msgspec: extra": (Parcel, {"weight": 1, "extra": SECRET}, "payload: Object contains unknown field `extra`"),
    "msgspec: validator": (Parcel, {"weight": -1}, "payload: it is negative"),
    "msgspec: generic": (Crate[int], {"content": SECRET}, "content: Expected `int`, got `str`"),
    "mixed: pydantic": (
        Mixed,
        {"invoice": {"invoice-number": 1, "lines": SECRET}, "parcel": None, "crate": {"content": 1}},
        "invoice.lines: Input should be a valid array, got a string",
    ),
    "mixed: msgspec": (
        Mixed,
        {"invoice": {"invoice-number": 1}, "parcel": {"weight": SECRET}, "crate": {"content": SECRET}},
        "parcel.weight: Expected `int`, got `str`; crate.content: Expected `int`, got `str`",
    ),
}


@pytest.mark.parametrize(("annotation", "value", "said"), SAID.values(), ids=SAID)
def test_a_problem_is_told_in_the_librarys_words_without_a_value(annotation: Any, value: Any, said: str) -> None:
    with pytest.raises(InvalidPayload) as refusal:
        reader_of(annotation, {})(value)

    assert str(refusal.value).startswith(said)
    assert SECRET not in str(refusal.value)
    assert refusal.value.__cause__ is refusal.value.__context__ is None


class Opaque:
    """
    A class that pydantic can't make a schema of, so that nobody can ask for the names of its fields.
    """


class Unknown(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    by_name: dict[str, int] = {}
    opaque: Opaque | None = None


def test_where_the_names_of_fields_are_not_known_only_what_looks_like_one_is_told() -> None:
    with pytest.raises(InvalidPayload) as refusal:
        reader_of(Unknown, {})({"by_name": {"ada@post.example": "x"}, "opaque": 5})

    assert [problem.partition(":")[0] for problem in refusal.value.problems] == ["by_name[…]", "opaque"]


def test_what_the_engines_deserializer_made_of_a_payload_is_validated_as_it_is() -> None:
    assert reader_of(Refund, {})({"total": Decimal("1.5"), "line": {"price": Decimal(1)}}) == OBJECTS[3]
    assert reader_of(Crate[Decimal], {})({"content": Decimal("1.5")}) == Crate(Decimal("1.5"))


class Unfinished(pydantic.BaseModel):
    other: NeverDefined  # type: ignore[name-defined]  # noqa: F821


class UnfinishedStruct(msgspec.Struct):
    other: NeverDefined  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("model", [Unfinished, UnfinishedStruct])
def test_a_class_that_is_not_whole_is_refused_before_there_is_a_payload(model: type) -> None:
    with pytest.raises(Unreadable, match=rf"{model.__name__}: .*NeverDefined"):
        reader_of(model, {})


class Callback(msgspec.Struct):
    call: Any


class Holder(pydantic.BaseModel):
    call: Any


@pytest.mark.parametrize("value", [Callback(object()), Holder(call=object())])
def test_an_object_that_its_library_can_not_write_is_refused_when_the_job_is_built(value: Any) -> None:
    with pytest.raises(PayloadError, match=f"a {type(value).__name__} can't be written as JSON"):
        Job("t", {"inside": value})


def test_neither_library_is_imported_for_those_who_use_neither() -> None:
    code = """
from dataclasses import dataclass
import sys
import sqlalchemy_brooq as brooq
from sqlalchemy import create_engine

@dataclass
class Order:
    number: int

queue = brooq.Queue(create_engine("postgresql+psycopg://localhost/shop"))

@queue.handler("t")
def handle(claim, order: Order): ...

assert brooq.Job("t", Order(5)).payload == {"number": 5}
assert not {"pydantic", "msgspec"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
