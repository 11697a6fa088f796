"""
``brooq-worker jobs``, ``show`` and ``stats``: what they print, for people and for programs, and what they refuse.
"""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import URL, Engine, text

from sqlalchemy_brooq.browse import RawJson
from sqlalchemy_brooq.cli.database import database_engine
from sqlalchemy_brooq.cli.printing import brief, cut, exact, safe, width
from sqlalchemy_brooq.documents import to_json
from tests.catalogs import run_sql
from tests.commands import COMMAND, Terminal, answered, brooq_worker, environment, shown
from tests.servers import ROOT
from tests.test_browse import put
from tests.test_cli_migrate import execute

NOWHERE = UUID(int=7)
HOSTILE = "\x1b[2J\x1b]0;gone\x07 \x9b31m red\r\n\x7f \u202eabc"


def parsed(url: URL, *arguments: str) -> Any:
    answer = answered(*arguments, "--json", url=url)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.isascii()
    return json.loads(answer.out)


# -- jobs


def test_jobs_are_listed_the_newest_first_and_the_list_says_how_it_goes_on(engine: Engine, database_url: URL) -> None:
    put(engine, "dead", count=3)
    newest = "'ffffffff-0000-7000-8000-000000000000'"  # not in the same millisecond as the others
    put(engine, "pending", id=newest, available_at="now() + interval '3 h' + interval '1 min'")

    first = answered("jobs", "--limit", "3", url=database_url)
    after = first.err.split()[-1]
    rest = answered("jobs", "--limit", "3", "--after", after, url=database_url)

    header, *rows = [line.split() for line in first.out.splitlines()]
    assert header == ["ID", "TOPIC", "STATE", "ATT", "WHEN"]
    assert [row[1:] for row in rows] == [["t", "pending", "0", "+3h"], *[["t", "dead", "5", "10m"]] * 2]
    assert first.err == f"there are more: --after {rows[-1][0]}\n"
    assert [line.split()[1:] for line in rest.out.splitlines()[1:]] == [["t", "dead", "5", "10m"]]
    assert rest.err == ""
    assert rest.code == 0


def test_jobs_as_json_are_an_array_whose_last_id_goes_on(engine: Engine, database_url: URL) -> None:
    (job_id,) = put(engine, "processing", idempotency_key="'k'", last_error="'e'", payload="'{\"n\": 1.50}'")

    (job,) = parsed(database_url, "jobs", "--state", "processing", "--with", "payload", "--with", "key")

    moments = ("created_at", "available_at", "claimed_at", "updated_at", "locked_until")
    assert all(datetime.fromisoformat(job.pop(name)).utcoffset() == timedelta(0) for name in moments)
    assert job.pop("ran_seconds") == pytest.approx(600, abs=60)
    assert job.pop("waited_seconds") == pytest.approx(300, abs=60)
    assert job == {
        "id": str(job_id),
        "topic": "t",
        "priority": 0,
        "state": "processing",
        "attempts": 1,
        "requeues": 0,
        "is_ready": False,
        "locked_by": "w1",
        "key": "k",
        "payload": {"n": 1.5},
    }
    assert parsed(database_url, "jobs", "--after", str(job_id)) == []


@pytest.mark.parametrize(("command", "said"), [("jobs", "no job is like that"), ("stats", "nothing to count: no job ")])
def test_nothing_to_list_is_no_failure(database_url: URL, command: str, said: str) -> None:
    answer = answered(command, url=database_url)

    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith(said)
    assert parsed(database_url, command) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--limit", "0"), "0 is not in the range 1<=x<=1000000"),
        (("--limit", "9" * 30), "is not in the range"),
        (("--after", "12"), "'12' is no job's id, which is a UUID"),
        (("--state", "cancelled"), "'cancelled' is not one of 'pending'"),
        (("--older-than", "30"), "'30' has a number with no unit"),
        (("--older-than", "2h", "--newer-than", "1h"), "no job is both"),
        (("--state", "pending", "--ended-within", "1h"), "none is that is pending"),
        (("--topic", "\udcff"), "is not UTF-8 text"),
        (("--key", "\udcff"), "is not UTF-8 text"),
        (("--timeout", "soon"), "'soon' is not a duration"),
    ],
)
def test_a_wrong_option_is_wrong_usage(database_url: URL, arguments: tuple[str, ...], said: str) -> None:
    answer = answered("jobs", *arguments, url=database_url)

    assert answer.code == 2
    assert said in " ".join(answer.err.split())


