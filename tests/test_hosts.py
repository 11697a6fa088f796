"""
Workers on several hosts against one server, one of them cut off for longer than its leases, and healed.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from tests.commands import free_port
from tests.networks import Network
from tests.programs import Program, program
from tests.queues import probe_table
from tests.waiting import eventually, row

#: A worker on one host. What its handlers are told is in files of the *folder*, and so is what lets them go.
WORKER: Final = """
import asyncio, logging, sys, time
from pathlib import Path
import sqlalchemy_brooq as brooq
from sqlalchemy import create_engine, text

url, folder, host = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
logging.basicConfig(filename=folder / f"{host}.log", level="INFO")
config = brooq.Config(
    workers=6, lease="2s", reaper_period="200ms", poll_interval="100ms", backoff_base="10ms", shutdown_grace="5s"
)
queue = brooq.Queue(create_engine(url, pool_pre_ping=True), config)

def says(what, claim, note=""):
    (folder / f"{host} {what} {claim.topic}").write_text(f"{claim.id} {claim.attempt} {note}")

def may_end(claim):
    return (folder / f"{host} may end {claim.topic}").exists()

@queue.handler("plain")
def plain(claim):
    says("runs", claim)
    try:
        while not may_end(claim):
            claim.wait(0.02)
    except brooq.LeaseLost:
        says("lost", claim)
        raise

@queue.handler("coroutine")
async def coroutine(claim):
    says("runs", claim)
    try:
        while not may_end(claim):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        if isinstance(claim.cause, brooq.LeaseLost):
            says("lost", claim)
        raise

@queue.handler("late")
def late(claim):
    says("runs", claim)
    while not may_end(claim):
        claim.wait(0.02)
    says("returns", claim)

@queue.handler("anywhere", transactional=True)
@queue.handler(f"on-{host}", transactional=True)
def write(claim, session):
    session.execute(text("INSERT INTO probe (job_id, note) VALUES (:id, :host)"), {"id": claim.id, "host": host})

report = queue.run()
sys.exit(0 if report.clean else 1)
"""
MOVES: Final = """
CREATE TABLE move (job_id uuid NOT NULL, old text NOT NULL, new text NOT NULL, holder text);
CREATE FUNCTION log_move() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN
        INSERT INTO move VALUES (OLD.id, OLD.state, NEW.state, split_part(OLD.locked_by, ':', 2));
        RETURN NULL;
    END $$;
CREATE TRIGGER log_move AFTER UPDATE ON job FOR EACH ROW
    WHEN (OLD.state <> NEW.state OR OLD.state IN ('done', 'dead', 'canceled')) EXECUTE FUNCTION log_move();
