"""
``brooq-worker run --processes N``, as a user starts it: real workers under a supervisor.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import URL, Engine, text

from sqlalchemy_brooq.cli import main
from tests.commands import RunningWorker, brooq_worker, command_after, get, shown
from tests.queues import all_settled, states
from tests.servers import lives
from tests.waiting import eventually

SHOP = """
import os
import subprocess
import sys
import time

import sqlalchemy as sa
import sqlalchemy_brooq as brooq
from prometheus_client import Counter

engine = sa.create_engine(os.environ["SHOP_URL"])
queue = brooq.Queue(engine, brooq.Config(poll_interval="50ms", lease="2s", reaper_period="200ms", shutdown_grace="10s"))
sold = Counter("shop_sold", "Of the program itself.")
EDITION = 1


@queue.handler("sell", keep_result=True)
def sell(claim):
    sold.inc()
    time.sleep(0.01)
    return [os.getpid(), EDITION]


@queue.handler("nap", keep_result=True, max_attempts=50)
def nap(claim):
    while not os.path.exists("woken"):
        time.sleep(0.01)
    return [os.getpid(), claim.attempt]


@queue.handler("look", keep_result=True)
def look(claim):
    return [os.getpid(), "BROOQ_SUPERVISOR" in os.environ]
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """
    A folder with a program in it.
    """
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def running(shop: Path, engine: Engine, *options: str, processes: int = 2, **environ: Any) -> RunningWorker:
    return RunningWorker(
        "shop:queue", "--processes", str(processes), *options, cwd=shop, SHOP_URL=shown(engine.url), **environ
    )


def insert(engine: Engine, topic: str, number: int = 1) -> None:
    with engine.begin() as connection:
        statement = "INSERT INTO job (topic) SELECT :topic FROM generate_series(1, :number)"
        connection.execute(text(statement), {"topic": topic, "number": number})