# -- show


def test_show_tells_all_about_a_job(engine: Engine, database_url: URL) -> None:
    (job_id,) = put(
        engine,
        "dead",
        last_error="E'ValueError: first\\nsecond'",
        payload='\'{"to": ["ada", 1.50]}\'',
        idempotency_key="'order-1'",
        requeues="2",
        meta='\'{"chained_by": "one", "replays": "two"}\'',
    )
    answered("replay", str(job_id), url=database_url)

    answer = answered("show", str(job_id), url=database_url)

    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    facts = {line[:14].strip(): line[14:] for line in lines if line[0] != " "}
    assert facts.pop("replayed by").endswith(" (pending)")
    assert [facts.pop(name)[-1] for name in ("created", "available", "claimed", "updated")] == ["Z"] * 4
    assert facts == {
        "id": str(job_id),
        "topic": "t",
        "state": "dead (10m ago)",
        "attempts": "5",
        "requeues": "2",
        "priority": "0",
        "waited": "3m",
        "ran": "2m",
        "held last by": "w1",
        "chained by": "one",
        "replays": "two",
        "key": "order-1",
        "error": "ValueError: first",
        "payload": "{",
    }
    assert [line.strip() for line in lines if line[0] == " "] == ["second", '"to": [', '"ada",', "1.50", "]", "}"]


def test_show_says_who_holds_a_job_and_until_when(engine: Engine, database_url: URL) -> None:
    held, expired = put(engine, "processing"), put(engine, "processing", topic="x")
    run_sql(engine, "UPDATE job SET locked_until = now() - interval '3 min' WHERE topic = 'x'")

    texts = [answered("show", str(one), url=database_url).out for (one,) in (held, expired)]

    assert all("held by      w1\n" in one and "processing (for 10m" in one for one in texts)
    assert "(in 59." in texts[0] or "(in 1m" in texts[0]
    assert "(it ran out 3m" in texts[1]


def test_show_leaves_the_payload_out_on_request(engine: Engine, database_url: URL) -> None:
    (job_id,) = put(engine, "done", payload="'\"secret\"'", result="'\"secret\"'")

    assert answered("show", str(job_id), url=database_url).out.count("secret") == 2
    for more in ((), ("--json",)):
        assert "secret" not in answered("show", str(job_id), "--no-payload", *more, url=database_url).out


def test_show_as_json_takes_a_payload_as_it_is(engine: Engine, database_url: URL) -> None:
    deep = "[" * 3_000 + "]" * 3_000
    (job_id,) = put(engine, "done", payload=f'\'{{"n": 1e400, "t": "ünï \\u0007", "d": {deep}}}\'', result="'null'")

    answer = answered("show", str(job_id), "--json", url=database_url)

    assert answer.code == 0
    assert '"n": 1000000000' in answer.out  # as jsonb has it, with all its digits
    assert r"\u00fcn\u00ef \u0007" in answer.out
    assert '"result": null' in answer.out


def test_a_job_that_is_not_there_is_a_failure(database_url: URL) -> None:
    answer = answered("show", str(NOWHERE), url=database_url)

    assert answer.code == 1
    assert answer.error.startswith(f"no job has the id {NOWHERE}: ")


def test_an_id_that_is_none_is_wrong_usage(database_url: URL) -> None:
    for wrong in ("12", "", "\x1b[2J", "019aa000-0000-7000-8000-00000000000g"):
        for command in ("show", "cancel", "replay"):
            answer = answered(command, wrong, url=database_url)
            assert answer.code == 2
            assert "is no job's id, which is a UUID" in answer.err
            assert "\x1b" not in answer.err


# -- stats


def test_stats_are_a_line_for_each_topic(engine: Engine, database_url: URL) -> None:
    put(engine, "pending", count=3)
    put(engine, "failed", available_at="now() + interval '1 h'")
    put(engine, "processing", topic="u")
    put(engine, "done", topic="u", count=2)
    put(engine, "dead", topic="u")

    lines = answered("stats", url=database_url).out.splitlines()
    assert [line.split() for line in lines] == [
        ["TOPIC", "READY", "SCHEDULED", "IN", "FLIGHT", "FAILED", "DEAD", "OLDEST", "DONE/H"],
        ["t", "3", "1", "0", "1", "0", "15m", "0"],
        ["u", "0", "0", "1", "0", "1", "-", "2"],
    ]
    only_u = parsed(database_url, "stats", "--topic", "u")
    assert only_u == [
        {
            "topic": "u",
            "ready": 0,
            "scheduled": 0,
            "in_flight": 1,
            "failed": 0,
            "dead": 1,
            "oldest_ready_seconds": None,
            "last_hour": {"done": 2, "dead": 1, "canceled": 0},
        }
    ]


