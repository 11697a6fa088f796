"""
The doctor: each fault is brought about on a server, found, and gone once the advice was followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from sqlalchemy_brooq import doctor
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.doctor import Finding, Level, Patient, examine, server, vacuum
from sqlalchemy_brooq.migrations import migrate
from tests.catalogs import run_sql
from tests.commands import answered, brooq_worker, command_after, shown
from tests.deaf import deaf
from tests.pages import table
from tests.servers import ROOT
from tests.test_browse import put
from tests.test_clocks import WRONG_CLOCK
from tests.waiting import eventually

NOW = timedelta(0)


@pytest.fixture(autouse=True)
def quick_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ECHO", 0.5)


def found(engine: Engine, check: str | None = None, **expected: Any) -> list[Finding]:
    """
    Return what the doctor finds, but for what is fine; of one *check*, or of all.
    """
    findings = list(examine(Patient(engine, **expected)))
    return [one for one in findings if one.level is not Level.OK and check in (None, one.check)]


def the_problem(engine: Engine, check: str, **expected: Any) -> Finding:
    """
    Return the one thing that the doctor finds about *check*; it must be a problem.
    """
    __tracebackhide__ = True
    (one,) = found(engine, check, **expected)
    assert one.level is Level.PROBLEM, one
    assert one.advice, one
    return one


def soon(engine: Engine, check: str, **expected: Any) -> Finding:
    """
    Wait until the doctor finds something about *check*, and return it.
    """
    return eventually(lambda: found(engine, check, **expected))[0]


# -- nothing is wrong


def test_a_database_with_nothing_wrong_needs_nobody(engine: Engine, database_url: URL) -> None:
    findings = list(examine(Patient(engine, topics=frozenset({"t"}))))

    assert {one.level for one in findings} == {Level.OK}
    assert [one.check for one in findings] == [
        *("database", "version", "clock", "schema", "indexes", "rights", "topics", "leases"),
        *("autovacuum", "dead rows", "old transactions", "wake-up"),
    ]


def test_the_command_says_what_is_fine_and_what_it_did_not_look_at(database_url: URL) -> None:
    answer = answered("check", url=database_url)
    rows = json.loads(answered("check", "--json", url=database_url).out)

    assert (answer.code, answer.err) == (0, "")
    assert re.search(r"^ok       schema: the table job is of revision brooq0001$", answer.out, re.MULTILINE)
    assert re.search(r"^note     topics: not looked at: give MODULE:QUEUE", answer.out, re.MULTILINE)
    assert [row["check"] for row in rows][:3] == ["database", "version", "clock"]
    assert {frozenset(row) for row in rows} == {frozenset({"check", "level", "text", "advice"})}


def test_the_reference_has_every_check(engine: Engine) -> None:
    checks = [f"`{one.check}`" for one in examine(Patient(engine))]

    assert [row[0] for row in table(ROOT / "docs/reference/command-line.md", "check")] == checks


def test_nothing_is_written(engine: Engine, database_url: URL) -> None:
    run_sql(engine, f'ALTER DATABASE "{database_url.database}" SET default_transaction_read_only = on')
    read_only = create_engine(database_url, poolclass=NullPool)

    assert [one.check for one in found(read_only, topics=frozenset())] == ["database"]


# -- the server


def test_a_server_that_can_not_be_reached_is_all_that_is_said(tmp_path: Path) -> None:
    answer = answered("check", DATABASE_URL="postgresql://shop:S3cret-word@127.0.0.1:1/shop")

    assert answer.code == 1
    assert answer.out.startswith("problem  database: can't be reached: ")
    assert "-> check that the server runs" in answer.out
    assert "S3cret" not in answer.out + answer.err


def test_a_database_that_is_read_only(engine: Engine, database_url: URL) -> None:
    run_sql(engine, f'ALTER DATABASE "{database_url.database}" SET default_transaction_read_only = on')
    read_only = create_engine(database_url, poolclass=NullPool)

    assert "default_transaction_read_only is on" in the_problem(read_only, "database").text


def test_a_server_of_another_version(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as old:
        old.setattr(server, "OLDEST", 99)
        assert "is too old: sqlalchemy-brooq needs 99 or newer" in the_problem(engine, "version").text
    monkeypatch.setattr(server, "NEWEST", 13)
    (finding,) = found(engine, "version")
    assert (finding.level, finding.advice) == (Level.NOTE, ())


@pytest.mark.parametrize(
    ("shift", "said"), [(600, "600.0 s ahead of the server's"), (-600, "600.0 s behind the server's")]
)
def test_a_host_with_a_wrong_clock(database_url: URL, tmp_path: Path, shift: int, said: str) -> None:
    wrong = command_after(WRONG_CLOCK.format(shift=shift))

    answer = brooq_worker("check", cwd=tmp_path, command=wrong, DATABASE_URL=shown(database_url))

    assert answer.code == 1
    assert f"problem  clock: this host's clock is {said}" in answer.out
    assert "NTP" in answer.out


def test_a_pooler_that_lets_no_notification_through(database_url: URL) -> None:
    with deaf(database_url) as url:
        engine = create_engine(url, poolclass=NullPool)

        assert "set QUEUE_WAKEUP=poll" in the_problem(engine, "wake-up").advice[0]
        assert found(engine, "wake-up", wakeup="poll") == []


def test_the_settings_of_the_environment_count(database_url: URL) -> None:
    with deaf(database_url) as url:
        assert answered("check", url=url).code == 1
        assert answered("check", url=url, QUEUE_WAKEUP="poll").code == 0
    assert answered("check", url=database_url, QUEUE_WAKEUP="perhaps").code == 2


# -- the table


def test_no_table_and_somebody_else_s_are_problems_after_which_the_table_is_not_looked_at(
    empty_database_url: URL,
) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)

    assert the_problem(engine, "schema").advice == ("run `alembic upgrade head`, or `brooq-worker migrate`",)
    run_sql(engine, "CREATE TABLE job (id int)")
    assert "isn't sqlalchemy-brooq's" in the_problem(engine, "schema").text
    assert {one.check for one in examine(Patient(engine))} == {"database", "version", "clock", "schema", "wake-up"}


def test_a_table_of_a_newer_version(engine: Engine) -> None:
    run_sql(engine, "COMMENT ON TABLE job IS 'sqlalchemy-brooq: brooq9999'")

    assert "revision brooq9999" in the_problem(engine, "schema").text


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("ALTER TABLE job RESET (fillfactor)", "the setting fillfactor is missing"),
        (
            "ALTER TABLE job SET (autovacuum_vacuum_threshold = 9)",
            "autovacuum_vacuum_threshold is 9, and should be 100",
        ),
        ("ALTER TABLE job ADD COLUMN tenant int NOT NULL", "no producer fills: nothing can be enqueued"),
        ("DROP INDEX job_ready_topic", "the index job_ready_topic is missing"),
        ("DROP INDEX job_idempotency", "the index job_idempotency is missing"),
        (
            "DROP INDEX job_leased; CREATE INDEX job_leased ON job (locked_by)",
            "and should be USING btree (locked_until)",
        ),
    ],
)
def test_a_change_of_the_table_is_mended_by_the_advice(engine: Engine, fault: str, said: str) -> None:
    for statement in fault.split("; "):
        run_sql(engine, statement)

    (problem,) = found(engine, topics=frozenset())
    assert said in problem.text
    for step in problem.advice:
        run_sql(engine, step.partition(", or ")[0])

    assert not any(one.level.needs_a_person for one in found(engine, topics=frozenset()))


@pytest.mark.parametrize(
    "fault",
    [
        "ALTER TABLE job DROP CONSTRAINT job_state",
        "ALTER TABLE job ALTER COLUMN topic DROP NOT NULL",
        "ALTER TABLE job ALTER COLUMN priority TYPE int",
        "ALTER TABLE job ENABLE ROW LEVEL SECURITY",
        "ALTER TABLE job SET UNLOGGED",
    ],
)
def test_a_change_that_no_statement_mends_is_a_problem_all_the_same(engine: Engine, fault: str) -> None:
    run_sql(engine, fault)

    assert "put it back" in the_problem(engine, "schema").advice[0]


@pytest.mark.parametrize(
    "own",
    [
        "CREATE INDEX mine ON job (created_at)",
        "ALTER TABLE job ADD COLUMN tenant int",
        "ALTER TABLE job ADD CONSTRAINT mine CHECK (attempts < 100)",
    ],
)
def test_what_is_the_consumer_s_own_is_no_problem(engine: Engine, own: str) -> None:
    run_sql(engine, own)

    (finding,) = found(engine, topics=frozenset())
    assert finding.level is Level.NOTE


def test_an_index_that_is_not_valid_is_mended_by_the_advice(engine: Engine) -> None:
    run_sql(engine, "DROP INDEX job_leased")
    (create,) = the_problem(engine, "indexes").advice
    with engine.begin() as consumer:
        consumer.execute(text("INSERT INTO job (topic) VALUES ('t')"))
        for statement in (create, create.replace(" job_leased ", " mine ")):
            broken_off(engine, statement)

    ours, mine = found(engine, "indexes")
    for problem in (ours, mine):
        assert "is not valid" in problem.text
        run_sql(engine, *problem.advice)

    assert found(engine, topics=frozenset({"t"})) == []


def broken_off(engine: Engine, statement: str) -> None:
    """
    Let a statement give up waiting for others.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET lock_timeout = '100ms'")
        with suppress(DBAPIError):
            connection.exec_driver_sql(statement)
        connection.invalidate()


