"""
The queue: registers handlers, enqueues, and starts and stops the worker of this process.

The facade over the producer and the engine; decides where connections and sessions come from. Building
one touches no database and starts nothing (invariant 9).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from sqlalchemy_brooq import aio, producer
from sqlalchemy_brooq.adoption import MAPPER
from sqlalchemy_brooq.config import CallKeywords, Config, ConfigKeywords, HandlerKeywords, HandlerOptions
from sqlalchemy_brooq.decorating import Handlers, TransactionalHandlers
from sqlalchemy_brooq.errors import ConfigError, LifecycleError, RegistrationError
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.model import Job, checked_topic
from sqlalchemy_brooq.policy import error_text
from sqlalchemy_brooq.schema import check_schema
from sqlalchemy_brooq.signature import call_of, is_coroutine_function
from sqlalchemy_brooq.vocabulary import Enqueued, Event, JobEvent
from sqlalchemy_brooq.worker.aioloop import fulfil, in_thread
from sqlalchemy_brooq.worker.attempt import Handler
from sqlalchemy_brooq.worker.connection import READ_COMMITTED, await_server
from sqlalchemy_brooq.worker.engine import Health, Sources, StopReport, Worker
from sqlalchemy_brooq.worker.executor import Around, in_handler_of
from sqlalchemy_brooq.worker.forks import in_each_child
from sqlalchemy_brooq.worker.hooks import Callback, Callbacks, checked
from sqlalchemy_brooq.worker.origin import derived_engine, needs_derived
from sqlalchemy_brooq.worker.signals import StopSignals

Function = TypeVar("Function", bound=Callable[..., Any])


class Queue:
    """
    A queue in the database of *engine*: its handlers, and the worker of this process once started.

    Args:
        engine: The consumer's ``Engine`` or ``AsyncEngine`` on PostgreSQL.
        config: The settings; their defaults if not given.
        session_factory: The consumer's own sessionmaker, for transactional handlers and `begin`.
            A ``sessionmaker`` with an ``Engine``, an ``async_sessionmaker`` with an ``AsyncEngine``.
        around: Returns a context manager to enter around each handler, such as Flask's ``app.app_context``.
        registry: Where the metrics go; prometheus_client's global registry if not given.
        worker_engine: A plain psycopg ``Engine`` for the worker's own connections. With an ``AsyncEngine``, or
            another driver, one is derived from the URL alone if it isn't given: ``connect_args`` and
            listeners can't be carried over.

    Raises:
        TypeError: *engine* is neither, or not on PostgreSQL.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        config: Config | None = None,
        *,
        session_factory: Callable[[], Any] | None = None,
        around: Around | None = None,
        registry: CollectorRegistry | None = None,
        worker_engine: Engine | None = None,
    ) -> None:
        _check_engine(engine)
        self.config = config if config is not None else Config()
        self.metrics = Metrics(registry)
        self.metrics.count_enqueued(producer.subscribe)
        self._engine = engine
        self._session_factory = session_factory
        self._around = around
        self._worker_engine = worker_engine
        self._derived: Engine | None = None
        self._handlers: dict[str, Handler] = {}
        self._options: dict[str, HandlerOptions] = {}
        self._callbacks: dict[Event, list[Callback]] = {}
        self._lifecycle = threading.Lock()
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._closed = False
        in_each_child(self._forked)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._worker else "idle"
        return f"<Queue {state} serving {', '.join(sorted(self._handlers)) or 'no topic'}>"

    # -- handlers

    @property
    def topics(self) -> frozenset[str]:
        """
        The topics that have a handler here.
        """
        return frozenset(self._handlers)

    @overload
    def handler(
        self, topic: str, *, transactional: Literal[False] = False, **options: Unpack[CallKeywords]
    ) -> Handlers: ...
    @overload
    def handler(
        self, topic: str, *, transactional: Literal[True], **options: Unpack[CallKeywords]
    ) -> TransactionalHandlers: ...
    @overload
    def handler(self, topic: str, **options: Unpack[HandlerKeywords]) -> Callable[[Function], Function]: ...
    def handler(self, topic: str, **options: Any) -> Callable[[Any], Any]:
        """
        Decorate a function, ``def`` or ``async def``, as the handler of *topic*; see `register`.

        Args:
            topic: What it handles.
            options: The fields of `HandlerOptions`.

        Raises:
            ConfigError: An option is refused; otherwise as for `register`.
        """
        resolved = HandlerOptions(**options)

        def register(function: Function) -> Function:
            self.register(topic, function, resolved)
            return function

        return register

    def register(self, topic: str, function: Callable[..., Any], options: HandlerOptions | None = None) -> None:
        """
        Make *function* the handler of *topic*.

        It is called with the `Claim`, and with a session if the options say ``transactional``. Where its second
        parameter is annotated with a dataclass, a TypedDict, a msgspec Struct or a pydantic model, it gets the payload
        as that, between the two; in a transactional handler the payload may also come last.

        Args:
            topic: What it handles: 1 to 255 of ``a-z 0-9 . - _``, beginning with a letter or digit.
            function: ``def`` or ``async def``; with ``keep_result=True`` what it returns is stored.
            options: What differs from the queue's settings; nothing if not given.

        Raises:
            InvalidJob: The topic breaks the grammar.
            ConfigError: An option is refused, or disagrees with the queue's settings.
            RegistrationError: The topic has a handler, the queue was started, or the function doesn't fit.
        """
        checked_topic(topic)
        options = options or HandlerOptions()
        resolved = options.resolve(self.config)
        with self._lifecycle:
            if self._worker is not None or self._closed:
                raise RegistrationError(f"handler for {topic!r} refused: register handlers before start()")
            if topic in self._handlers:
                taken = self._handlers[topic].function
                raise RegistrationError(f"topic {topic!r} has a handler already: {taken!r}; register each topic once")
            try:
                call, is_async = self._checked(function, resolved.transactional)
            except RegistrationError as error:
                raise RegistrationError(f"handler for {topic!r} refused: {error}") from error.__cause__
            self._handlers[topic] = Handler(topic, call, resolved, is_async)
            self._options[topic] = options

    def on(self, event: str, callback: Callable[[JobEvent], object]) -> None:
        """
        Call *callback* with a `JobEvent` whenever this queue's worker has done to a job what *event* says.

        It is called on a thread of its own, one call after the other, so it delays no job, and what it raises is
        logged. Events that it is too slow for are dropped: it is for alerts and counting, and no part of the work.

        Args:
            event: ``"JobClaimed"``, ``"JobDone"``, ``"JobFailed"``, ``"JobDead"``, ``"JobCanceled"`` or
                ``"JobRequeued"``.
            callback: A plain function.

        Raises:
            RegistrationError: There is no such event, the queue was started, or the function doesn't fit.
        """
        found = checked(event, callback)
        with self._lifecycle:
            if self._worker is not None or self._closed:
                raise RegistrationError(f"callback for {event} refused: register callbacks before start()")
            self._callbacks.setdefault(found, []).append(callback)

    def reconfigure(self, **settings: Unpack[ConfigKeywords]) -> None:
        """
        Change settings before the queue is started; what a handler has set for itself stays.

        ``brooq-worker run`` applies its options and the environment with it.

        Args:
            settings: As for `Config`; what is left out stays.

        Raises:
            ConfigError: Settings were refused, or disagree with a handler's options; nothing was changed.
            LifecycleError: The queue was started, or closed.
        """
        with self._lifecycle:
            if self._worker is not None or self._closed:
                raise LifecycleError("reconfigure() came too late: change settings before start()")
            config = replace(self.config, **cast(dict[str, Any], settings))
            self._handlers, self.config = self._resolved_again(config), config

    def _resolved_again(self, config: Config) -> dict[str, Handler]:
        handlers = {}
        problems: list[str] = []
        for topic, handler in self._handlers.items():
            try:
                handlers[topic] = replace(handler, options=self._options[topic].resolve(config))
            except ConfigError as error:
                problems += (f"handler for {topic!r}: {problem}" for problem in error.problems)
        if problems:
            raise ConfigError(problems)
        return handlers

    def _checked(self, function: Callable[..., Any], transactional: bool) -> tuple[Callable[..., Any], bool]:
        """
        Return *function* as the engine calls it, and whether it is async; raise what is wrong with it.
        """
        is_async = is_coroutine_function(function)
        call = call_of(function, transactional=transactional)
        if transactional and is_async != isinstance(self._engine, AsyncEngine):
            kind, needed = ("an async", "AsyncEngine") if is_async else ("a plain", "Engine")
            raise RegistrationError(f"{kind} transactional handler needs a queue with an {needed}")
        return call, is_async

    # -- enqueuing in transactions of their own

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        """
        Open a session of the queue's engine in a transaction, to enqueue and write together.

        It commits at the end of the block, and rolls back if that raises. The session is made by the queue's
        ``session_factory``, if it has one.

        Raises:
            LifecycleError: The queue has an ``AsyncEngine``: use `abegin`.
        """
        self._plain_engine("begin", "abegin")
        with self._sessions()() as session:
            _in_a_transaction(session)
            try:
                yield session
                session.commit()
            except BaseException:
                session.rollback()
                raise

    @contextlib.asynccontextmanager
    async def abegin(self) -> AsyncIterator[AsyncSession]:
        """
        `begin`, for an ``AsyncEngine``; a `LifecycleError` with any other.
        """
        async with self._asessions("abegin")() as session:
            await session.run_sync(_in_a_transaction)
            try:
                yield session
                await session.commit()
            except BaseException:
                await session.rollback()
                raise

    def enqueue(self, job: Job) -> Enqueued:
        """
        Enqueue *job* in a transaction of its own; the object stays transient, and gets the id of its row.

        Raises:
            InvalidJob: The job is refused; no SQL was sent.
            LifecycleError: The queue has an ``AsyncEngine``: use `aenqueue`.
        """
        with self._plain_engine("enqueue", "aenqueue").connect() as connection:
            return producer.enqueue_alone(connection, job)

    def cancel(self, job_id: UUID) -> bool:
        """
        Cancel the job *job_id* in a transaction of its own; return whether this call did it, and not an earlier end.

        Raises:
            JobNotFound: There is no such job.
            LifecycleError: The queue has an ``AsyncEngine``: use `acancel`.
        """
        with Session(self._plain_engine("cancel", "acancel")) as session, session.begin():
            _at_named_level(session)
            return producer.cancel(session, job_id)

    async def aenqueue(self, job: Job) -> Enqueued:
        """
        `enqueue`, for an ``AsyncEngine``.
        """
        async with self._async_engine("aenqueue", "enqueue").connect() as connection:
            return await connection.run_sync(producer.enqueue_alone, job)

    async def acancel(self, job_id: UUID) -> bool:
        """
        `cancel`, for an ``AsyncEngine``.
        """
        async with AsyncSession(self._async_engine("acancel", "cancel")) as session, session.begin():
            await session.run_sync(_at_named_level)
            return await aio.acancel(session, job_id)

    # -- the worker of this process

    def start(self) -> None:
        """
        Start claiming and running jobs; returns once the database was reached and the schema checked.

        Inside a running event loop the ``async def`` handlers run in that loop.

        Raises:
            SchemaMismatch: The table is missing, older or newer.
            LifecycleError: The queue is running, or closed.
        """
        self._start(_running_loop())

    async def astart(self) -> None:
        """
        `start`, without blocking the running loop.
        """
        loop = asyncio.get_running_loop()
        await in_thread(lambda: self._start(loop))

    def stop(self) -> StopReport | None:
        """
        Stop claiming, let running handlers finish within ``shutdown_grace``, and end the worker.

        What ignores its interruption keeps its lease, which then runs out. Harmless when nothing runs.

        Raises:
            LifecycleError: Called inside the event loop that the handlers run in: await `astop` there.
                Or called by a handler, for which it would wait.
        """
        self._refuse_to_wait_for_itself()
        with self._lifecycle:
            return self._stop()

    async def astop(self) -> StopReport | None:
        """
        `stop`, without blocking the running loop.
        """
        return await in_thread(self.stop)

    def close(self) -> None:
        """
        Stop, and let go of everything; the consumer's engine stays open. The queue can't be started again.
        """
        self._refuse_to_wait_for_itself()
        with self._lifecycle:
            self._closed = True
            try:
                self._stop()
            finally:
                if self._derived is not None:
                    self._derived.dispose()

    async def aclose(self) -> None:
        """
        `close`, without blocking the running loop.
        """
        await in_thread(self.close)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.astart()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def run(self, *, ready: Callable[[], None] | None = None, signals: StopSignals | None = None) -> StopReport:
        """
        Start, wait for SIGINT or SIGTERM, and stop; in the main thread only.

        A second signal ends the grace period at once. The signal handlers are restored afterwards.
        It ends by itself when every slot is taken by a hung handler, so that a supervisor can restart it.
        A server that can't be reached yet is waited for; one that refuses who asks is an error.

        Args:
            ready: Called once the worker has started.
            signals: What counts as a signal, where that is not simply each SIGINT and SIGTERM.

        Returns:
            How it ended; ``clean`` of it says whether as it should.

        Raises:
            SchemaMismatch: The table is missing, older or newer.
            LifecycleError: Not in the main thread; or the queue is running, or closed.
        """
        # Before the signals are taken: while a silent server is waited for, they still end the process.
        await_server(self._plain_source(), check_schema)
        hung = 0
        with signals or StopSignals() as heard:
            self.start()
            try:
                if ready is not None:
                    ready()
                worker = self._worker
                while not hung and self._worker is worker and not heard.wait(1.0):
                    hung = self._all_hung()
            finally:
                report = self._stop_unless_hurried(heard)
        return replace(report, hung=hung)

    def health(self) -> Health | None:
        """
        Tell how the worker is; ``None`` while none runs.
        """
        worker = self._worker
        return worker.health() if worker is not None else None

    def _forked(self) -> None:
        """
        Begin anew in a forked child: what runs, runs in the parent, and keeps its connections.

        The pool of the engine is replaced, not closed, as SQLAlchemy asks of every forked child.
        """
        self._lifecycle = threading.Lock()
        worker, self._worker, self._loop = self._worker, None, None
        if worker is not None:
            worker.leave_to_parent()
        for engine in (self._engine, self._worker_engine, self._derived):
            if engine is not None:
                (engine.sync_engine if isinstance(engine, AsyncEngine) else engine).dispose(close=False)

    def _all_hung(self) -> int:
        """
        Return how many slots there are if hung handlers have taken them all, and otherwise 0.
        """
        health = self.health()
        return health.slots if health is not None and health.hung >= health.slots else 0

    def _stop_unless_hurried(self, signals: StopSignals) -> StopReport:
        """
        Stop on another thread, while this one listens for a second signal.
        """
        worker = self._worker
        expected = min(signals.count, 1)  # none, if the worker ends by itself
        reports: Future[StopReport | None] = Future()
        stopping = threading.Thread(target=fulfil, args=[reports, self.stop], name="brooq-stop")
        stopping.start()
        while stopping.is_alive():
            if signals.wait(0.1) and signals.count > expected and worker is not None:
                worker.hurry()
            stopping.join(0.1)
        return reports.result() or StopReport(0, 0)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._lifecycle:
            if self._closed:
                raise LifecycleError("this queue was closed: build another one")
            if self._worker is not None:
                raise LifecycleError("this queue is running already")
            worker = Worker(
                self._sources(), self.config, self._handlers, self.metrics, loop, self._around, self._callbacks
            )
            try:
                worker.start()
            except SQLAlchemyError as error:
                if self._derived is None:
                    raise
                raise self._unreachable(error, self._derived) from error
            self._worker, self._loop = worker, loop
            self.metrics.workers(self.config.workers)
            self.metrics.serve(self._handlers)
            self._unsubscribe = producer.subscribe(self._enqueued)

    def _refuse_to_wait_for_itself(self) -> None:
        if self._loop is not None and _running_loop() is self._loop:
            raise LifecycleError("stop() would block the loop that the handlers run in: use `await queue.astop()`")
        worker = self._worker
        if worker is not None and in_handler_of(worker.name):
            raise LifecycleError("stop() in a handler would wait for that handler: let another thread stop the queue")

    def _stop(self) -> StopReport | None:
        worker = self._worker
        if worker is None:
            return None
        self._unsubscribe()
        try:
            return worker.stop(self.config.shutdown_grace.total_seconds())
        finally:
            # Not before: while it drains it is still asked how it is.
            self._worker = self._loop = None
            self.metrics.workers(-self.config.workers)

    def _unreachable(self, error: SQLAlchemyError, derived: Engine) -> LifecycleError:
        """
        Return what to raise when the worker can't connect by an engine that we made: it says where that came from.
        """
        return LifecycleError(
            f"the worker's engine, derived from {derived.url!r}, can't connect ({error_text(error)}):"
            " give the queue one that can, worker_engine=create_engine(...)"
        )

    def _enqueued(self, note: producer.EnqueuedNote) -> None:
        """
        Note what a transaction of this process committed: hints for the pump and the heartbeat.
        """
        worker = self._worker
        if worker is None:
            return
        if not self._handlers.keys().isdisjoint(note.topics):
            worker.hint()
        if worker.name in note.holders:
            worker.look_at_leases()

    # -- where connections and sessions come from

    def _sources(self) -> Sources:
        return Sources(
            self._plain_source(),
            self._sessions(),
            self._asessions("start") if isinstance(self._engine, AsyncEngine) else None,
        )

    def _parts(self) -> Parts:
        sessions = self._sessions() if isinstance(self._engine, Engine) else sessionmaker(self._engine.sync_engine)
        async_sessions = self._asessions("start") if isinstance(self._engine, AsyncEngine) else None
        return Parts(
            self._engine,
            dict(self._handlers),
            sessions,
            async_sessions,
            self._around,
            self._callbacks,
            self._plain_source,
        )

    def _plain_source(self) -> Engine:
        """
        Return the plain psycopg engine of the worker.
        """
        if self._worker_engine is not None:
            return self._worker_engine
        if isinstance(self._engine, Engine) and not needs_derived(self._engine):
            return self._engine
        if self._derived is None:
            self._derived = derived_engine(self._engine, plain=self.config.wakeup == "poll")
        return self._derived

    def _sessions(self) -> Callable[[], Session]:
        if isinstance(self._engine, AsyncEngine):
            return sessionmaker(self._plain_source())
        return self._session_factory or sessionmaker(self._engine)

    def _asessions(self, name: str) -> Callable[[], AsyncSession]:
        return self._session_factory or async_sessionmaker(self._async_engine(name, name.removeprefix("a")))

    def _plain_engine(self, name: str, other: str) -> Engine:
        if isinstance(self._engine, AsyncEngine):
            raise LifecycleError(f"queue.{name}() needs an Engine; this queue has an AsyncEngine: await {other}()")
        return self._engine

    def _async_engine(self, name: str, other: str) -> AsyncEngine:
        if not isinstance(self._engine, AsyncEngine):
            raise LifecycleError(f"queue.{name}() needs an AsyncEngine; this queue has an Engine: use {other}()")
        return self._engine