def test_thousands_of_topics_are_thousands_of_lines(engine: Engine, database_url: URL) -> None:
    run_sql(engine, "INSERT INTO job (topic) SELECT 'topic-' || n FROM generate_series(1, 3000) n")

    assert len(answered("stats", url=database_url).out.splitlines()) == 3_001
    assert len(answered("jobs", "--limit", "2500", url=database_url).out.splitlines()) == 2_501


def test_the_reference_has_every_name_in_json(engine: Engine, database_url: URL) -> None:
    reference = (ROOT / "docs/reference/command-line.md").read_text()
    (job_id,) = put(engine, "done")

    (stats,) = parsed(database_url, "stats")
    names = {*parsed(database_url, "show", str(job_id)), *stats, *stats["last_hour"]}

    assert sorted(name for name in names if f"`{name}`" not in reference) == []


# -- any text, any terminal


def test_no_text_in_the_database_steers_the_terminal_or_breaks_a_line(engine: Engine, database_url: URL) -> None:
    (job_id,) = put(engine, "dead")
    with engine.begin() as connection:
        columns = ("topic", "locked_by", "last_error", "idempotency_key")
        connection.exec_driver_sql(
            f"UPDATE job SET payload = jsonb_build_object('k', %(t)s::text), meta = jsonb_build_object('replays',"
            f" %(t)s::text), {', '.join(f'{one} = %(t)s' for one in columns)}",
            {"t": HOSTILE},
        )
    shows = ("--with", "error", "--with", "key", "--with", "payload")

    for arguments in (("jobs", *shows), ("show", str(job_id)), ("stats",), ("check",)):
        answer = answered(*arguments, url=database_url)
        assert answer.code == 0, answer
        assert all(line.isprintable() for line in answer.out.split("\n")), answer.out
    assert len(answered("jobs", *shows, url=database_url).out.splitlines()) == 2 + 3
    assert parsed(database_url, "jobs")[0]["topic"] == HOSTILE


def test_a_table_fits_a_terminal_and_nothing_is_cut_in_a_pipe(
    engine: Engine, database_url: URL, tmp_path: Path
) -> None:
    long = "report." + "long-" * 20 + "topic"
    put(engine, "processing", topic=long, last_error=f"'{'x' * 500}'")
    address: dict[str, Any] = {"DATABASE_URL": shown(database_url)}

    assert long in answered("jobs", url=database_url).out
    with Terminal("jobs", "--with", "error", cwd=tmp_path, **address) as terminal:
        assert terminal.ends() == 0
    assert max(map(len, terminal.text.splitlines())) == 80
    assert "report.long-long..." in terminal.text
    with Terminal("stats", cwd=tmp_path, columns=40, **address) as terminal:
        assert terminal.ends() == 0
    assert "\x1b" not in terminal.text


@pytest.mark.parametrize(("name", "value"), [("LC_ALL", "C"), ("PYTHONIOENCODING", "latin-1")])
def test_any_text_can_be_printed_in_any_locale(
    engine: Engine, database_url: URL, tmp_path: Path, name: str, value: str
) -> None:
    put(engine, "pending", topic="日本", payload="'\"日本\"'")
    variables: dict[str, Any] = {"DATABASE_URL": shown(database_url), name: value}

    answer = brooq_worker("jobs", "--with", "payload", cwd=tmp_path, **variables)

    assert (answer.code, answer.err) == (0, "")
    assert len(answer.out.splitlines()) == 3


