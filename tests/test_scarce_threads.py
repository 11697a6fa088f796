"""
A system that has no more threads for handlers: jobs wait, or are given back, and none is stuck.
"""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Engine

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.worker.threads import Threads
from tests.queues import MakeQueue, add, all_settled, states
from tests.test_queue_lifecycle import no_thread_called
from tests.waiting import eventually, row


def test_work_that_gets_no_thread_waits_for_one_that_there_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads = Threads("test")
    leave, ran = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        leave.wait(10)
        ran.release()

    threads.submit(work)
    no_thread_called(monkeypatch, "brooq-test-1")

    threads.submit(ran.release)
    threads.submit(ran.release)
    assert not ran.acquire(blocking=False)
    leave.set()

    for _ in range(3):
        assert ran.acquire(timeout=10)
    assert caplog.text.count("only 1 threads can be had") == 1
    assert threads.close(10)


def test_threads_are_tried_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads("test")
    with monkeypatch.context() as patch:
        no_thread_called(patch, "brooq-test-0")
        with pytest.raises(RuntimeError, match="new thread"):
            threads.submit(lambda: None)
    both = threading.Barrier(3)

    for _ in range(2):
        threads.submit(lambda: both.wait(10))

    both.wait(10)
    assert threads.close(10)


def test_jobs_for_which_there_is_no_thread_are_given_back_and_run_later(
    engine: Engine, make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    plain = add(engine, *(brooq.Job("plain") for _ in range(6)))
    other = add(engine, brooq.Job("async"))
    queue = make_queue(engine, workers=2, prefetch=3)
    queue.register("plain", lambda claim: None)

    @queue.handler("async")
    async def handle(claim: brooq.Claim) -> None:
        pass

    with pytest.MonkeyPatch.context() as patch:
        no_thread_called(patch, "brooq-handler-0")
        queue.start()
        eventually(lambda: caplog.text.count("can't start new thread") >= 2)
        eventually(lambda: row(engine, other[0])["state"] == "done")
        assert row(engine, plain[0])["state"] != "done"

    eventually(all_settled(engine))
    assert states(engine) == {"done": 7}
    assert {row(engine, job_id)["attempts"] for job_id in plain} == {1}
    health = queue.health()
    assert health is not None
    eventually(lambda: (found := queue.health()) is not None and found.healthy and not found.leases)
    assert queue.stop() is not None