class Parts(NamedTuple):
    """
    What a stand-in for a queue's worker is made of.
    """

    engine: Engine | AsyncEngine
    """The consumer's."""
    handlers: Mapping[str, Handler]
    sessions: Callable[[], Session]
    """Makes the sessions of plain handlers, on the consumer's engine, an async one's included."""
    async_sessions: Callable[[], AsyncSession] | None
    around: Around | None
    callbacks: Callbacks
    plain_source: Callable[[], Engine]
    """Returns a plain psycopg engine for the same database."""


def parts_of(queue: Queue) -> Parts:
    """
    Return what *queue* is made of, for the testing kit.
    """
    return queue._parts()  # noqa: SLF001 - this module owns it


def _check_engine(engine: object) -> None:
    if not isinstance(engine, Engine | AsyncEngine):
        raise TypeError(f"Queue takes an Engine or an AsyncEngine, not {type(engine).__name__}")
    if engine.dialect.name != "postgresql":
        raise TypeError(f"Queue needs PostgreSQL; this engine's dialect is {engine.dialect.name}")


def _at_named_level(session: Session) -> None:
    """
    Let a transaction of our own be READ COMMITTED, whatever the engine's default is (invariant 13).
    """
    session.connection(bind_arguments={"mapper": MAPPER}, execution_options={"isolation_level": READ_COMMITTED})


def _in_a_transaction(session: Session) -> None:
    """
    Begin a transaction, also where the engine's connections would commit each statement by themselves.
    """
    if not session.in_transaction():
        session.begin()  # a sessionmaker may have autobegin=False
    connection = session.connection(bind_arguments={"mapper": MAPPER})
    if getattr(connection.connection.dbapi_connection, "autocommit", False):
        session.rollback()
        if not session.in_transaction():
            session.begin()
        _at_named_level(session)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