def test_a_reader_that_goes_away_is_no_traceback(engine: Engine, database_url: URL, tmp_path: Path) -> None:
    put(engine, "pending", count=5_000)

    for more in ("", "--json"):
        done = subprocess.run(
            ["bash", "-c", f'"$@" jobs --limit 5000 {more} | head -1', "-", *COMMAND],
            cwd=tmp_path,
            env=environment({"DATABASE_URL": shown(database_url)}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ('"$@" stats > /dev/full', 1, "Error: the answer can't be written: No space left on device\n"),
        ('"$@" jobs >&-', 0, ""),
        ('mkdir gone && cd gone && rmdir ../gone && "$@" stats', 0, ""),
    ],
)
def test_a_full_disk_a_closed_stdout_and_a_folder_that_is_gone_are_no_traceback(
    engine: Engine, database_url: URL, tmp_path: Path, script: str, code: int, said: str
) -> None:
    put(engine, "pending")

    answer = brooq_worker(cwd=tmp_path, command=("bash", "-c", script, "-", *COMMAND), DATABASE_URL=shown(database_url))

    assert (answer.code, answer.err) == (code, said)


def test_what_is_printed_is_measured_in_columns() -> None:
    assert (width("ab"), width("日本"), width("e\u0301")) == (2, 4, 1)
    assert (cut("abcdef", 6), cut("abcdefg", 6), cut("日本語日本", 6)) == ("abcdef", "abc...", "日...")
    assert safe("a\x7f\x1b\u202e\n") == r"a\u007f\u001b\u202e\n"
    assert safe("\udcff") == r"\udcff"


def test_durations_are_printed_in_the_units_that_matter() -> None:
    spans = [
        timedelta(milliseconds=1_234),
        timedelta(seconds=59),
        timedelta(hours=2, seconds=5),
        timedelta(days=3, hours=4),
    ]

    assert [brief(one) for one in [timedelta(0), *spans]] == ["0s", "1s", "59s", "2h", "3d"]
    assert [exact(one) for one in [timedelta(0), *spans]] == ["0s", "1.234s", "59s", "2h", "3d4h"]


def test_raw_json_is_taken_as_it_is() -> None:
    printed = to_json({"a": RawJson('{"n": 1.50}'), "b": [RawJson('"ü"')]})

    assert printed == r'{"a": {"n": 1.50}, "b": ["\u00fc"]}'


# -- where the jobs are


def test_a_database_without_our_table_is_one_error_that_names_the_commands(empty_database_url: URL) -> None:
    for arguments in (
        ("jobs",),
        ("show", str(NOWHERE)),
        ("stats",),
        ("cancel", str(NOWHERE)),
        ("replay", str(NOWHERE)),
    ):
        answer = answered(*arguments, url=empty_database_url)
        assert answer.code == 1
        assert answer.error.startswith("the table job is missing")
        assert "brooq-worker migrate" in answer.error


def test_no_database_and_one_that_is_not_there_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("jobs", "stats"):
        assert answered(command).code == 2
        answer = answered(command, DATABASE_URL="postgresql://shop:S3cret-word@127.0.0.1:1/shop")
        assert answer.code == 1
        assert "refused" in answer.error
        assert "S3cret" not in answer.err


def test_nothing_is_kept_in_a_session_that_a_pooler_might_give_to_others(database_url: URL) -> None:
    with database_engine(shown(database_url), None) as engine, engine.connect() as connection:
        for _ in range(20):
            connection.execute(text("SELECT 1"))

        assert connection.scalar(text("SELECT count(*) FROM pg_prepared_statements")) == 0


def test_a_table_in_another_schema_is_reached_by_an_option_or_the_search_path(
    empty_database_url: URL,
) -> None:
    schema = 'odd "Name'
    execute(empty_database_url, 'CREATE SCHEMA "odd ""Name"')
    migrated = answered("migrate", "--schema", schema, url=empty_database_url)
    assert (migrated.code, migrated.err) == (0, "")
    execute(empty_database_url, """INSERT INTO "odd ""Name".job (topic, state) VALUES ('t', 'dead')""")

    (job,) = json.loads(answered("jobs", "--json", "--schema", schema, url=empty_database_url).out)
    assert answered("jobs", url=empty_database_url).code == 1
    for command in (("show",), ("replay",), ("cancel",)):
        assert answered(*command, job["id"], "--schema", schema, url=empty_database_url).code == 0
    assert answered("stats", "--schema", schema, url=empty_database_url).out.count("\n") == 2
    assert answered("check", "--schema", schema, url=empty_database_url).code == 0
    path = empty_database_url.update_query_dict({"options": '-csearch_path="odd\\ ""Name"'})
    assert len(json.loads(answered("jobs", "--json", url=path).out)) == 2
