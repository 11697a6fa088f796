from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, create_engine, text

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from sqlalchemy_brooq.model import REVISION, VERSION_MARK
from tests.commands import COMMAND, RunningWorker, brooq_worker, command_after, get, shown
from tests.waiting import eventually, row

SECRET = "S3cr%40t!%25"  # noqa: S105 - a secret to look for
REFUSING = f"postgresql+psycopg://shop:{SECRET}@127.0.0.1:1/shop"

SHOP = """
import os
import time

import sqlalchemy as sa
import sqlalchemy_brooq as brooq

engine = sa.create_engine(os.environ["SHOP_URL"])
queue = brooq.Queue(engine, brooq.Config(poll_interval="100ms"))


@queue.handler("email.send", keep_result=True)
def send(claim):
    return {"sent": claim.payload}


@queue.handler("ledger.post", keep_result=True)
async def post(claim):
    return {name: str(getattr(queue.config, name)) for name in ("workers", "prefetch", "lease", "wakeup")}


@queue.handler("nap", attempt_timeout="100ms")
def nap(claim):
    open("napping", "w").close()
    time.sleep(600)


def make_queue():
    return queue


class namespace:
    jobs = queue
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """
    A folder with a program in it.
    """
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def insert(engine: Engine, topic: str, payload: str = "{}") -> UUID:
    """
    Enqueue a job from outside, in plain SQL.
    """
    with engine.begin() as connection:
        statement = text("INSERT INTO job (topic, payload) VALUES (:topic, :payload) RETURNING id")
        job_id: UUID = connection.execute(statement, {"topic": topic, "payload": payload}).scalar_one()
    return job_id


def done(engine: Engine, job_id: UUID) -> object:
    """
    Wait until a job is done, and return its result.
    """
    eventually(lambda: row(engine, job_id)["state"] == "done", message="the job was not done")
    return row(engine, job_id)["result"]


def take_a_nap(engine: Engine, shop: Path) -> None:
    """
    Enqueue a job that sleeps, and wait until its handler runs: one that was only claimed would be given back.
    """
    insert(engine, "nap")
    eventually((shop / "napping").exists, message="the handler did not begin")


def write(folder: Path, program: str) -> None:
    """
    Put *program* where the fixture `shop` puts its own.
    """
    (folder / "shop.py").write_text(program)


# -- a worker at work


def test_a_job_inserted_with_plain_sql_is_run_to_done_and_sigterm_ends_the_worker(shop: Path, engine: Engine) -> None:
    with RunningWorker("shop:queue", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        announced = worker.announcement()
        job_id = insert(engine, "email.send", '{"to": "ada"}')

        assert done(engine, job_id) == {"sent": {"to": "ada"}}
        pattern = (
            rf"worker (\S+:{worker.process.pid}:\w+) serves email\.send, ledger\.post, nap in 2 slots; "
            r"health at http://127\.0\.0\.1:\d+/healthz"
        )
        named = re.fullmatch(pattern, announced)
        assert named, announced
        assert row(engine, job_id)["locked_by"] == named[1]
        started = time.monotonic()
        assert worker.end(signal.SIGTERM) == 0
        assert time.monotonic() - started < 5
        assert worker.out == announced + "\n"


def test_health_and_metrics_are_served_while_it_runs(shop: Path, engine: Engine) -> None:
    with RunningWorker("shop:queue", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        health, metrics = worker.url("/healthz"), worker.url("/metrics")
        done(engine, insert(engine, "email.send"))

        assert get(health)[0] == 200
        code, body = get(metrics)
        assert code == 200
        assert 'brooq_claimed_total{topic="email.send"} 1.0' in body
        worker.end()
        with pytest.raises(OSError, match="refused"):
            get(health)


@pytest.mark.parametrize("target", ["shop:make_queue", "shop:namespace.jobs"])
def test_a_function_or_an_attribute_can_give_the_queue(shop: Path, engine: Engine, target: str) -> None:
    with RunningWorker(target, "--listen", "off", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        assert worker.announcement().endswith("; no health address")
        done(engine, insert(engine, "email.send"))

        assert worker.end(signal.SIGINT) == 0


def test_the_console_script_finds_the_program_in_the_current_folder(shop: Path, engine: Engine) -> None:
    # As an installed script does, this one has its own folder on the path, and not the current one.
    command = command_after("import sys; sys.path = [at for at in sys.path if at]")

    answer = brooq_worker("run", "shop:nothing", cwd=shop, command=command, SHOP_URL=shown(engine.url))

    assert answer.code == 2
    assert answer.error == "the module 'shop' has no 'nothing'; its queues are called queue"


def test_the_program_can_be_in_another_folder_with_its_dotenv(shop: Path, engine: Engine) -> None:
    (shop / ".env").write_text(f"SHOP_URL={shown(engine.url)}\nQUEUE_WORKERS=5\n")
    (shop / "elsewhere").mkdir()

    with RunningWorker("shop:queue", "--app-dir", str(shop), cwd=shop / "elsewhere") as worker:
        assert " in 5 slots; " in worker.announcement()
        assert worker.end() == 0


def test_options_go_before_the_environment_before_dotenv_before_the_program(shop: Path, engine: Engine) -> None:
    program = SHOP.replace('poll_interval="100ms"', 'workers=9, prefetch=9, lease="9s", wakeup="poll"')
    (shop / "shop.py").write_text(program)
    (shop / ".env").write_text("QUEUE_WORKERS=8\nQUEUE_PREFETCH=8\nQUEUE_LEASE=8s\n")

    with RunningWorker(
        "shop:queue",
        *("--workers", "6", "--listen", "127.0.0.1:0"),
        cwd=shop,
        SHOP_URL=shown(engine.url),
        QUEUE_WORKERS="7",
        QUEUE_PREFETCH="7",
    ) as worker:
        assert " in 6 slots; " in worker.announcement()
        in_force = done(engine, insert(engine, "ledger.post"))
        assert worker.end() == 0

    assert in_force == {"workers": "6", "prefetch": "7", "lease": "0:00:08", "wakeup": "poll"}


def test_what_a_handler_has_set_for_itself_stays(shop: Path, engine: Engine) -> None:
    program = SHOP + '\n@queue.handler("fails", max_attempts=1)\ndef fails(claim): raise ValueError\n'
    program += '\n@queue.handler("fails.too")\ndef fails_too(claim): raise ValueError\n'
    (shop / "shop.py").write_text(program)

    with RunningWorker(
        "shop:queue", cwd=shop, SHOP_URL=shown(engine.url), QUEUE_MAX_ATTEMPTS="2", QUEUE_BACKOFF_BASE="10ms"
    ) as worker:
        worker.announcement()
        own, shared = insert(engine, "fails"), insert(engine, "fails.too")
        for job_id in (own, shared):
            eventually(lambda job_id=job_id: row(engine, job_id)["state"] == "dead")  # type: ignore[misc]

    assert row(engine, own)["attempts"] == 1
    assert row(engine, shared)["attempts"] == 2


def test_the_log_tells_time_level_and_message_at_the_level_that_was_asked_for(shop: Path, engine: Engine) -> None:
    url = shown(engine.url)
    with RunningWorker("shop:queue", cwd=shop, SHOP_URL=url) as worker:
        worker.announcement()
        worker.end()
        assert re.search(
            r"^\d{4}-\d\d-\d\d [\d:,]+ INFO    sqlalchemy_brooq\.worker: worker .+ serves", worker.err, re.MULTILINE
        )

    with RunningWorker("shop:queue", "--log-level", "WARNING", cwd=shop, SHOP_URL=url) as worker:
        worker.announcement()
        worker.end()
        assert worker.err == ""


def test_a_program_that_has_configured_logging_keeps_it(shop: Path, engine: Engine) -> None:
    (shop / "shop.py").write_text(f"import logging\nlogging.basicConfig(format='mine: %(message)s', level=20)\n{SHOP}")

    with RunningWorker("shop:queue", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        worker.announcement()
        worker.end()

        assert worker.err.startswith("mine: worker ")


def test_a_worker_whose_stdout_nobody_reads_works_and_ends_well(shop: Path, engine: Engine) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with RunningWorker("shop:queue", cwd=shop, stdout=writing, SHOP_URL=shown(engine.url)) as worker:
        os.close(writing)
        done(engine, insert(engine, "email.send"))

        assert worker.end() == 0
        assert "Broken" not in worker.err


def test_a_worker_with_stdout_closed_works_and_ends_well(shop: Path, engine: Engine) -> None:
    script = 'exec "$0" -m sqlalchemy_brooq run shop:queue --listen off >&-'
    with RunningWorker(cwd=shop, command=("bash", "-c", script, COMMAND[0]), SHOP_URL=shown(engine.url)) as worker:
        done(engine, insert(engine, "email.send"))

        assert worker.end() == 0


def test_a_queue_with_an_async_engine_is_run_as_well(shop: Path, engine: Engine) -> None:
    program = SHOP.replace("sa.create_engine", "create_async_engine")
    write(shop, f"from sqlalchemy.ext.asyncio import create_async_engine\n{program}")

    with RunningWorker("shop:queue", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        done(engine, insert(engine, "email.send"))
        done(engine, insert(engine, "ledger.post"))

        assert worker.end() == 0


def test_a_worker_does_without_alembic(shop: Path, engine: Engine) -> None:
    program = f"import sys\n{SHOP}"
    write(shop, program.replace('{"sent": claim.payload}', '[name for name in sys.modules if "alembic" in name]'))

    with RunningWorker("shop:queue", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        assert done(engine, insert(engine, "email.send")) == []
        worker.end()


# -- how it ends


def test_a_handler_that_ignores_the_end_makes_the_exit_code_1(shop: Path, engine: Engine) -> None:
    with RunningWorker("shop:queue", "--shutdown-grace", "0", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        worker.announcement()
        take_a_nap(engine, shop)

        assert worker.end() == 1
        assert worker.err.splitlines()[-1].startswith("Error: 1 handler ignored the end of the worker: ")


def test_a_second_signal_ends_the_grace_period(shop: Path, engine: Engine) -> None:
    with RunningWorker("shop:queue", "--shutdown-grace", "10m", cwd=shop, SHOP_URL=shown(engine.url)) as worker:
        worker.announcement()
        take_a_nap(engine, shop)
        worker.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.process.wait(1)

        assert worker.end(signal.SIGTERM) == 1


def test_it_gives_up_when_every_slot_is_taken_by_a_handler_that_hangs(shop: Path, engine: Engine) -> None:
    with RunningWorker(
        "shop:queue",
        *("--workers", "1", "--shutdown-grace", "0"),
        cwd=shop,
        SHOP_URL=shown(engine.url),
        QUEUE_WATCHDOG_GRACE="100ms",
    ) as worker:
        worker.announcement()
        insert(engine, "nap")

        assert worker.process.wait(20) == 1
        assert "Error: all slots (1) were taken by handlers that hang" in worker.err
        assert "Traceback" not in worker.err


# -- what a user can do wrong


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("shop", "'shop' is not MODULE:QUEUE: "),
        ("shop:", "'shop:' is not MODULE:QUEUE: "),
        ("./shop.py:queue", "'./shop.py:queue' is not MODULE:QUEUE: "),
        ("shap:queue", "there is no module 'shap' in "),
        ("shop.jobs:queue", "there is no module 'shop.jobs' in "),
        ("shop:queu", "the module 'shop' has no 'queu'; its queues are called queue"),
        ("shop:engine", "shop:engine is an object of the type Engine: MODULE:QUEUE names a Queue, or a function"),
        ("shop:send", "shop:send can't be called without arguments (missing a required argument: 'claim'): "),
        ("shop:make_none", "shop:make_none returned None: "),
        ("shop:make_async", "shop:make_async is an async def function"),
        ("shop:make_error", "shop:make_error can't be loaded: ValueError: two (shop.py, line 38); --log-level debug"),
        ("shop:make_exit", "shop:make_exit can't be loaded: SystemExit: 0 (shop.py, line 39); --log-level debug"),
    ],
)
def test_a_target_that_gives_no_queue_is_wrong_usage(tmp_path: Path, target: str, error: str) -> None:
    program = f"""{SHOP}
