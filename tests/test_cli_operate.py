"""
``brooq-worker cancel`` and ``replay``: counts, questions, exit codes, and how they are broken off.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, text

from sqlalchemy_brooq import operations
from tests.commands import Terminal, answered, shown
from tests.queues import states
from tests.test_browse import put
from tests.waiting import row

NOWHERE = UUID(int=7)


def test_jobs_are_canceled_by_their_ids_without_a_question(engine: Engine, database_url: URL) -> None:
    ids = [*put(engine, "pending"), *put(engine, "processing"), *put(engine, "done")]

    answer = answered("cancel", *map(str, [*ids, ids[0]]), url=database_url)

    assert (answer.code, answer.out, answer.err) == (0, "canceled 2 jobs; 1 over already\n", "")
    assert states(engine) == {"canceled": 2, "done": 1}


def test_a_job_that_was_not_found_is_named_and_the_others_are_canceled(engine: Engine, database_url: URL) -> None:
    (job_id,) = put(engine, "pending")

    answer = answered("cancel", str(NOWHERE), str(job_id), url=database_url)

    assert answer.code == 1
    assert answer.out == "canceled 1 job; 1 not found\n"
    assert answer.err.startswith(f"Error: no job has the id {NOWHERE}: ")


def test_a_job_that_somebody_holds_is_a_failure(
    engine: Engine, database_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "PAUSES", ())
    ids = put(engine, "pending", count=2)

    with engine.begin() as consumer:
        consumer.execute(text("SELECT id FROM job WHERE id = :id FOR UPDATE"), {"id": ids[0]})
        answer = answered("cancel", *map(str, ids), url=database_url)

    assert (answer.code, answer.out) == (1, "canceled 1 job; 1 held by others\n")
    assert answer.err.startswith("Error: 1 job held by transactions of others")


@pytest.mark.parametrize(
    ("arguments", "would"),
    [
        (("cancel", "--topic", "t"), "cancel 4 jobs (3 pending, 1 processing)"),
        (("cancel", "--state", "pending"), "cancel 3 jobs (3 pending)"),
        (("replay", "--topic", "t", "--state", "dead"), "replay 2 jobs (2 dead)"),
    ],
)
def test_what_a_filter_means_is_counted_and_left_alone_where_nobody_can_be_asked(
    engine: Engine, database_url: URL, arguments: tuple[str, ...], would: str
) -> None:
    put(engine, "pending", count=3)
    put(engine, "processing")
    put(engine, "dead", count=2)
    before = states(engine)

    answer = answered(*arguments, url=database_url)

    assert answer.code == 2
    assert (
        answer.error
        == f"this would {would}, and nobody can be asked here: nothing was changed; with --yes it goes ahead"
    )
    assert states(engine) == before


def test_with_yes_a_filter_needs_no_question(engine: Engine, database_url: URL) -> None:
    put(engine, "pending", count=3)
    put(engine, "pending", topic="other")
    put(engine, "dead", count=2)

    canceled = answered("cancel", "--topic", "t", "--yes", url=database_url)
    replayed = answered("replay", "--state", "dead", "-y", url=database_url)
    again = answered("replay", "--state", "dead", "-y", url=database_url)
    none = answered("cancel", "--topic", "nowhere", url=database_url)

    assert (canceled.code, canceled.out) == (0, "canceled 3 jobs\n")
    assert (replayed.code, replayed.out) == (0, "replayed 2 jobs\n")
    assert (again.code, again.out) == (0, "replayed 0 jobs; 2 replayed before\n")
    assert (none.code, none.out) == (0, "canceled 0 jobs\n")
    assert states(engine) == {"canceled": 3, "pending": 3, "dead": 2}


def test_in_a_terminal_one_is_asked_and_sees_the_work_go_on(engine: Engine, database_url: URL, tmp_path: Path) -> None:
    put(engine, "pending", count=1_200)
    address: dict[str, Any] = {"DATABASE_URL": shown(database_url)}

    for answer, code, said in (("n\n", 1, "Error: nothing was changed"), ("y\n", 0, "canceled 1,200 jobs")):
        with Terminal("cancel", "--topic", "t", cwd=tmp_path, **address) as terminal:
            terminal.shows("Cancel 1,200 jobs (1,200 pending)? [y/N]: ")
            assert states(engine) == {"pending": 1_200}
            terminal.types(answer)
            assert terminal.ends() == code
        assert said in terminal.text
    assert re.search(r"canceling  \[#+\]  1200/1200", terminal.text)
    assert states(engine) == {"canceled": 1_200}


def test_ctrl_c_breaks_it_off_between_two_slices_and_says_how_far_it_came(
    engine: Engine, database_url: URL, tmp_path: Path
) -> None:
    ids = sorted(put(engine, "pending", count=600))

    with engine.begin() as consumer:
        consumer.execute(text("SELECT id FROM job WHERE id = :id FOR UPDATE"), {"id": ids[0]})
        with Terminal("cancel", "--topic", "t", "-y", cwd=tmp_path, DATABASE_URL=shown(database_url)) as terminal:
            terminal.shows("599/600")
            assert states(engine)["canceled"] == 599
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.ends() == 1
    assert "broken off: canceled 599 jobs" in terminal.text
    assert "Aborted!" in terminal.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cancel",), "say which jobs to cancel: by their ids, or by options such as --topic"),
        (("replay", "--yes"), "say which jobs to replay"),
        (("cancel", str(NOWHERE), "--topic", "t"), "give the ids of jobs, or options that say which, but not both"),
        (("cancel", "--state", "done"), "a job that is over can't be canceled"),
        (("cancel", "--ended-within", "1h"), "a job that is over can't be canceled"),
        (("replay", "--topic", "t"), "say which jobs that are over: --state dead, canceled or done"),
        (("replay", "--state", "dead", "--state", "failed"), "say which jobs that are over"),
    ],
)
def test_wrong_usage_changes_nothing(engine: Engine, database_url: URL, arguments: tuple[str, ...], said: str) -> None:
    put(engine, "pending")
    put(engine, "dead")

    answer = answered(*arguments, url=database_url)

    assert answer.code == 2
    assert said in answer.err
    assert states(engine) == {"pending": 1, "dead": 1}


def test_a_replay_by_id_tells_the_new_id(engine: Engine, database_url: URL) -> None:
    (job_id,) = put(engine, "canceled")

    first = answered("replay", str(job_id), url=database_url)
    second = answered("replay", str(job_id), url=database_url)

    new = UUID(first.out.split()[-1])
    assert first.out == f"replayed 1 job\n{job_id} is replayed as {new}\n"
    assert second.out == f"replayed 0 jobs; 1 replayed before\n{job_id} had been replayed as {new}\n"
    assert (first.code, second.code) == (0, 0)
    assert row(engine, new)["meta"] == {"replays": str(job_id)}


def test_a_replay_of_what_is_not_over_is_a_failure(engine: Engine, database_url: URL) -> None:
    (pending,), (dead,) = put(engine, "pending"), put(engine, "dead")

    answer = answered("replay", str(pending), str(dead), str(NOWHERE), url=database_url)

    assert answer.code == 1
    assert answer.out.startswith("replayed 1 job; 1 left alone, not over; 1 not found\n")
    assert "only a job that is done, dead or canceled can be replayed" in answer.err
    assert str(NOWHERE) in answer.err
