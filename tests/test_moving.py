"""
The statements that move waiting jobs of other queues into ours, from the pages about moving, on tables like theirs.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.pages import blocks
from tests.servers import ROOT

PROCRASTINATE = """
    CREATE TYPE procrastinate_job_status AS ENUM (
        'todo', 'doing', 'succeeded', 'failed', 'cancelled', 'aborting', 'aborted');
    CREATE TABLE procrastinate_jobs (
        id bigserial PRIMARY KEY, queue_name varchar(128) NOT NULL DEFAULT 'default', task_name varchar(128) NOT NULL,
        priority integer DEFAULT 0 NOT NULL, args jsonb DEFAULT '{}' NOT NULL,
        status procrastinate_job_status DEFAULT 'todo' NOT NULL, scheduled_at timestamptz);
    INSERT INTO procrastinate_jobs (task_name, status, args, priority, scheduled_at) VALUES
        ('send_email', 'todo', '{"order": 1}', 0, NULL),
        ('send_email', 'todo', '{"order": 2}', 9, now() + interval '1 day'),
        ('send_email', 'doing', '{"order": 3}', 0, NULL),
        ('send_email', 'succeeded', '{"order": 4}', 0, NULL),
        ('another', 'todo', '{"order": 5}', 0, NULL);
"""
BEANQUEUE = """
    CREATE TYPE taskstate AS ENUM ('PENDING', 'PROCESSING', 'DONE', 'FAILED');
    CREATE TABLE bq_tasks (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(), state taskstate NOT NULL DEFAULT 'PENDING',
        channel varchar NOT NULL DEFAULT 'images', module varchar NOT NULL DEFAULT 'shop.processors',
        func_name varchar NOT NULL, kwargs jsonb, result jsonb, created_at timestamptz NOT NULL DEFAULT now(),
        scheduled_at timestamptz);
    INSERT INTO bq_tasks (func_name, state, kwargs, scheduled_at) VALUES
        ('resize', 'PENDING', '{"order": 1}', NULL),
        ('resize', 'PENDING', '{"order": 2}', now() + interval '1 day'),
        ('resize', 'PROCESSING', '{"order": 3}', NULL),
        ('resize', 'DONE', '{"order": 4}', NULL),
        ('another', 'PENDING', '{"order": 5}', NULL);
"""
OTHERS = {
    "procrastinate": (PROCRASTINATE, "procrastinate_jobs", "status = 'todo'", "args", "status = 'doing'"),
    "beanqueue": (BEANQUEUE, "bq_tasks", "state = 'PENDING'", "kwargs", "state = 'PROCESSING'"),
}

others = pytest.mark.parametrize("other", OTHERS)


def moving(other: str) -> str:
    page = ROOT / f"docs/how-to/from-{other}.md"
    (statement,) = [block.text for block in blocks(page) if block.language == "sql"]
    return statement


def rows(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


@others
def test_what_waits_is_moved_once_and_nothing_else(engine: Engine, other: str) -> None:
    setup, table, waits, arguments, _ = OTHERS[other]
    with engine.begin() as connection:
        connection.exec_driver_sql(setup)

    for _ in range(2):
        with engine.begin() as connection:
            connection.exec_driver_sql(moving(other))

    moved = "SELECT payload ->> 'order', available_at > now() + interval '1 hour', state FROM job ORDER BY 1"
    assert rows(engine, moved) == [("1", False, "pending"), ("2", True, "pending")]
    assert rows(engine, f"SELECT {arguments} ->> 'order' FROM {table} WHERE {waits}") == [("5",)]


@others
def test_what_the_other_worker_takes_at_that_moment_is_left_to_it(engine: Engine, other: str) -> None:
    setup, table, waits, arguments, runs = OTHERS[other]
    with engine.begin() as connection:
        connection.exec_driver_sql(setup)

    def move() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(moving(other))

    thread = threading.Thread(target=move)
    with engine.begin() as worker:
        taken = f"UPDATE {table} SET {runs} WHERE {waits} AND {arguments} ->> 'order' = '1'"
        assert worker.exec_driver_sql(taken).rowcount == 1
        thread.start()
        thread.join(0.3)  # it waits for the row, or hasn't come so far: either way the worker was first
    thread.join(30)

    assert rows(engine, "SELECT payload ->> 'order' FROM job") == [("2",)]