def make_none(): pass
async def make_async(): return queue
def make_error():
    raise ValueError("two\\nlines")
def make_exit(): raise SystemExit(0)
"""
    write(tmp_path, program)

    answer = brooq_worker("run", target, cwd=tmp_path, SHOP_URL=REFUSING)

    assert answer.code == 2
    assert answer.error.replace(f"{tmp_path}/", "").startswith(error)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import sqlalchemy_brook", "ModuleNotFoundError: No module named 'sqlalchemy_brook' (shop.py, line 1); --log"),
        ("import os; os.environ['SHOP']", "KeyError: 'SHOP' (shop.py, line 1); --log-level debug shows the traceback"),
        ("def queue(:", "SyntaxError: invalid syntax (shop.py, line 1); --log-level debug shows the traceback"),
        ("raise ValueError", "ValueError (shop.py, line 1); "),
        (SHOP.replace('os.environ["SHOP_URL"]', "'sqlite://'"), "TypeError: Queue needs PostgreSQL; this engine's"),
        (SHOP.replace("nap", "Nap"), "InvalidJob: "),
    ],
)
def test_a_program_that_raises_is_told_in_one_line_with_its_place(tmp_path: Path, program: str, error: str) -> None:
    write(tmp_path, program)

    answer = brooq_worker("run", "shop:queue", cwd=tmp_path, SHOP_URL=REFUSING)

    assert answer.code == 2
    assert answer.error.replace(f"{tmp_path}/", "").startswith(f"shop:queue can't be loaded: {error}")


def test_the_traceback_of_a_program_is_shown_on_demand(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"def boom():\n    raise ValueError('{REFUSING}')\nboom()\n")

    answer = brooq_worker("run", "shop:queue", "--log-level", "debug", cwd=tmp_path, traceback=True)

    assert answer.code == 2
    assert f'File "{tmp_path}/shop.py", line 2, in boom' in answer.err
    assert "S3cr" not in answer.err


def test_refused_settings_are_told_all_at_once_one_a_line(shop: Path) -> None:
    options = ("--lease", "30", "--wakeup", "never")

    answer = brooq_worker("run", "shop:queue", *options, cwd=shop, SHOP_URL=REFUSING, QUEUE_WORKERS="0")

    assert answer.code == 2
    assert [line.split(":")[1].strip() for line in answer.err.splitlines()] == ["QUEUE_WORKERS", "--wakeup", "--lease"]


def test_settings_that_the_program_itself_reads_are_told_all_at_once(tmp_path: Path) -> None:
    write(tmp_path, SHOP.replace('brooq.Config(poll_interval="100ms")', "brooq.Config.from_env()"))

    answer = brooq_worker("run", "shop:queue", cwd=tmp_path, QUEUE_WORKERS="0", QUEUE_LEASE="30", SHOP_URL=REFUSING)

    assert answer.code == 2
    assert [line.split(":")[1].strip() for line in answer.err.splitlines()] == ["QUEUE_WORKERS", "QUEUE_LEASE"]


def test_a_setting_that_disagrees_with_a_handler_names_the_handler(shop: Path) -> None:
    (shop / ".env").write_text("QUEUE_MAX_EXECUTION_TIMEOUT=50ms\nQUEUE_ATTEMPT_TIMEOUT=20ms\n")

    answer = brooq_worker("run", "shop:queue", cwd=shop, SHOP_URL=REFUSING)

    assert answer.code == 2
    assert answer.error.startswith(
        "handler for 'nap': attempt_timeout: 100ms is longer than max_execution_timeout, 50ms"
    )


def test_a_queue_without_handlers_is_wrong_usage(tmp_path: Path) -> None:
    program = SHOP.replace("@queue.handler", "@(lambda *_, **__: lambda function: function)")

    write(tmp_path, program)

    answer = brooq_worker("run", "shop:queue", cwd=tmp_path, SHOP_URL=REFUSING)

    assert answer.code == 2
    assert answer.error.startswith("shop:queue has no handlers: ")


@pytest.mark.parametrize(
    "options",
    [("--workers",), ("--colour", "red"), ("--log-level", "loud"), ("--app-dir", "/nowhere"), ("--listen", "8090")],
)
def test_a_wrong_option_is_wrong_usage(shop: Path, options: tuple[str, ...]) -> None:
    answer = brooq_worker("run", "shop:queue", *options, cwd=shop, SHOP_URL=REFUSING)

    assert answer.code == 2
    assert options[0] in answer.err.splitlines()[-1]


def test_a_busy_port_is_one_error_before_any_job_is_claimed(shop: Path, engine: Engine) -> None:
    job_id = insert(engine, "email.send")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"

        answer = brooq_worker("run", "shop:queue", "--listen", address, cwd=shop, SHOP_URL=shown(engine.url))

    assert answer.code == 2
    assert answer.error.startswith(f"can't listen on {address}: ")
    assert row(engine, job_id)["attempts"] == 0


# -- what can fail


def test_a_missing_table_is_one_error_with_the_commands(shop: Path, empty_database_url: URL) -> None:
    answer = brooq_worker("run", "shop:queue", cwd=shop, SHOP_URL=shown(empty_database_url))

    assert answer.code == 1
    assert answer.error.startswith(f"the table job is missing; this version needs its revision {REVISION}: ")
    assert "alembic upgrade head" in answer.error
    assert "brooq-worker migrate" in answer.error


def test_a_table_of_another_revision_is_one_error_with_the_commands(shop: Path, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"COMMENT ON TABLE job IS '{VERSION_MARK}brooq9999'"))

    answer = brooq_worker("run", "shop:queue", cwd=shop, SHOP_URL=shown(engine.url))

    assert answer.code == 1
    assert f"is of revision brooq9999; this version needs {REVISION}" in answer.error


def test_a_database_that_refuses_is_one_error_without_the_password(shop: Path, engine: Engine) -> None:
    url = engine.url.set(password="S3cr@t!%", database="nowhere")  # noqa: S106 - nobody's
    answer = brooq_worker("run", "shop:queue", "--log-level", "debug", cwd=shop, SHOP_URL=shown(url))

    assert answer.code == 1
    assert 'database "nowhere" does not exist' in answer.err.splitlines()[-1]
    assert "S3cr" not in answer.err


def test_a_server_that_is_not_there_yet_is_waited_for(shop: Path) -> None:
    with LocalPostgres(durable=False) as server:
        migrate(server.url())
        server.stop()
        with RunningWorker("shop:queue", cwd=shop, SHOP_URL=shown(server.url())) as worker:
            eventually(lambda: worker.err.count("can't be reached, next try in") > 1)
            server.start()
            engine = create_engine(server.url())
            done(engine, insert(engine, "email.send"))
            engine.dispose()
            assert worker.end() == 0


def test_the_password_is_not_in_what_is_said_while_waiting(shop: Path) -> None:
    with RunningWorker("shop:queue", "--log-level", "debug", cwd=shop, SHOP_URL=REFUSING) as worker:
        eventually(lambda: "refused" in worker.err)

    assert "S3cr" not in worker.err


def test_a_signal_ends_it_while_it_waits_for_a_server_that_says_nothing(shop: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://shop@127.0.0.1:{silent.getsockname()[1]}/shop"
        with RunningWorker("shop:queue", cwd=shop, SHOP_URL=url) as worker:
            silent.settimeout(20)
            with silent.accept()[0]:
                assert worker.end(signal.SIGTERM) == -signal.SIGTERM


def test_no_password_is_shown_by_a_worker_at_work(shop: Path, engine: Engine) -> None:
    # Trust lets any password in; what counts is that it is part of the address.
    url = engine.url.set(password="S3cr@t!%")  # noqa: S106 - as above
    with RunningWorker("shop:queue", "--log-level", "debug", cwd=shop, SHOP_URL=shown(url)) as worker:
        done(engine, insert(engine, "email.send"))
        served = get(worker.url("/healthz"))[1] + get(worker.url("/metrics"))[1]
        command_line = Path(f"/proc/{worker.process.pid}/cmdline").read_text()
        worker.end()

        assert "S3cr" not in served + command_line + worker.out + worker.err