def results(engine: Engine, topic: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT result FROM job WHERE topic = :topic"), {"topic": topic}))


def holders(engine: Engine) -> list[int]:
    """
    Return the pids of the workers that hold jobs.
    """
    with engine.connect() as connection:
        held = connection.scalars(text("SELECT locked_by FROM job WHERE state = 'processing'"))
        return [int(holder.split(":")[1]) for holder in held]


def health(worker: RunningWorker) -> tuple[int, dict[str, Any]]:
    code, body = get(worker.url("/healthz"))
    return code, json.loads(body)


def pids(worker: RunningWorker) -> list[int]:
    return [process["pid"] for process in health(worker)[1]["processes"]]


def metrics(worker: RunningWorker) -> dict[str, float]:
    """
    Return what a scrape shows, by name and label values, in the order of the labels' names.
    """
    code, body = get(worker.url("/metrics"))
    assert code == 200, body
    return {
        " ".join([sample.name, *(sample.labels[label] for label in sorted(sample.labels))]): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


def test_all_processes_work_and_all_are_served_for_at_one_address(shop: Path, engine: Engine) -> None:
    insert(engine, "nobody.serves.it", 7)
    with running(shop, engine, processes=3, QUEUE_API_TOKEN="s3cr3t") as worker:  # noqa: S106 - a test's
        pattern = r"3 processes serve look, nap, sell in 6 slots; health at http://127\.0\.0\.1:\d+/healthz"
        assert re.fullmatch(pattern, worker.announcement())
        workers = pids(worker)
        insert(engine, "sell", 300)
        eventually(lambda: states(engine) == {"done": 300, "pending": 7}, 30.0)

        assert {pid for pid, _ in results(engine, "sell")} == set(workers)
        code, report = health(worker)
        assert (code, report["healthy"], report["database"], report["slots"]) == (200, True, True, 6)
        assert {process["worker"].split(":")[1] for process in report["processes"]} == set(map(str, workers))
        found = metrics(worker)
        assert found["brooq_settle_total done sell"] == found["brooq_claimed_total sell"] == 300
        assert found["brooq_attempt_duration_seconds_count sell"] == found["shop_sold_total"] == 300
        assert found["brooq_workers"] == 6
        assert found["brooq_worker_busy sell"] == 0
        assert found["brooq_http_requests_total 200 /healthz"] >= 2
        assert found["brooq_jobs pending nobody.serves.it"] == 7, "of the whole table, so not a sum"
        assert get(worker.url("/elsewhere"))[0] == 401
        insert(engine, "look")
        eventually(lambda: states(engine) == {"done": 301, "pending": 7})
        assert [found for _, found in results(engine, "look")] == [False], "its own processes would take it for theirs"
        command_line = Path(f"/proc/{worker.process.pid}/cmdline").read_text()
        assert worker.end(signal.SIGTERM) == 0
        assert len(worker.out.splitlines()) == 1
        assert "s3cr3t" not in command_line + worker.out + worker.err
    assert not any(map(lives, workers))


def test_a_killed_process_is_replaced_its_counts_stay_and_its_jobs_run_again(shop: Path, engine: Engine) -> None:
    with running(shop, engine, "--workers", "1") as worker:
        worker.announcement()
        insert(engine, "sell", 100)
        eventually(all_settled(engine), 20)
        insert(engine, "nap", 2)
        (killed, survivor) = sorted(eventually(lambda: found if len(found := holders(engine)) == 2 else None) or ())
        assert metrics(worker)["brooq_worker_busy nap"] == 2
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: health(worker)[0] == 503)
        found = metrics(worker)

        assert found["brooq_settle_total done sell"] == found["shop_sold_total"] == 100
        assert found["brooq_workers"] == found["brooq_worker_busy nap"] == 1
        eventually(lambda: health(worker)[0] == 200)
        _, report = health(worker)
        assert sorted(process["restarts"] for process in report["processes"]) == [0, 1]
        eventually(lambda: len(set(holders(engine)) - {killed}) == 2, message="the job did not run again")
        (shop / "woken").touch()
        eventually(all_settled(engine))
        assert sorted(attempt for _, attempt in results(engine, "nap")) == [1, 2]
        assert survivor in {pid for pid, _ in results(engine, "nap")}
        found = metrics(worker)
        assert (found["brooq_claimed_total nap"], found["brooq_requeued_total lease_expired nap"]) == (3, 1)
        assert worker.end() == 0


@pytest.mark.parametrize("kernel_tells", [True, False])
def test_no_process_outlives_a_killed_supervisor_but_to_finish_its_work(
    shop: Path, engine: Engine, kernel_tells: bool
) -> None:
    elsewhere = "import sqlalchemy_brooq.cli.processes as module; module._end_with_parent = lambda _: None"
    command = command_after("" if kernel_tells else elsewhere)
    with RunningWorker(
        *("run", "shop:queue", "--processes", "2"), cwd=shop, command=command, SHOP_URL=shown(engine.url)
    ) as worker:
        worker.announcement()
        insert(engine, "nap", 2)
        eventually(lambda: len(holders(engine)) == 2)
        workers = pids(worker)
        worker.process.kill()
        worker.process.wait()
        eventually(lambda: worker.err.count(" is stopping; ") == 2)
        insert(engine, "sell")
        (shop / "woken").touch()

        eventually(lambda: not any(map(lives, workers)), message=worker.err)
    assert states(engine) == {"done": 2, "pending": 1}


def test_a_stop_that_reaches_the_workers_twice_leaves_them_their_grace(shop: Path, engine: Engine) -> None:
    with running(shop, engine) as worker:
        worker.announcement()
        insert(engine, "nap", 2)
        eventually(lambda: len(holders(engine)) == 2)
        for pid in [worker.process.pid, *pids(worker)]:  # as systemd does by default
            os.kill(pid, signal.SIGTERM)
        eventually(lambda: worker.err.count(" is stopping; ") == 2)
        time.sleep(0.5)  # there is nothing to wait for: a grace that was cut short would end them within this time
        assert len(holders(engine)) == 2
        (shop / "woken").touch()

        assert worker.process.wait(20) == 0
    assert states(engine) == {"done": 2}


def test_a_second_signal_ends_their_grace(shop: Path, engine: Engine) -> None:
    with running(shop, engine, "--workers", "1", "--shutdown-grace", "10m") as worker:
        worker.announcement()
        insert(engine, "nap", 2)
        eventually(lambda: len(holders(engine)) == 2)
        worker.process.send_signal(signal.SIGTERM)
        eventually(lambda: worker.err.count(" is stopping; ") == 2)

        assert worker.end(signal.SIGTERM) == 1
        assert worker.err.count("ignored the end of the worker: ") == 2


def test_sighup_brings_in_a_new_edition_without_a_moment_of_bad_health(shop: Path, engine: Engine) -> None:
    with running(shop, engine) as worker:
        worker.announcement()
        old = pids(worker)
        (shop / "shop.py").write_text(SHOP.replace("EDITION = 1", "EDITION = 'the second'"))
        worker.process.send_signal(signal.SIGHUP)
        ill = []

        def replaced() -> bool:
            code, report = health(worker)
            if code != 200:
                ill.append(report)
            return not any(map(lives, old))

        eventually(replaced, 20)
        eventually(lambda: "the rolling restart has reached all processes" in worker.err)
        insert(engine, "sell", 20)
        eventually(all_settled(engine))
        assert ill == []
        assert {edition for _, edition in results(engine, "sell")} == {"the second"}
        assert metrics(worker)["brooq_workers"] == 4
        assert worker.end() == 0


def test_it_works_with_every_standard_stream_closed_but_stderr(shop: Path, engine: Engine) -> None:
    (shop / "shop.py").write_text(SHOP + "\nprint('what goes nowhere')\n")
    script = 'exec "$0" -m sqlalchemy_brooq run shop:queue --processes 2 <&- >&-'
    with RunningWorker(cwd=shop, command=("bash", "-c", script, sys.executable), SHOP_URL=shown(engine.url)) as worker:
        eventually(lambda: worker.err.count(" serves ") == 2, 30.0)
        insert(engine, "sell", 10)
        eventually(all_settled(engine))
        # Or a connection would be what the programs of handlers print to.
        assert {Path(f"/proc/{pid}/fd/1").readlink() for pid, _ in results(engine, "sell")} == {Path(os.devnull)}

        assert worker.end() == 0


def test_the_supervisors_lines_have_the_form_that_was_asked_for(shop: Path, engine: Engine) -> None:
    with running(shop, engine, "--log-format", "json") as worker:
        worker.announcement()
        assert worker.end() == 0

        lines = [json.loads(line) for line in worker.err.splitlines()]
        said = {(line["logger"], line["level"], line["message"]) for line in lines}
        assert ("sqlalchemy_brooq.supervisor", "INFO", "2 processes are to stop") in said
        assert all(line["time"].endswith("+00:00") for line in lines)


def test_a_rolling_restart_into_a_broken_program_changes_nothing(shop: Path, engine: Engine) -> None:
    with running(shop, engine) as worker:
        worker.announcement()
        old = pids(worker)
        (shop / "shop.py").write_text("import nothing_of_this_name")
        worker.process.send_signal(signal.SIGHUP)

        eventually(lambda: "the rolling restart is given up" in worker.err)
        assert "Error: shop:queue can't be loaded: ModuleNotFoundError: No module named 'nothing_of" in worker.err
        assert (pids(worker), health(worker)[0]) == (old, 200)
        assert worker.end() == 0


# -- what can go wrong


@pytest.mark.parametrize(
    ("target", "options", "error"),
    [("shap:queue", (), "there is no module 'shap' in "), ("shop:queue", ("--listen", "0.0.0.0:0"), "--listen: ")],
)
def test_wrong_usage_is_told_once(shop: Path, target: str, options: tuple[str, ...], error: str) -> None:
    answer = brooq_worker("run", target, "--processes", "3", *options, cwd=shop, SHOP_URL="postgresql+psycopg://no@no/")

    assert answer.code == 2
    assert answer.error.startswith(error)


@pytest.mark.parametrize("number", ["0", "-1", "two", ""])
def test_a_number_of_processes_that_is_none_is_wrong_usage(number: str) -> None:
    answer = CliRunner().invoke(main, ["run", "shop:queue", f"--processes={number}"])

    assert answer.exit_code == 2
    assert "--processes" in answer.output.splitlines()[-1]


def test_a_busy_port_is_one_error_before_any_job_is_claimed(shop: Path, engine: Engine) -> None:
    insert(engine, "sell")
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        arguments = ("run", "shop:queue", "--processes", "2", "--listen", address)
        answer = brooq_worker(*arguments, cwd=shop, SHOP_URL=shown(engine.url))

    assert answer.code == 2
    assert answer.error.startswith(f"can't listen on {address}: ")
    assert states(engine) == {"pending": 1}


def test_a_missing_table_is_told_once(shop: Path, empty_database_url: URL) -> None:
    answer = brooq_worker("run", "shop:queue", "--processes", "2", cwd=shop, SHOP_URL=shown(empty_database_url))

    assert answer.code == 1
    assert answer.error.startswith("the table job is missing; ")


def test_a_table_that_is_migrated_under_the_workers_ends_all_at_the_next_start(shop: Path, engine: Engine) -> None:
    with running(shop, engine) as worker:
        worker.announcement()
        with engine.begin() as connection:
            connection.execute(text("COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq9999'"))
        os.kill(pids(worker)[0], signal.SIGKILL)

        assert worker.process.wait(20) == 1
        assert worker.err.count("is of revision brooq9999") == 1


def test_a_program_can_not_become_a_supervisor_by_calling_the_command() -> None:
    answer = CliRunner().invoke(main, ["run", "shop:queue", "--processes", "2"])

    assert answer.exit_code == 2
    assert "--processes is for the command line" in answer.output


@pytest.mark.parametrize("value", ["1", "1:2:3", "1:-2", "1:2"])
def test_a_variable_that_no_supervisor_set_is_refused(value: str) -> None:
    answer = CliRunner().invoke(main, ["run", "shop:queue"], env={"BROOQ_SUPERVISOR": value})

    assert answer.exit_code == 2
    assert answer.output.startswith(f"Error: BROOQ_SUPERVISOR is '{value}', which no supervisor said: ")
