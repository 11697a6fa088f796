"""
The load: jobs of every kind of handler, each of which leaves a trace that can be counted.

Owns the handlers, the tables of their effects, and the log of every job's moves. Knows nothing of faults.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Final, Literal

from prometheus_client import CollectorRegistry
from sqlalchemy import URL, Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq

LEASE: Final = 2.0
"""Seconds; short, so that what a killed worker held is back soon, and a freeze needn't be long to outlive it."""
SLOTS: Final = 8
FOLLOW: Final = "follow"

#: What is enqueued, and how many of it in ten jobs. Each ``chained`` job enqueues a ``follow`` when it is done.
SHARES: Final = {"plain": 3, "async": 3, "transactional": 2, "chained": 2}
#: Topics whose handlers write with a connection of their own: at least once.
OUTSIDE: Final = ("plain", "async", "chained")
#: Topics whose handlers, or their callbacks, write in the transaction of the outcome: exactly once.
INSIDE: Final = ("transactional", "chained", FOLLOW)
#: One job in so many fails by itself on its first attempt, so that retries are part of the load.
FAILING: Final = 9

Kind = Literal["plain", "async"]

#: No key keeps an effect from being written twice. Every update of a terminal row is logged, whatever it changes, and
#: with each move who held the job until when, and who made it.
TABLES: Final = """
CREATE TABLE effect (job_id uuid NOT NULL, place text NOT NULL, worker text NOT NULL);
CREATE INDEX ON effect (place, job_id);
CREATE TABLE move (
    job_id uuid NOT NULL, old text NOT NULL, new text NOT NULL, holder text, held boolean, writer text NOT NULL
);
CREATE FUNCTION log_move() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        INSERT INTO move VALUES (
            OLD.id, OLD.state, NEW.state, split_part(OLD.locked_by, ':', 2), OLD.locked_until >= now(),
            current_setting('application_name')
        );
        RETURN NULL;
    END $$;
CREATE TRIGGER log_move AFTER UPDATE ON job FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.state IN ('done', 'dead', 'canceled')) EXECUTE FUNCTION log_move();
"""
EFFECT: Final = text("INSERT INTO effect VALUES (:job_id, :place, :worker)")


def make_tables(connection: Connection) -> None:
    """
    Make the tables of effects and of moves.
    """
    connection.execute(text(TABLES))


def jobs(first: int, last: int) -> list[brooq.Job]:
    """
    Return the jobs with the numbers from *first* up to *last*, keyed by them: a producer may send them again.
    """
    turns = [topic for topic, share in SHARES.items() for _ in range(share)]
    return [brooq.Job(turns[n % len(turns)], {"n": n}, idempotency_key=str(n)) for n in range(first, last)]


def build_queue(url: URL, kind: Kind, seconds: float) -> brooq.Queue:
    """
    Return a queue with all handlers.

    Args:
        url: The database, for psycopg.
        kind: Which engine the queue gets, and so how transactional handlers are written.
        seconds: How long a handler takes on average.
    """
    config = brooq.Config(
        workers=SLOTS,
        poll_interval="200ms",
        lease=f"{LEASE:g}s",
        reaper_period="250ms",
        backoff_base="50ms",
        backoff_max="500ms",
        shutdown_grace="10s",
    )
    registry = CollectorRegistry()
    outside = Outside(url)
    if kind == "async":
        engine = create_async_engine(url.set(drivername="postgresql+psycopg_async"), pool_pre_ping=True)
        queue = brooq.Queue(engine, config, registry=registry)
        _register_async(queue, outside, seconds)
    else:
        queue = brooq.Queue(create_engine(url), config, registry=registry)
        _register_plain(queue, outside, seconds)
    return queue


class Outside:
    """
    The world outside of the queue's transactions, where an effect is there as soon as it is made.
    """

    def __init__(self, url: URL) -> None:
        self._plain: Engine = create_engine(url, isolation_level="AUTOCOMMIT", pool_size=SLOTS)
        self._async: AsyncEngine = create_async_engine(
            url.set(drivername="postgresql+psycopg_async"), isolation_level="AUTOCOMMIT", pool_size=SLOTS
        )

    def write(self, claim: brooq.Claim) -> None:
        """
        Make the effect of *claim*.
        """
        with self._plain.connect() as connection:
            connection.execute(EFFECT, effect(claim, "outside"))

    async def awrite(self, claim: brooq.Claim) -> None:
        """
        Make the effect of *claim*.
        """
        async with self._async.connect() as connection:
            await connection.execute(EFFECT, effect(claim, "outside"))


def effect(claim: brooq.Claim, place: str) -> dict[str, Any]:
    """
    Return the row of an effect of *claim*.
    """
    return {"job_id": claim.id, "place": place, "worker": claim.lease.worker}


def _register_plain(queue: brooq.Queue, outside: Outside, seconds: float) -> None:
    @queue.handler("chained")
    def chained(claim: brooq.Claim) -> None:
        fail_first(claim)
        claim.wait(some(seconds))
        outside.write(claim)
        claim.chain(brooq.Job(FOLLOW, {"parent": str(claim.id)}))
        claim.on_success(lambda session: session.execute(EFFECT, effect(claim, "inside")))

    def write_inside(claim: brooq.Claim, session: Session) -> None:
        session.execute(EFFECT, effect(claim, "inside"))
        time.sleep(some(seconds))  # with the transaction open
        fail_first(claim)

    queue.register("transactional", write_inside, brooq.HandlerOptions(transactional=True))
    queue.register(FOLLOW, write_inside, brooq.HandlerOptions(transactional=True))
    _register_outside(queue, outside, seconds)


def _register_async(queue: brooq.Queue, outside: Outside, seconds: float) -> None:
    @queue.handler("chained")
    async def chained(claim: brooq.Claim) -> None:
        fail_first(claim)
        await asyncio.sleep(some(seconds))
        await outside.awrite(claim)
        claim.chain(brooq.Job(FOLLOW, {"parent": str(claim.id)}))

        async def call_back(session: AsyncSession) -> None:
            await session.execute(EFFECT, effect(claim, "inside"))

        claim.on_success(call_back)

    async def write_inside(claim: brooq.Claim, session: AsyncSession) -> None:
        await session.execute(EFFECT, effect(claim, "inside"))
        await asyncio.sleep(some(seconds))
        fail_first(claim)

    queue.register("transactional", write_inside, brooq.HandlerOptions(transactional=True))
    queue.register(FOLLOW, write_inside, brooq.HandlerOptions(transactional=True))
    _register_outside(queue, outside, seconds)


def _register_outside(queue: brooq.Queue, outside: Outside, seconds: float) -> None:
    """
    Register what is the same with both kinds of engine: one function of each kind.
    """

    @queue.handler("plain")
    def plain(claim: brooq.Claim) -> None:
        time.sleep(some(seconds))  # hears of no interruption: it outlives its lease when its process was frozen
        fail_first(claim)
        outside.write(claim)

    @queue.handler("async")
    async def in_loop(claim: brooq.Claim) -> None:
        await outside.awrite(claim)
        await asyncio.sleep(some(seconds))
        fail_first(claim)


def fail_first(claim: brooq.Claim) -> None:
    """
    Fail on the first attempt at some of the jobs.
    """
    if claim.attempt == 1 and claim.payload.get("n", 1) % FAILING == 0:
        raise RuntimeError("the first attempt fails")


def some(seconds: float) -> float:
    """
    Return a time around *seconds*.
    """
    return random.uniform(0.5, 1.5) * seconds