"""
HELD: Final = ("plain", "coroutine", "late")
"""Topics whose jobs run on the first host when it is cut off."""


@dataclass(frozen=True)
class Scene:
    """
    A server that two hosts reach.
    """

    engine: Engine
    url: URL
    """As the hosts reach it."""
    folder: Path

    def add(self, *topics: str) -> list[UUID]:
        """
        Enqueue a job for each of *topics*.
        """
        jobs = [brooq.Job(topic) for topic in topics]
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            session.add_all(jobs)
        return [job.id for job in jobs]

    def are_done(self, jobs: list[UUID], seconds: float = 60.0) -> None:
        """
        Wait until all of *jobs* are done.
        """
        eventually(lambda: all(row(self.engine, job)["state"] == "done" for job in jobs), seconds, "they aren't done")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(found) for found in connection.execute(text(query))]

    def hears(self, sentence: str, seconds: float = 60.0) -> None:
        """
        Wait for what a handler says, as in ``"a runs late"``.
        """
        eventually((self.folder / sentence).exists, seconds, f"{sentence!r} was never said")

    def lets_end(self, host: str, topic: str) -> None:
        (self.folder / f"{host} may end {topic}").touch()

    def log(self, host: str) -> str:
        return (self.folder / f"{host}.log").read_text()


@pytest.fixture
def scene(network: Network, tmp_path: Path) -> Iterator[Scene]:
    port = free_port()
    with LocalPostgres(durable=False, listen_addresses=network.address, port=port) as server:
        migrate(server.url())
        engine = create_engine(server.url())
        probe_table(engine)
        with engine.begin() as connection:
            connection.execute(text(MOVES))
            hba = Path(connection.execute(text("SHOW hba_file")).scalar_one())
            with hba.open("a") as file:
                file.write(f"host all all {network.subnet} trust\n")
            connection.execute(text("SELECT pg_reload_conf()"))
        address = URL.create("postgresql+psycopg", "postgres", None, network.address, port, "postgres")
        yield Scene(engine, address.update_query_dict({"connect_timeout": "2"}), tmp_path)
        engine.dispose()


def ends_cleanly(worker: Program) -> bool:
    worker.send_signal(signal.SIGTERM)
    return worker.wait(15) == 0


@pytest.mark.slow
def test_a_host_that_was_cut_off_for_longer_than_its_leases_loses_and_doubles_nothing(
    network: Network, scene: Scene
) -> None:
    first, second = network.hosts
    with ExitStack() as workers:
        a = workers.enter_context(program(WORKER, scene.url, str(scene.folder), "a", within=first.within))
        held = hold(scene, a)
        refusal = f"lease lost: late {held['late']} attempt 1"
        b = workers.enter_context(program(WORKER, scene.url, str(scene.folder), "b", within=second.within))
        # One topic each that the other has no handler for: both hosts work.
        before = scene.add("on-a", "on-b", *["anywhere"] * 10)
        scene.are_done(before)

        with first.cut_off():
            scene.lets_end("a", "late")  # its outcome is on its way, and the way is none
            scene.hears("a returns late")
            meanwhile = scene.add(*["anywhere"] * 10)
            for topic in HELD:
                scene.lets_end("b", topic)
            scene.hears("a lost plain")
            scene.hears("a lost coroutine")
            scene.are_done([*held.values(), *meanwhile])
            assert {row(scene.engine, job)["requeues"] for job in held.values()} == {1}
            assert refusal not in scene.log("a")

        after = scene.add("on-a", "on-b", *["anywhere"] * 10)
        scene.are_done(after)
        eventually(lambda: refusal in scene.log("a"), 15, "its outcome wasn't refused")
        assert ends_cleanly(a)
        assert ends_cleanly(b)

    nothing_is_lost_or_doubled(scene, [*before, *meanwhile, *after], held, b)


def hold(scene: Scene, worker: Program) -> dict[str, UUID]:
    """
    Let a job of each held topic run on *worker*, the only one there is yet.
    """
    held = dict(zip(HELD, scene.add(*HELD), strict=True))
    for topic in HELD:
        scene.hears(f"a runs {topic}")
    holders = {row(scene.engine, job)["locked_by"].split(":")[1] for job in held.values()}
    assert holders == {str(worker.pid)}
    return held


def nothing_is_lost_or_doubled(scene: Scene, written: list[UUID], held: dict[str, UUID], by: Program) -> None:
    """
    Each job has one outcome, and each transactional handler left one row; *by* wrote those of the *held* jobs.
    """
    assert scene.rows("SELECT DISTINCT state FROM job") == [("done",)]
    ended = scene.rows("SELECT job_id, holder FROM move WHERE new = 'done' OR old = 'done'")
    assert len(ended) == len(written) + len(held)
    assert {job for job, _ in ended} == {*written, *held.values()}
    assert {holder for job, holder in ended if job in held.values()} == {str(by.pid)}
    assert {row(scene.engine, job)["attempts"] for job in held.values()} == {2}
    effects = scene.rows("SELECT job_id FROM probe")
    assert sorted(job for (job,) in effects) == sorted(written)