def test_a_table_in_another_schema_is_looked_at_there(empty_database_url: URL) -> None:
    engine = create_engine(empty_database_url, poolclass=NullPool)
    run_sql(engine, 'CREATE SCHEMA "my Queue"')
    there = engine.execution_options(schema_translate_map={None: "my Queue"})
    migrate(there)
    run_sql(engine, 'DROP INDEX "my Queue".job_ready; ALTER TABLE "my Queue".job RESET (fillfactor)')

    settings, index = found(there, topics=frozenset())
    for finding in (settings, index):
        run_sql(engine, *finding.advice)

    assert found(there, topics=frozenset()) == []


@pytest.fixture
def other_role(engine: Engine, database_url: URL) -> Iterator[Engine]:
    """
    Somebody who may do next to nothing.
    """
    role = f"brooq_test_{token_hex(6)}"  # roles are the whole server's
    run_sql(engine, f"CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT ON job TO {role}")
    yield create_engine(database_url.set(username=role), poolclass=NullPool)
    run_sql(engine, f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_without_the_rights_that_a_worker_needs(other_role: Engine) -> None:
    problem = the_problem(other_role, "rights")

    assert "no UPDATE, DELETE on the table" in problem.text
    assert "GRANT UPDATE, DELETE ON job" in problem.advice[0]


# -- the work


def test_jobs_that_nobody_serves(engine: Engine) -> None:
    put(engine, "pending", topic="served")
    put(engine, "pending", topic="lonely; rm -rf ~", count=3)
    put(engine, "done", topic="history")

    problem = the_problem(engine, "topics", topics=frozenset({"served"}))

    assert "3 jobs of it are ready, 0 scheduled" in problem.text
    assert problem.advice[-1] == "if nobody wants them: brooq-worker cancel --topic 'lonely; rm -rf ~'"
    assert len(found(engine, "topics", topics=frozenset())) == 2


def test_thousands_of_topics_that_nobody_serves_are_a_few_lines(engine: Engine) -> None:
    run_sql(engine, "INSERT INTO job (topic) SELECT 'topic-' || n FROM generate_series(1, 3000) n")

    findings = found(engine, "topics", topics=frozenset())

    assert len(findings) == 11
    assert "2990 more topics" in findings[-1].text


PROGRAM = """
import sqlalchemy_brooq as brooq
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

mail = brooq.Queue(create_engine("{url}"), brooq.Config(wakeup="poll"))
mail.register("mail", lambda claim: None)
bank = brooq.Queue(create_async_engine("{url}"))
bank.register("bank", lambda claim: None)
"""


def test_the_queues_of_a_program_are_checked_on_their_own_database(
    engine: Engine, database_url: URL, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM.format(url=shown(database_url)))
    put(engine, "pending", topic="mail")
    put(engine, "pending", topic="bank")

    one = brooq_worker("check", "shop:bank", cwd=tmp_path, DATABASE_URL="postgresql://127.0.0.1:1/none")
    both = brooq_worker("check", "shop:mail", "shop:bank", cwd=tmp_path)

    assert one.code == 1
    assert "problem  topics: the topic mail has no handler" in one.out
    assert (both.code, both.err) == (0, "")
    assert "(topics served: 2)" in both.out


def test_leases_that_ran_out_and_were_not_taken_back(engine: Engine) -> None:
    put(engine, "processing", count=2)
    put(engine, "processing", topic="u")
    assert found(engine, "leases") == []
    run_sql(engine, "UPDATE job SET locked_until = now() - interval '3 min'")

    problem = the_problem(engine, "leases")

    assert problem.text.startswith("3 jobs have a lease that ran out, the oldest 3m")
    assert problem.text.endswith(": t, u")
    assert "start a worker" in problem.advice[0]
    assert found(engine, "leases", reaper_period=timedelta(minutes=5)) == []


# -- vacuum


def test_an_old_transaction_that_holds_vacuum_back(engine: Engine, database_url: URL) -> None:
    named = create_engine(database_url.update_query_dict({"application_name": "report"}), poolclass=NullPool)
    with named.execution_options(isolation_level="REPEATABLE READ").connect() as reader, engine.connect() as idle:
        idle.execute(text("SELECT 1"))  # neither a snapshot nor an id: it holds nothing back
        pid = reader.scalar(text("SELECT pg_backend_pid()"))
        problem = the_problem(engine, "old transactions", old=NOW)
        assert problem.text.startswith(f"server process {pid}, of postgres (report), has had a transaction open for 0")
        assert found(engine, "old transactions", old=timedelta(minutes=1)) == []
        with suppress(DBAPIError):
            run_sql(engine, problem.advice[1].partition(": ")[2])
        reader.invalidate()

    eventually(lambda: found(engine, "old transactions", old=NOW) == [])


def test_the_age_of_an_old_transaction_is_an_option(engine: Engine, database_url: URL) -> None:
    with engine.begin() as writer:
        writer.execute(text("INSERT INTO job (topic) VALUES ('t')"))

        assert answered("check", url=database_url).code == 0
        answer = answered("check", "--old-transaction", "0", url=database_url)

    assert answer.code == 1
    assert "and is idle in transaction: no row that died since is vacuumed" in answer.out
    assert answered("check", "--old-transaction", "5", url=database_url).code == 2


def test_sessions_that_may_not_be_looked_at_are_noted(engine: Engine, other_role: Engine) -> None:
    with engine.begin() as writer:
        writer.execute(text("INSERT INTO job (topic) VALUES ('t')"))
        (finding,) = found(other_role, "old transactions", old=NOW)

    assert finding.level is Level.NOTE
    assert finding.advice == ("GRANT pg_read_all_stats TO the role",)


def test_dead_rows_that_nobody_removes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "DEAD", 2_000)
    run_sql(engine, "ALTER TABLE job SET (autovacuum_enabled = off)")
    put(engine, "done", count=1_500)
    for _ in range(2):
        run_sql(engine, "UPDATE job SET updated_at = now()")

    problem = soon(engine, "dead rows")
    assert re.match(r"[23],\d{3} dead rows beside 1,500 live ones \(6\d%\); it was never vacuumed", problem.text)
    switched_off = the_problem(engine, "autovacuum")
    for step in (*switched_off.advice, problem.advice[1]):
        run_sql(engine, step)

    eventually(lambda: found(engine, topics=frozenset()) == [])


