"""
The queue: the facade over what registers handlers, what enqueues, and the worker of this process.

Owns the order of its life: what may be asked for before, while and after the worker runs. Building one touches no
database and starts nothing (invariant 9).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar, Unpack, cast, overload
from uuid import UUID

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from sqlalchemy_brooq import aio, producer
from sqlalchemy_brooq.config import CallKeywords, Config, ConfigKeywords, HandlerKeywords, HandlerOptions
from sqlalchemy_brooq.database import Database, at_named_level
from sqlalchemy_brooq.decorating import Handlers, TransactionalHandlers
from sqlalchemy_brooq.errors import LifecycleError, RegistrationError
from sqlalchemy_brooq.foreground import work
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.model import Job, checked_topic
from sqlalchemy_brooq.parts import Parts
from sqlalchemy_brooq.registry import Registry
from sqlalchemy_brooq.schema import check_schema
from sqlalchemy_brooq.vocabulary import Enqueued, JobEvent
from sqlalchemy_brooq.worker.aioloop import in_thread, running_loop
from sqlalchemy_brooq.worker.connection import await_server
from sqlalchemy_brooq.worker.engine import Health, StopReport, Worker
from sqlalchemy_brooq.worker.executor import in_handler_of
from sqlalchemy_brooq.worker.forks import in_each_child
from sqlalchemy_brooq.worker.running import Around
from sqlalchemy_brooq.worker.setup import Setup
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
        self._database = Database(engine, session_factory, worker_engine)
        self._registry = Registry(has_async_engine=isinstance(engine, AsyncEngine))
        self._around = around
        self.config = config if config is not None else Config()
        self.metrics = Metrics(registry)
        self.metrics.count_enqueued(producer.subscribe)
        self._lifecycle = threading.Lock()
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._closed = False
        in_each_child(self._forked)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._worker else "idle"
        return f"<Queue {state} serving {', '.join(sorted(self.topics)) or 'no topic'}>"

    # -- handlers

    @property
    def topics(self) -> frozenset[str]:
        """
        The topics that have a handler here.
        """
        return frozenset(self._registry.handlers)

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
        if not isinstance(topic, str):
            name = getattr(topic, "__name__", "function")
            raise RegistrationError(f'write @queue.handler("topic") above {name}, with the topic that it handles')
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
        with self._lifecycle:
            if self._was_started():
                raise RegistrationError(f"handler for {topic!r} refused: register handlers before start()")
            self._registry.add(topic, function, options or HandlerOptions(), self.config)

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
        with self._lifecycle:
            if self._was_started():
                raise RegistrationError(f"callback for {event} refused: register callbacks before start()")
            self._registry.call_on(event, callback)

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
            if self._was_started():
                raise LifecycleError("reconfigure() came too late: change settings before start()")
            config = replace(self.config, **cast(dict[str, Any], settings))
            self._registry.resolve_again(config)
            self.config = config

    # -- enqueuing in transactions of their own

    def begin(self) -> AbstractContextManager[Session]:
        """
        Open a session of the queue's engine in a transaction, to enqueue and write together.

        It commits at the end of the block, and rolls back if that raises. The session is made by the queue's
        ``session_factory``, if it has one.

        Raises:
            LifecycleError: The queue has an ``AsyncEngine``: use `abegin`.
        """
        return self._database.begin()

    def abegin(self) -> AbstractAsyncContextManager[AsyncSession]:
        """
        `begin`, for an ``AsyncEngine``; a `LifecycleError` with any other.
        """
        return self._database.abegin()

    def enqueue(self, job: Job) -> Enqueued:
        """
        Enqueue *job* in a transaction of its own; the object stays transient, and gets the id of its row.

        Raises:
            InvalidJob: The job is refused; no SQL was sent.
            LifecycleError: The queue has an ``AsyncEngine``: use `aenqueue`.
        """
        with self._database.plain("enqueue", "aenqueue").connect() as connection:
            return producer.enqueue_alone(connection, job)

    def cancel(self, job_id: UUID | str) -> bool:
        """
        Cancel the job *job_id* in a transaction of its own; return whether this call did it, and not an earlier end.

        Raises:
            JobNotFound: There is no such job.
            InvalidJob: *job_id* is no UUID, nor the text of one.
            LifecycleError: The queue has an ``AsyncEngine``: use `acancel`.
        """
        with Session(self._database.plain("cancel", "acancel")) as session, session.begin():
            at_named_level(session)
            return producer.cancel(session, job_id)

    async def aenqueue(self, job: Job) -> Enqueued:
        """
        `enqueue`, for an ``AsyncEngine``.
        """
        async with self._database.asyncs("aenqueue", "enqueue").connect() as connection:
            return await connection.run_sync(producer.enqueue_alone, job)

    async def acancel(self, job_id: UUID | str) -> bool:
        """
        `cancel`, for an ``AsyncEngine``.
        """
        async with AsyncSession(self._database.asyncs("acancel", "cancel")) as session, session.begin():
            await session.run_sync(at_named_level)
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
        self._start(running_loop())

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
                self._database.close()

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
        with signals or StopSignals() as heard:
            return work(self, heard, hurry=self._hurry, ready=ready)

    def health(self) -> Health | None:
        """
        Tell how the worker is; ``None`` while none runs.
        """
        worker = self._worker
        return worker.health() if worker is not None else None

    def _was_started(self) -> bool:
        return self._worker is not None or self._closed

    def _forked(self) -> None:
        """
        Begin anew in a forked child: what runs, runs in the parent, and keeps its connections.
        """
        self._lifecycle = threading.Lock()
        worker, self._worker, self._loop = self._worker, None, None
        if worker is not None:
            worker.leave_to_parent()
        self._database.leave_to_parent()

    def _hurry(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.hurry()

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        with self._lifecycle:
            if self._closed:
                raise LifecycleError("this queue was closed: build another one")
            if self._worker is not None:
                raise LifecycleError("this queue is running already")
            self._database.refuse_one_for_all()
            sources, registry = self._database.sources(self._plain_source()), self._registry
            setup = Setup(sources, self.config, registry.handlers, self.metrics, loop, self._around, registry.callbacks)
            worker = Worker(setup)
            with self._database.connecting():
                worker.start()
            self._worker, self._loop = worker, loop
            self.metrics.workers(self.config.workers)
            self.metrics.serve(self.topics)
            self._unsubscribe = producer.subscribe(self._enqueued)

    def _refuse_to_wait_for_itself(self) -> None:
        if self._loop is not None and running_loop() is self._loop:
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

    def _enqueued(self, note: producer.EnqueuedNote) -> None:
        """
        Note what a transaction of this process committed: hints for the pump and the heartbeat.
        """
        worker = self._worker
        if worker is None:
            return
        if not self._registry.handlers.keys().isdisjoint(note.topics):
            worker.hint()
        if worker.name in note.holders:
            worker.look_at_leases()

    def _plain_source(self) -> Engine:
        """
        Return the plain psycopg engine of the worker.
        """
        return self._database.worker_engine(plain=self.config.wakeup == "poll")


def parts_of(queue: Queue) -> Parts:
    """
    Return what *queue* is made of, for the testing kit.
    """
    return Parts.of(queue._database, queue._registry, queue._around, queue._plain_source)  # noqa: SLF001 - its module
