"""
The supervisor alone: its workers are small programs that behave as badly as a test wants.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from sqlalchemy_brooq.supervisor.crew import FIRST_PAUSE, LONGEST_PAUSE, backoff, ending
from tests.commands import get
from tests.crews import RunningCrew
from tests.servers import lives
from tests.waiting import eventually

WORKS = "works()"
#: Ends when it is told to, and tells of it first; needs a moment.
TELLS = """
def stop(*_):
    told("stopping", os.getpid())
    time.sleep(0.2)
    told("stopped", os.getpid())
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
works()
"""

#: Runs the command that follows in a terminal of its own, until there is a file "hang up".
IN_A_TERMINAL = (
    sys.executable,
    "-c",
    """
import os, pty, sys, time
errors = os.dup(2)
pid, terminal = pty.fork()
if not pid:
    os.dup2(errors, 2)
    with open("told", "a") as file:
        print("supervisor", os.getpid(), file=file)
    os.execv(sys.argv[1], sys.argv[1:])
while not os.path.exists("hang up"):
    time.sleep(0.01)
os.close(terminal)
os.waitpid(pid, 0)
""",
)


def ended(*pids: int) -> bool:
    return not any(map(lives, pids))


# -- starting and stopping


def test_workers_are_started_and_announced_once_all_are_ready(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, WORKS, 3) as crew:
        assert crew.announcement() == "3 processes serve t in 3 slots; no health address"
        pids = crew.pids(number=3)

        assert crew.end(signal.SIGTERM) == 0
        assert ended(*pids)


def test_the_others_are_started_when_the_first_is_ready(tmp_path: Path) -> None:
    code = """
    settings()
    while not os.path.exists("open"):
        time.sleep(0.01)
    ready()
    answers()
    """
    with RunningCrew(tmp_path, code, 3) as crew:
        crew.pids("started", 1)
        time.sleep(0.3)  # there is nothing to wait for: others that don't wait would have started within this time
        assert len(crew.told("started")) == 1

        (tmp_path / "open").touch()
        crew.pids(number=3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_and_its_effect_waited_for(tmp_path: Path, number: int) -> None:
    with RunningCrew(tmp_path, TELLS) as crew:
        pids = crew.pids()

        assert crew.end(number) == 0
        assert sorted(crew.told("stopped")) == sorted(map(str, pids))


def test_a_second_signal_is_passed_on_as_a_word_to_hurry(tmp_path: Path) -> None:
    code = """
    signal.signal(signal.SIGTERM, lambda *_: told("signal", os.getpid()))
    settings(grace=600)
    ready()
    for line in lines:
        told(json.loads(line)["say"], os.getpid())
        os._exit(1)
    """
    with RunningCrew(tmp_path, code) as crew:
        crew.pids()
        crew.process.send_signal(signal.SIGTERM)
        eventually(lambda: len(crew.told("signal")) == 2)
        assert crew.told("hurry") == []

        assert crew.end(signal.SIGTERM) == 1
        assert len(crew.told("hurry")) == len(crew.told("signal")) == 2


def test_a_worker_that_ignores_the_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nworks(grace=0.4)"
    with RunningCrew(tmp_path, code, changes="process.PATIENCE = 0.2") as crew:
        pids = crew.pids()
        began = time.monotonic()

        assert crew.end() == 1
        assert time.monotonic() - began >= 0.6
        assert ended(*pids)
        assert crew.err.count("ignores that it is to stop: it is killed") == 2


def test_workers_that_have_not_started_yet_end_at_the_signal(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, "settings()\ntime.sleep(600)") as crew:
        crew.pids("started", 1)

        assert crew.end() == 0


# -- workers that end by themselves


def test_a_worker_that_is_killed_is_replaced_at_once(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, WORKS, changes="crew.STEADY = 0") as crew:
        crew.announcement()
        killed = crew.pids()[0]
        os.kill(killed, signal.SIGKILL)

        assert killed not in crew.pids(number=3)[2:]
        assert f"(pid {killed}) was killed by SIGKILL: another one is started" in crew.err
        assert crew.end() == 0


def test_one_that_dies_at_once_again_and_again_is_started_ever_more_rarely(tmp_path: Path) -> None:
    code = """
    if os.path.exists("broken"):
        os._exit(9)
    works()
    """
    changes = "crew.FIRST_PAUSE = 0.2; crew.LONGEST_PAUSE = 0.8"
    with RunningCrew(tmp_path, code, changes=changes) as crew:
        crew.announcement()
        (tmp_path / "broken").touch()
        os.kill(crew.pids()[0], signal.SIGKILL)
        began = time.monotonic()
        eventually(lambda: len(crew.told("started")) == 6)

        # At the least 0.15 + 0.3 + 0.6 + 0.6 s.
        assert time.monotonic() - began > 1.6
        (tmp_path / "broken").unlink()
        crew.pids(number=3)
        assert crew.end() == 0


def test_the_pause_doubles_up_to_a_minute() -> None:
    assert [backoff(failures) for failures in (1, 2, 3)] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert backoff(1_000) == LONGEST_PAUSE == 60.0


def test_a_crash_before_the_first_start_is_retried(tmp_path: Path) -> None:
    code = """
    if len(open("told").readlines()) < 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    works()
    """
    with RunningCrew(tmp_path, code, changes="crew.FIRST_PAUSE = 0.1") as crew:
        crew.announcement()

        assert "was killed by SIGSEGV: another one is started in 0.1 s" in crew.err


@pytest.mark.parametrize("code", [1, 2])
def test_a_first_worker_that_ends_with_its_error_is_the_end_and_nobody_says_more(tmp_path: Path, code: int) -> None:
    with RunningCrew(tmp_path, f"sys.exit(print('Error: mine', file=sys.stderr) or {code})", 3) as crew:
        assert crew.process.wait(10) == code
        assert crew.err == "Error: mine\n"
        assert len(crew.told("started")) == 1


@pytest.mark.parametrize("last_words", ["sys.exit(2)", "say('final')\nsys.exit(1)"])
def test_an_error_that_a_new_start_would_not_mend_ends_all(tmp_path: Path, last_words: str) -> None:
    broken = f"if os.path.exists('broken'):\n    {last_words.replace(chr(10), chr(10) + '    ')}\n"
    with RunningCrew(tmp_path, broken + TELLS, changes="crew.STEADY = 0") as crew:
        crew.announcement()
        (tmp_path / "broken").touch()
        killed, other = crew.pids()
        os.kill(killed, signal.SIGKILL)

        assert crew.process.wait(10) == (2 if "2" in last_words else 1)
        assert crew.told("stopped") == [str(other)]
        assert "and so would any other: all are to stop" in crew.err


def test_an_ordinary_failure_of_a_later_start_is_retried(tmp_path: Path) -> None:
    code = "if len(open('told').readlines()) == 5:\n    sys.exit(1)\nworks()"
    with RunningCrew(tmp_path, code, changes="crew.STEADY = 0") as crew:
        crew.announcement()
        os.kill(crew.pids()[0], signal.SIGKILL)

        crew.pids(number=3)
        assert "ended with exit code 1: another one is started" in crew.err


def test_a_program_that_is_gone_is_tried_again(tmp_path: Path) -> None:
    changes = f"import sys, os; sys.executable = {str(tmp_path / 'python')!r}; crew.FIRST_PAUSE = 0.1"
    with RunningCrew(tmp_path, WORKS, changes=changes) as crew:
        eventually(lambda: "process 0 can't be started, next try in" in crew.err)
        (tmp_path / "python").symlink_to(os.path.realpath("/proc/self/exe"))

        crew.announcement()


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with exit code 0"), (-9, "was killed by SIGKILL"), (-40, "was killed by signal 40")],
)
def test_an_ending_in_words(code: int, words: str) -> None:
    assert ending(code) == words


# -- the supervisor's own end


def test_a_supervisor_that_is_killed_is_noticed_by_its_workers(tmp_path: Path) -> None:
    # They don't ask the kernel for a signal, as the library's do on Linux: the end of the wire must do.
    with RunningCrew(tmp_path, WORKS) as crew:
        pids = crew.pids()
        crew.process.kill()

        eventually(lambda: ended(*pids))


def test_workers_are_out_of_reach_of_the_terminals_ctrl_c(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, WORKS) as crew:
        group = os.getpgid(crew.process.pid)

        assert group not in {os.getpgid(pid) for pid in crew.pids()}


def test_it_reaps_what_is_left_to_it_as_the_first_process_of_a_container_must(tmp_path: Path) -> None:
    code = """
    if not os.fork():
        stranger = os.fork()
        if stranger:
            told("stranger", stranger)
            os._exit(0)
        time.sleep(0.2)
        os._exit(0)
    works()
    """
    subreaper = "import ctypes; ctypes.CDLL(None).prctl(36, 1)"
    with RunningCrew(tmp_path, code, 1, changes=subreaper) as crew:
        (stranger,) = crew.pids("stranger", 1)

        eventually(lambda: not Path(f"/proc/{stranger}").exists())


def test_it_imports_nothing_that_a_worker_needs_and_it_does_not(tmp_path: Path) -> None:
    changes = "import atexit; atexit.register(lambda: open('modules', 'w').write('\\n'.join(sys.modules)))"
    code = WORKS.replace("()", "(listen=['127.0.0.1', 0])")
    with RunningCrew(tmp_path, code, changes=changes) as crew:
        get(crew.url("/metrics"))
        get(crew.url("/healthz"))
        assert crew.end() == 0

    imported = {name.partition(".")[0] for name in (tmp_path / "modules").read_text().split()}
    assert "prometheus_client" in imported
    assert imported & {"sqlalchemy", "alembic", "click", "psycopg", "asyncio"} == set()


# -- rolling restart


def test_sighup_replaces_one_after_the_other_each_by_one_that_is_ready(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, TELLS, 3) as crew:
        old = crew.pids(number=3)
        crew.announcement()
        crew.process.send_signal(signal.SIGHUP)
        new = crew.pids(number=6)[3:]
        eventually(lambda: len(crew.told("stopped")) == 3)

        assert not set(old) & set(new)
        steps = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
        assert [word for word, _ in steps[6:]] == ["started", "ready", "stopping", "stopped"] * 3
        eventually(lambda: ended(*old))
        eventually(lambda: "the rolling restart has reached all processes" in crew.err)
        assert crew.end() == 0
        assert sorted(crew.told("stopped")[3:]) == sorted(map(str, new))


def test_a_rolling_restart_whose_new_process_fails_leaves_the_old_ones_at_work(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, WORKS) as crew:
        old = crew.pids()
        crew.announcement()
        crew.change("sys.exit(2)")
        crew.process.send_signal(signal.SIGHUP)

        eventually(lambda: "the rolling restart is given up, and who ran goes on: process 0 (pid " in crew.err)
        assert "ended with exit code 2 before it had started" in crew.err
        assert all(map(lives, old))
        assert len(crew.told("started")) == 3
        crew.change(WORKS)
        crew.process.send_signal(signal.SIGHUP)
        crew.pids(number=4)
        eventually(lambda: ended(*old))
        assert crew.end() == 0


def test_a_second_sighup_replaces_all_again_also_one_that_hangs(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, WORKS) as crew:
        crew.announcement()
        crew.change("settings()\ntime.sleep(600)")
        crew.process.send_signal(signal.SIGHUP)
        hanging = crew.pids("started", 3)[2]
        crew.change(WORKS)
        crew.process.send_signal(signal.SIGHUP)

        new = crew.pids(number=4)[2:]
        eventually(lambda: "the rolling restart has reached all processes" in crew.err)
        eventually(lambda: ended(hanging, *crew.pids()[:2]))
        assert all(map(lives, new))
        assert crew.end() == 0


def test_many_sighups_at_once_end_in_one_working_crew(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, WORKS, 3) as crew:
        crew.announcement()
        for _ in range(20):
            crew.process.send_signal(signal.SIGHUP)
            time.sleep(0.02)

        eventually(lambda: "has reached all processes" in crew.err)
        eventually(lambda: sum(map(lives, crew.pids("started"))) == 3)
        assert crew.end() == 0


def test_one_that_dies_while_its_successor_starts_is_succeeded_by_it(tmp_path: Path) -> None:
    slow = "settings()\nwhile not os.path.exists('open'):\n    time.sleep(0.01)\nready()\nanswers()"
    with RunningCrew(tmp_path, WORKS) as crew:
        old = crew.pids()
        crew.announcement()
        crew.change(slow)
        crew.process.send_signal(signal.SIGHUP)
        crew.pids("started", 3)
        os.kill(old[0], signal.SIGKILL)
        eventually(lambda: "the one that was to replace it does so at once" in crew.err)
        (tmp_path / "open").touch()

        crew.pids(number=4)
        eventually(lambda: ended(*old))
        assert len(crew.told("started")) == 4
        assert crew.end() == 0


def test_a_terminal_that_goes_away_is_the_end_and_no_rolling_restart(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, TELLS, within=IN_A_TERMINAL) as crew:
        pids = crew.pids()
        (supervisor,) = crew.pids("supervisor", 1)
        (tmp_path / "hang up").touch()

        eventually(lambda: ended(supervisor, *pids))
    assert sorted(crew.told("stopped")) == sorted(map(str, pids))
    assert "rolling" not in crew.err


# -- the service surface


def listening(code: str = WORKS) -> str:
    return code.replace("works()", "works(listen=['127.0.0.1', 0])")


def test_health_is_that_of_all(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, listening()) as crew:
        code, body = get(crew.url("/healthz"))

        assert code == 200
        assert '"leases": 4,\n  "slots": 2,' in body
        assert all(f'"pid": {pid}' in body for pid in crew.pids())


def test_health_is_bad_while_one_is_missing(tmp_path: Path) -> None:
    with RunningCrew(tmp_path, listening()) as crew:
        url = crew.url("/healthz")
        assert get(url)[0] == 200
        os.kill(crew.pids()[0], signal.SIGKILL)

        eventually(lambda: get(url)[0] == 503)
        assert '"reason": "it ended; another one is started in ' in get(url)[1]
        crew.pids(number=3)
        eventually(lambda: get(url)[0] == 200)


def test_health_is_bad_while_one_is_not_well(tmp_path: Path) -> None:
    code = """
    settings(listen=["127.0.0.1", 0])
    ready()
    answers(healthy=len(open("told").readlines()) > 2)
    """
    with RunningCrew(tmp_path, code) as crew:
        status, body = get(crew.url("/healthz"))

        assert status == 503
        assert body.count('"healthy": true') == 1


def test_a_worker_that_does_not_answer_is_not_well(tmp_path: Path) -> None:
    code = "settings(listen=['127.0.0.1', 0])\nready()\ntime.sleep(600)"
    with RunningCrew(tmp_path, code, changes="surface.PATIENCE = 0.2") as crew:
        status, body = get(crew.url("/healthz"))

        assert status == 503
        assert body.count("it did not answer in time") == 2
        for _ in range(3):
            get(crew.url("/healthz"))
        assert crew.end() == 0


def test_a_worker_that_closes_its_end_is_not_well_and_still_looked_after(tmp_path: Path) -> None:
    code = "settings(listen=['127.0.0.1', 0])\nready()\nlines.close()\nwire.close()\ntime.sleep(600)"
    with RunningCrew(tmp_path, code, changes="surface.PATIENCE = 0.2") as crew:
        assert get(crew.url("/healthz"))[0] == 503
        assert crew.end() == 0


def test_a_busy_address_is_one_error_before_any_worker_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with RunningCrew(tmp_path, f"works(listen=['127.0.0.1', {port}])", 3) as crew:
            assert crew.process.wait(10) == 2

    assert crew.err.startswith(f"Error: can't listen on 127.0.0.1:{port}: ")
    assert len(crew.err.splitlines()) == 1
    assert crew.told("ready") == []
    assert ended(*crew.pids("started", 1))