def test_counts_that_are_off(engine: Engine, database_url: URL) -> None:
    run_sql(engine, f'ALTER DATABASE "{database_url.database}" SET track_counts = off')

    assert "track_counts is off" in the_problem(create_engine(database_url, poolclass=NullPool), "autovacuum").text


# -- servers of the tests' own


@pytest.fixture(scope="module")
def primary() -> Iterator[LocalPostgres]:
    settings = {"max_prepared_transactions": "2", "autovacuum_naptime": "1h"}
    with LocalPostgres(durable=False, settings=settings) as primary:
        migrate(primary.url())
        yield primary


@pytest.fixture
def alone(primary: LocalPostgres) -> Engine:
    return create_engine(primary.url(), poolclass=NullPool)


def test_a_prepared_transaction_that_nobody_commits(alone: Engine) -> None:
    run_sql(alone, "BEGIN; INSERT INTO job (topic) VALUES ('t'); PREPARE TRANSACTION 'it''s mine'")

    problem = the_problem(alone, "old transactions", old=NOW)
    assert "prepared by postgres, has been waiting for 0" in problem.text
    run_sql(alone, problem.advice[0].partition(" or ")[2])

    assert found(alone, "old transactions", old=NOW) == []


def test_autovacuum_that_is_off(alone: Engine) -> None:
    run_sql(alone, "ALTER SYSTEM SET autovacuum = off")
    run_sql(alone, "SELECT pg_reload_conf()")

    problem = soon(alone, "autovacuum")
    assert problem.text == "it is off in the whole server"
    for step in problem.advice[0].split(", then "):
        run_sql(alone, step)

    eventually(lambda: found(alone, "autovacuum") == [])


