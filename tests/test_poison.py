"""
The opt-in guard against a job that kills its worker each time.
"""

from __future__ import annotations

import signal

from sqlalchemy import URL, Engine

import sqlalchemy_brooq as brooq
from tests.programs import program
from tests.queues import MakeQueue, add, all_settled
from tests.waiting import eventually, row

KILLER = """
    import os, signal, sys
    import sqlalchemy as sa
    import sqlalchemy_brooq as brooq

    settings = brooq.Config(workers=1, lease="500ms", reaper_period="100ms", poll_interval="50ms", max_requeues=2)
    queue = brooq.Queue(sa.create_engine(sys.argv[1]), settings)

    @queue.handler("t")
    def handle(claim):
        os.kill(os.getpid(), signal.SIGKILL)

    queue.run()
"""


def test_a_job_that_kills_its_worker_each_time_is_stopped_by_its_guard(
    engine: Engine, database_url: URL, make_queue: MakeQueue
) -> None:
    (job_id,) = add(engine, brooq.Job("t"))
    deaths = 0
    for _ in range(3):
        with program(KILLER, database_url) as process:
            assert process.wait(30) == -signal.SIGKILL
        deaths += 1

    # The next worker's reaper judges the third expiry, before anybody runs the job a fourth time.
    queue = make_queue(engine, max_requeues=2)
    queue.register("t", lambda claim: None)
    queue.start()

    eventually(all_settled(engine))
    found = row(engine, job_id)
    assert (found["state"], found["attempts"], found["requeues"]) == ("dead", deaths, 2)
    assert found["last_error"] == "lease expired 3 times"
