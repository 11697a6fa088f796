"""
Typed handlers: the payload arrives as what the annotation says, and one that doesn't fit is a failure that names it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq import HandlerOptions, InvalidPayload, Job, RegistrationError
from tests.queues import MakeQueue, add, all_settled
from tests.sides import MakeSide, Side, write
from tests.typing import accepted, refused
from tests.waiting import eventually, row

if TYPE_CHECKING:
    from tests.typing.accepted import Order as Elsewhere

SECRET = "4111-1111-1111-1111"  # noqa: S105 - one that must not be told


@dataclass
class Line:
    price: float


@dataclass
class Order:
    number: int
    items: list[Line]


class Address(TypedDict):
    number: int


class Parcel(msgspec.Struct):
    number: int


class Invoice(pydantic.BaseModel):
    number: int


MODELS = [Order, Address, Parcel, Invoice]
PAYLOAD = {"number": 5, "items": [{"price": 1.5}]}
BAD = {"number": 5, "items": [{"price": 1}, {"price": 2}, {"price": SECRET}]}
SAID = "InvalidPayload: items[2].price: expected a number, got a string"


class Called:
    """
    What handlers were called with.
    """

    def __init__(self) -> None:
        self.payloads: list[Any] = []
        self.raw: list[Any] = []

    def __call__(self, claim: brooq.Claim, payload: Any) -> None:
        self.payloads.append(payload)
        self.raw.append(claim.payload)


@pytest.fixture
def called() -> Called:
    return Called()


def plain(side: Side, called: Called, **options: Any) -> None:
    if side.kind == "plain":

        def handle(claim: brooq.Claim, order: Order) -> None:
            called(claim, order)

        side.queue.register("t", handle, HandlerOptions(**options))
    else:

        async def ahandle(claim: brooq.Claim, order: Order) -> None:
            await asyncio.sleep(0)
            called(claim, order)

        side.queue.register("t", ahandle, HandlerOptions(**options))


def transactional(side: Side, called: Called, **options: Any) -> None:
    if side.kind == "plain":

        def handle(claim: brooq.Claim, order: Order, session: Session) -> None:
            write(session, order.number)
            called(claim, order)

        side.queue.register("t", handle, HandlerOptions(transactional=True, **options))
    else:

        async def ahandle(claim: brooq.Claim, order: Order, session: AsyncSession) -> None:
            await session.run_sync(write, order.number)
            called(claim, order)

        side.queue.register("t", ahandle, HandlerOptions(transactional=True, **options))


def transactional_last(side: Side, called: Called, **options: Any) -> None:
    if side.kind == "plain":

        def handle(claim: brooq.Claim, session: Session, order: Order) -> None:
            write(session, order.number)
            called(claim, order)

        side.queue.register("t", handle, HandlerOptions(transactional=True, **options))
    else:

        async def ahandle(claim: brooq.Claim, session: AsyncSession, order: Order) -> None:
            await session.run_sync(write, order.number)
            called(claim, order)

        side.queue.register("t", ahandle, HandlerOptions(transactional=True, **options))


def raising(side: Side, called: Called, **options: Any) -> None:
    plain(side, called, interrupt="raise", **options)


Kind = Callable[..., None]
KINDS = [plain, transactional, transactional_last, raising]
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_a_handler_gets_its_payload_as_its_annotation_says(make_side: MakeSide, called: Called, kind: Kind) -> None:
    side = make_side()
    kind(side, called)
    (job_id,) = side.add(Job("t", {**PAYLOAD, "unknown": True}))
    side.start()

    side.reaches(job_id, "done")
    assert called.payloads == [Order(5, [Line(1.5)])]
    assert called.raw == [{**PAYLOAD, "unknown": True}]
    assert side.notes() == ([5] if "transactional" in kind.__name__ else [])


@kinds
def test_an_invalid_payload_is_a_failure_that_names_the_field(
    make_side: MakeSide, called: Called, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    side = make_side()
    kind(side, called, max_attempts=2)
    (job_id,) = side.add(Job("t", BAD))
    with caplog.at_level(logging.DEBUG):
        side.start()
        found = side.reaches(job_id, "dead")

    assert (found["attempts"], found["last_error"]) == (2, SAID)
    assert called.payloads == side.notes() == []
    assert SECRET not in caplog.text
    assert side.labels("t") == {"failed": 1, "dead": 1}


@kinds
def test_an_invalid_payload_ends_its_job_at_once_where_the_handler_says_so(
    make_side: MakeSide, called: Called, kind: Kind
) -> None:
    side = make_side()
    kind(side, called, on_invalid="dead")
    bad, good = side.add(Job("t", BAD), Job("t", PAYLOAD))
    side.start()

    assert side.reaches(bad, "dead", "failed")["attempts"] == 1
    side.reaches(good, "done")
    assert (row(side.engine, bad)["state"], row(side.engine, bad)["last_error"]) == ("dead", SAID)
    assert side.labels("t") == {"dead": 1, "done": 1}


def test_in_the_consumers_own_loop_a_payload_is_read_too(engine: Engine, make_queue: MakeQueue, called: Called) -> None:
    good, bad = add(engine, Job("t", PAYLOAD), Job("t", BAD))

    async def main() -> None:
        queue = make_queue(engine)

        @queue.handler("t", on_invalid="dead")
        async def handle(claim: brooq.Claim, order: Order) -> None:
            called(claim, order)

        async with queue:
            while not all_settled(engine)():
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert called.payloads == [Order(5, [Line(1.5)])]
    assert (row(engine, good)["state"], row(engine, bad)["state"]) == ("done", "dead")


@pytest.mark.parametrize("model", MODELS)
def test_each_kind_of_model_is_read_and_refused(
    engine: Engine, make_queue: MakeQueue, called: Called, model: Any
) -> None:
    good, bad = add(engine, Job("t", PAYLOAD), Job("t", {"number": SECRET, "items": []}))
    queue = make_queue(engine)

    def handle(claim: brooq.Claim, payload: Any) -> None:
        called(claim, payload)

    handle.__annotations__["payload"] = model
    queue.register("t", handle, HandlerOptions(on_invalid="dead"))
    queue.start()
    eventually(all_settled(engine))

    assert row(engine, good)["state"] == "done"
    assert row(engine, bad)["last_error"].startswith("InvalidPayload: number: ")
    assert SECRET not in row(engine, bad)["last_error"]
    (payload,) = called.payloads
    assert type(payload) is (dict if model is Address else model)
    assert payload == {"number": 5} if isinstance(payload, dict) else payload.number == 5


def test_a_handler_that_finds_its_payload_invalid_itself_may_say_so(engine: Engine, make_queue: MakeQueue) -> None:
    retried, ended, later = add(engine, Job("retried"), Job("ended"), Job("later"))
    queue = make_queue(engine, max_attempts=2, backoff_base="1ms")

    def handle(claim: brooq.Claim) -> None:
        raise InvalidPayload("total: negative")

    def ask(claim: brooq.Claim) -> None:
        raise InvalidPayload("total: negative") from brooq.CancelJob()

    queue.register("retried", handle)
    queue.register("ended", handle, HandlerOptions(on_invalid="dead"))
    queue.register("later", ask, HandlerOptions(on_invalid="dead"))
    queue.start()
    eventually(all_settled(engine))

    found = [row(engine, job_id) for job_id in (retried, ended, later)]
    assert [(one["state"], one["attempts"]) for one in found] == [("dead", 2), ("dead", 1), ("canceled", 1)]
    assert {one["last_error"] for one in found} == {"InvalidPayload: total: negative"}


def test_a_failed_job_is_taken_by_a_newer_handler(engine: Engine, make_queue: MakeQueue) -> None:
    (job_id,) = add(engine, Job("t", {"number": 5}))
    old, new = make_queue(engine, max_attempts=1000), make_queue(engine, max_attempts=1000)

    def need_items(claim: brooq.Claim, order: Order) -> None: ...

    def need_none(claim: brooq.Claim, address: Address) -> None: ...

    old.register("t", need_items)
    new.register("t", need_none)
    old.start()
    eventually(lambda: row(engine, job_id)["state"] == "failed")
    old.close()
    new.start()

    eventually(lambda: row(engine, job_id)["state"] == "done")


# -- registration


def test_what_type_checkers_accept_is_registered() -> None:
    accepted.other_callables(accepted.queue)

    assert {"plain", "dataclass", "union", "transactional.typed", "method"} <= accepted.queue.topics
    assert len(accepted.async_queue.topics) == 5
    assert len(accepted.jobs()) == 5


WRONG: dict[Callable[..., Any], tuple[bool, str]] = {
    refused.nothing_asked_for: (False, "it is called with the claim: too many positional arguments"),
    refused.three_things: (False, "called with the claim and its payload: missing a required argument: 'more'"),
    refused.forgot_transactional: (False, "'session'; a handler gets a session with transactional=True"),
    refused.whole_number: (False, "missing a required argument: 'number'; annotated with a dataclass, a TypedDict, "),
    refused.plain_dict: (False, "missing a required argument: 'payload'; annotated with a dataclass, a TypedDict, "),
    refused.no_session: (True, "it is called with the claim and a session: too many positional arguments"),
    refused.order_for_session: (True, "it is called with the claim, its payload and a session: too many"),
    refused.async_session: (
        True,
        "its parameter 'session' is annotated with AsyncSession: a plain handler gets a Session",
    ),
    refused.typed_async_session: (
        True,
        "its parameter 'session' is annotated with AsyncSession: a plain handler gets a Session",
    ),
}


@pytest.mark.parametrize("function", WRONG)
def test_what_type_checkers_refuse_is_refused(
    engine: Engine, make_queue: MakeQueue, function: Callable[..., Any]
) -> None:
    is_transactional, said = WRONG[function]
    queue = make_queue(engine)

    with pytest.raises(RegistrationError) as refusal:
        queue.register("t", function, HandlerOptions(transactional=is_transactional))

    assert str(refusal.value).startswith("handler for 't' refused: ")
    assert said in str(refusal.value)
    assert queue.topics == frozenset()


def test_an_async_handler_that_wants_a_plain_session_is_refused(make_queue: MakeQueue, engine: Engine) -> None:
    async def handle(claim: brooq.Claim, session: Session) -> None: ...

    with pytest.raises(RegistrationError, match="is annotated with Session: an async handler gets an AsyncSession"):
        make_queue(engine).register("t", handle, HandlerOptions(transactional=True))


@dataclass
class Unreadable:
    blob: bytes


def needs_elsewhere(claim: brooq.Claim, order: Elsewhere) -> None: ...


def needs_elsewhere_and_session(claim: brooq.Claim, order: Elsewhere, session: Session) -> None: ...


def takes_two(claim: brooq.Claim, order: Order, address: Address) -> None: ...


def takes_bytes(claim: brooq.Claim, blob: Unreadable) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_transactional", "said"),
    [
        (needs_elsewhere, False, "parameter 'order', its annotation can't be resolved (NameError: name 'Elsewhere' is"),
        (needs_elsewhere_and_session, True, "parameter 'order', its annotation can't be resolved (NameError: name"),
        (takes_two, True, "two of its parameters are annotated with a dataclass, "),
        (takes_bytes, False, "its parameter 'blob': Unreadable.blob: no JSON value can be read into bytes"),
    ],
)
def test_an_annotation_that_can_not_be_followed_is_refused(
    engine: Engine, make_queue: MakeQueue, function: Callable[..., Any], is_transactional: bool, said: str
) -> None:
    with pytest.raises(RegistrationError) as refusal:
        make_queue(engine).register("t", function, HandlerOptions(transactional=is_transactional))

    assert said in str(refusal.value)


def test_a_session_that_is_imported_for_type_checkers_alone_is_a_session(make_side: MakeSide) -> None:
    side = make_side()

    def handle(claim: brooq.Claim, session: Elsewhere) -> None:
        write(session, 5)  # type: ignore[arg-type]

    async def ahandle(claim: brooq.Claim, session: Elsewhere) -> None:
        await session.run_sync(write, 5)  # type: ignore[attr-defined]

    function = handle if side.kind == "plain" else ahandle
    side.queue.register("t", function, HandlerOptions(transactional=True))
    (job_id,) = side.add(Job("t"))
    side.start()

    side.reaches(job_id, "done")
    assert side.notes() == [5]


def test_a_parameter_that_need_not_be_given_keeps_its_default(
    engine: Engine, make_queue: MakeQueue, called: Called
) -> None:
    add(engine, Job("t"))
    queue = make_queue(engine)

    def handle(claim: brooq.Claim, client: Elsewhere = "default", times: int = 1, *, dry: bool = False) -> None:  # type: ignore[assignment]
        called(claim, client)

    queue.register("t", handle)
    queue.start()

    eventually(lambda: called.payloads == ["default"])


class Shop:
    def __init__(self, called: Called) -> None:
        self.called = called

    def method(self, claim: brooq.Claim, order: Annotated[Order, "of the shop"]) -> None:
        self.called(claim, order)

    def __call__(self, claim: brooq.Claim, order: Order | Address) -> None:
        self.called(claim, order)


def logged(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def call(*arguments: Any) -> None:
        function(*arguments)

    return call


def with_prefix(called: Called, claim: brooq.Claim, order: Order) -> None:
    called(claim, order)


def local_class(called: Called) -> Callable[..., None]:
    @dataclass
    class Part:
        price: float

    @dataclass
    class Local(Order):
        items: list[Part]  # type: ignore[assignment]

    def handle(claim: brooq.Claim, order: Local) -> None:
        assert isinstance(order, Local)
        assert isinstance(order.items[0], Part)
        called(claim, Order(order.number, [Line(part.price) for part in order.items]))

    return handle


CALLABLES: dict[str, Callable[[Called], Callable[..., None]]] = {
    "method": lambda called: Shop(called).method,
    "object": Shop,
    "partial": lambda called: functools.partial(with_prefix, called),
    "wrapped": lambda called: logged(Shop(called).method),
    "closure": local_class,
}


@pytest.mark.parametrize("make", CALLABLES.values(), ids=CALLABLES)
def test_any_callable_is_looked_through(
    engine: Engine, make_queue: MakeQueue, called: Called, make: Callable[[Called], Callable[..., None]]
) -> None:
    add(engine, Job("t", PAYLOAD))
    queue = make_queue(engine)
    queue.register("t", make(called))
    queue.start()

    eventually(all_settled(engine))
    assert called.payloads == [Order(5, [Line(1.5)])]


def test_classes_of_a_function_that_still_runs_are_found(engine: Engine, make_queue: MakeQueue, called: Called) -> None:
    @dataclass
    class Part:
        price: float

    @dataclass
    class Local:
        items: list[Part]

    class Methods:
        def handle(self, claim: brooq.Claim, order: Local) -> None:
            called(claim, order)

    add(engine, *(Job(topic, PAYLOAD) for topic in "tuv"))
    queue = make_queue(engine)
    queue.register("v", Methods().handle)

    @queue.handler("t")
    def handle(claim: brooq.Claim, order: Local) -> None:
        called(claim, order)

    def register() -> None:
        class Inner:
            @queue.handler("u")
            @staticmethod
            def handle(claim: brooq.Claim, order: Local) -> None:
                called(claim, order)

    register()
    queue.start()

    eventually(all_settled(engine))
    assert called.payloads == [Local([Part(1.5)])] * 3


def test_a_topic_that_is_taken_names_the_handler_itself(engine: Engine, make_queue: MakeQueue) -> None:
    queue = make_queue(engine)
    queue.register("t", takes_address)

    with pytest.raises(RegistrationError, match="handler already: <function takes_address at"):
        queue.register("t", takes_address)


def takes_address(claim: brooq.Claim, address: Address) -> None: ...


def test_settings_that_change_leave_a_handler_typed(engine: Engine, make_queue: MakeQueue, called: Called) -> None:
    add(engine, Job("t", PAYLOAD))
    queue = make_queue(engine)
    queue.register("t", Shop(called).method)
    queue.reconfigure(max_attempts=7)
    queue.start()

    eventually(all_settled(engine))
    assert called.payloads == [Order(5, [Line(1.5)])]


@pytest.fixture
def numbers_as_text(engine: Engine) -> Iterator[None]:
    dialect: Any = engine.dialect
    dialect._json_deserializer = lambda document: {"number": 5, "items": [], "given": document}
    yield
    dialect._json_deserializer = None


@pytest.mark.usefixtures("numbers_as_text")
def test_a_payload_is_read_from_what_the_engines_deserializer_made(
    engine: Engine, make_queue: MakeQueue, called: Called
) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO job (topic) VALUES ('t')"))
    queue = make_queue(engine)
    queue.register("t", Shop(called).method)
    queue.start()

    eventually(all_settled(engine))
    assert called.payloads == [Order(5, [])]