def test_a_standby_is_told_from_its_primary_and_holds_vacuum_back_while_it_is_away(
    primary: LocalPostgres, alone: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_prepared_transactions": "2", "hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
    with LocalPostgres(durable=False, settings=settings, standby_of=primary) as standby:
        there = create_engine(standby.url(), poolclass=NullPool)
        assert "is on a standby, which takes no writes" in the_problem(there, "database").text
        assert [one.level for one in found(there, topics=frozenset())] == [Level.PROBLEM]
        eventually(lambda: slot_remembers(alone), timeout=30)
        assert found(alone, "old transactions", old=NOW) == []
        with monkeypatch.context() as strict:
            strict.setattr(vacuum, "BEHIND", 0)
            assert "reports a query that is" in found(alone, "old transactions", old=NOW)[0].text

    problem = soon(alone, "old transactions", old=NOW)
    assert "is kept for a standby that is away" in problem.text
    run_sql(alone, problem.advice[1].partition(": ")[2])
    assert found(alone, "old transactions", old=NOW) == []


def slot_remembers(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.scalar(text("SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL")))


# -- checks that fail


def test_a_check_that_takes_too_long_is_unknown_and_the_others_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "BUDGET", timedelta(milliseconds=200))
    with engine.begin() as consumer:
        consumer.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))
        findings = list(examine(Patient(engine)))

    assert "leases" in {one.check for one in findings if one.level is Level.UNKNOWN}
    assert all(one.text == "it took longer than 200ms to look" for one in findings if one.level is Level.UNKNOWN)
    assert (findings[-1].check, findings[-1].level) == ("wake-up", Level.OK)


def test_a_check_that_fails_needs_a_person_and_the_others_go_on(engine: Engine, other_role: Engine) -> None:
    run_sql(engine, f"REVOKE ALL ON job FROM {other_role.url.username}")

    findings = [one for one in found(other_role, topics=frozenset()) if one.level.needs_a_person]

    assert [(one.check, one.level) for one in findings] == [
        ("rights", Level.PROBLEM),
        ("topics", Level.UNKNOWN),
        ("leases", Level.UNKNOWN),
    ]
    assert "it couldn't be looked at: " in findings[1].text
    assert "permission denied for table job" in findings[1].text
