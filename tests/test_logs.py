"""
Log lines: which job they are about, their forms, and what they never show.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.cli.logs import JsonFormatter, TextFormatter, log_to_stderr
from sqlalchemy_brooq.vocabulary import Event
from tests.commands import RunningWorker, shown
from tests.queues import MakeQueue, all_settled
from tests.waiting import eventually

CARD = "4111111111111111"
PROGRAM = """
import logging
import os

import sqlalchemy as sa
import sqlalchemy_brooq as brooq

log = logging.getLogger("shop")
engine = sa.create_engine(os.environ["SHOP_URL"])
queue = brooq.Queue(engine, brooq.Config(poll_interval="100ms", max_attempts=1, workers=1))


@queue.handler("ok")
def ok(claim):
    log.info("working")


@queue.handler("late")
async def late(claim):
    log.info("working", extra={"topic": "my own", "odd": {1, 2}})


@queue.handler("db")
def db(claim):
    try:
        broken(claim)
    except Exception:
        log.exception("that went wrong")
        raise


def broken(claim):
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO job (topic, priority) VALUES ('x', 9), (:card, 9)"), claim.payload)


@queue.handler("off")
def off(claim):
    raise brooq.CancelJob


queue.on("JobDead", lambda event: log.info("alert"))
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def own_logging() -> Iterator[logging.Logger]:
    """
    The root logger, as a fresh process has it; what the test does to it is undone.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def enqueue(engine: Engine, *topics: str) -> dict[str, brooq.Job]:
    jobs = {topic: brooq.Job(topic, {"card": CARD}) for topic in topics}
    with Session(engine, expire_on_commit=False) as session, session.begin():
        session.add_all(jobs.values())
    return jobs


def lines_of(folder: Path, engine: Engine, form: str, *topics: str) -> tuple[list[str], dict[str, brooq.Job]]:
    """
    Run a job of each topic with a worker that logs all it can, and return its lines.
    """
    jobs = enqueue(engine, *topics)
    arguments = ("shop:queue", "--log-level", "debug", "--log-format", form)
    with RunningWorker(*arguments, cwd=folder, SHOP_URL=shown(engine.url)) as worker:
        eventually(all_settled(engine), message=worker.err)
        worker.end()
        return worker.err.splitlines(), jobs


def test_json_is_an_object_a_line_with_the_job_in_each_line_about_it(shop: Path, engine: Engine) -> None:
    lines, jobs = lines_of(shop, engine, "json", "ok", "late", "db", "off")

    found = [json.loads(line) for line in lines]
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in found)
    events = {(line["event"], line.get("topic")): line for line in found if "event" in line}
    for event, topic, level in [
        ("WorkerStarted", None, "INFO"),
        ("JobClaimed", "ok", "DEBUG"),
        ("JobDone", "ok", "INFO"),
        ("JobDead", "db", "ERROR"),
        ("JobCanceled", "off", "INFO"),
        ("WorkerStopped", None, "INFO"),
    ]:
        line = events[event, topic]
        assert line["level"] == level
        if topic:
            assert (line["job_id"], line["attempt"]) == (str(jobs[topic].id), 1)
    own = {line["job_id"]: line for line in found if line["logger"] == "shop" and line["message"] != "alert"}
    assert own[str(jobs["ok"].id)] | {"time": ""} == {
        "time": "",
        "level": "INFO",
        "logger": "shop",
        "message": "working",
        "job_id": str(jobs["ok"].id),
        "topic": "ok",
        "attempt": 1,
    }
    late = own[str(jobs["late"].id)]
    assert (late["topic"], late["odd"], late["attempt"]) == ("my own", "{1, 2}", 1)
    assert "CheckViolation" in own[str(jobs["db"].id)]["traceback"]
    assert CARD not in "".join(lines)


def test_text_names_the_job_in_each_line_about_it_once(shop: Path, engine: Engine) -> None:
    lines, jobs = lines_of(shop, engine, "text", "ok", "db")

    ok = str(jobs["ok"].id)
    assert any(line.endswith(f"INFO    shop: [ok {ok} attempt 1] working") for line in lines)
    assert any(line.endswith(f"INFO    sqlalchemy_brooq.worker: JobDone: ok {ok} attempt 1") for line in lines)
    assert all(line.count(ok) <= 1 for line in lines)
    assert CARD not in "".join(lines)


def test_a_format_that_is_asked_for_goes_before_the_program_s(shop: Path, engine: Engine) -> None:
    program = (shop / "shop.py").read_text()
    (shop / "shop.py").write_text(
        f"import logging\nlogging.basicConfig(format='mine: %(message)s', level=20)\n{program}"
    )

    lines, _ = lines_of(shop, engine, "json", "ok")

    assert all(json.loads(line) for line in lines)


def test_a_host_s_own_handler_learns_of_the_job_from_the_filter(
    engine: Engine, make_queue: MakeQueue, engine_kind: str
) -> None:
    records: list[logging.LogRecord] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    handler, log = Keeping(), logging.getLogger("tests.host")
    handler.addFilter(brooq.JobLogFilter())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    queue = make_queue(engine)

    @queue.handler("plain")
    def plain(claim: brooq.Claim) -> None:
        log.info("handler")
        claim.on_success(lambda _: log.info("callback"))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(log.info, "thread").result()

    @queue.handler("async")
    async def awaiting(claim: brooq.Claim) -> None:
        await asyncio.sleep(0)
        log.info("handler")
        await asyncio.create_task(said())

    async def said() -> None:
        log.info("task")

    try:
        jobs = enqueue(engine, "plain", "async")
        with queue:
            eventually(all_settled(engine))
            log.info("outside")
    finally:
        log.removeHandler(handler)

    def about(record: logging.LogRecord) -> tuple[object, ...]:
        return tuple(getattr(record, name, None) for name in ("job_id", "topic", "attempt"))

    assert sorted((record.getMessage(), *map(str, about(record))) for record in records) == sorted(
        [
            ("handler", str(jobs["plain"].id), "plain", "1"),
            ("callback", str(jobs["plain"].id), "plain", "1"),
            ("handler", str(jobs["async"].id), "async", "1"),
            ("task", str(jobs["async"].id), "async", "1"),
            ("thread", "None", "None", "None"),  # a thread of the handler's own has a context of its own
            ("outside", "None", "None", "None"),
        ]
    )


def test_an_error_with_line_breaks_is_one_line(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue(engine, max_attempts=1)

    @queue.handler("t")
    def fail(claim: brooq.Claim) -> None:
        raise ValueError("one\r\ntwo")

    enqueue(engine, "t")
    with queue:
        eventually(all_settled(engine))

    (line,) = [record for record in caplog.records if getattr(record, "event", "") == "JobDead"]
    assert line.getMessage().endswith(r"ValueError: one\r\ntwo")
    assert vars(line)["error"] == "ValueError: one\r\ntwo"


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize(
    ("extra", "shown"),
    [
        (Hostile(), "<Hostile>"),
        (float("nan"), "nan"),
        ({"a": [1, {2}]}, {"a": [1, "{2}"]}),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ("a\nb \ud800", "a\nb \ud800"),
        (b"x", "b'x'"),
    ],
)
def test_no_field_loses_a_line(extra: object, shown: object) -> None:
    record = logging.makeLogRecord({"msg": "said", "odd": extra, "level": "mine"})

    line = JsonFormatter().format(record)

    assert "\n" not in line
    assert json.loads(line)["odd"] == shown
    assert json.loads(line)["level"] != "mine"


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_traceback_of_a_database_error_has_no_parameters(engine: Engine, formatter: logging.Formatter) -> None:
    try:
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO job (topic, priority) VALUES (:card, 9)"), {"card": CARD})
    except IntegrityError:
        record = logging.makeLogRecord({"msg": "said", "exc_info": sys.exc_info()})
    logging.Formatter().format(record)  # leaves its own traceback in the record
    assert record.exc_text is not None
    assert CARD in record.exc_text

    line = formatter.format(record)

    assert "CheckViolation" in line
    assert CARD not in line


def test_files_and_services_of_the_program_keep_their_form(own_logging: logging.Logger, tmp_path: Path) -> None:
    file = logging.FileHandler(tmp_path / "log")
    own_logging.handlers[:] = [file]  # and none of pytest's

    log_to_stderr("info", "json")

    file.close()
    assert [type(handler.formatter) for handler in own_logging.handlers] == [type(None), JsonFormatter]
    assert all(any(isinstance(one, brooq.JobLogFilter) for one in handler.filters) for handler in own_logging.handlers)


def test_the_page_has_every_event_of_the_code() -> None:
    from sqlalchemy_brooq.vocabulary import Notice
    from sqlalchemy_brooq.worker.journal import LEVELS
    from tests.pages import table
    from tests.servers import ROOT

    page = ROOT / "docs/reference/logs.md"
    rows = {cells[0].strip("`"): cells[1] for cells in table(page, "event")}

    assert set(rows) == {*map(str, Event), *map(str, Notice)}
    assert {event: rows[event] for event in Event} == {event: logging.getLevelName(LEVELS[event]) for event in Event}


def test_a_line_of_the_program_s_without_a_job_is_left_as_it_is(capsys: Any) -> None:
    record = logging.makeLogRecord({"msg": "said %s", "args": ("so",), "name": "n", "levelname": "INFO"})

    assert TextFormatter().format(record).endswith(" INFO    n: said so")
