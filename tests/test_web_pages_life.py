"""
The life of jobs, watched and steered in a real browser while real workers run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
from playwright.sync_api import Locator, Page, expect
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, text

import sqlalchemy_brooq as brooq
from tests.browsers import Open, Serve, needs_chromium, renewed
from tests.queues import quick, states
from tests.waiting import eventually, row

pytestmark = needs_chromium


Work = Callable[..., brooq.Queue]


@pytest.fixture
def worker(engine: Engine) -> Iterator[Work]:
    """
    A function that builds a worker with a handler; all of it on threads, as Playwright holds an event loop on this one.
    """
    built: list[brooq.Queue] = []

    def worker(topic: str, handler: Any, options: brooq.HandlerOptions | None = None, **settings: Any) -> brooq.Queue:
        queue = brooq.Queue(engine, quick(**settings), registry=CollectorRegistry())
        queue.register(topic, handler, options)
        built.append(queue)
        return queue

    yield worker
    for queue in built:
        elsewhere(queue.close)


def elsewhere(act: Callable[[], object]) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(act).result()


def enqueued(engine: Engine, topic: str = "email.send", **job: object) -> UUID:
    with engine.begin() as connection:
        return brooq.enqueue(connection, brooq.Job(topic, {"order": 1001}, **job)).id  # type: ignore[arg-type]


def state_of(page: Page) -> Locator:
    return page.locator(".job-head .state").first


def mark(page: Page) -> None:
    """
    Note in the page itself that it is this one: a reload would lose it.
    """
    page.evaluate("window.isTheSame = true")


def is_the_same(page: Page) -> bool:
    return bool(page.evaluate("window.isTheSame === true"))


def test_a_job_is_watched_from_pending_to_done_without_a_reload(
    engine: Engine, worker: Work, serve: Serve, open_page: Open
) -> None:
    go_on = threading.Event()
    queue = worker("email.send", lambda claim: {"sent": go_on.wait(30)}, brooq.HandlerOptions(keep_result=True))
    job_id = enqueued(engine)
    page = open_page(f"{serve()}/jobs/{job_id}")
    mark(page)
    expect(state_of(page)).to_have_text("pending")
    expect(page.locator(".steps")).to_contain_text("waits for a worker")

    elsewhere(queue.start)
    expect(state_of(page)).to_have_text("processing")
    expect(page.locator(".steps")).to_contain_text("Claimed for attempt 1")
    expect(page.locator(".steps")).to_contain_text("Lease runs out")
    go_on.set()
    expect(state_of(page)).to_have_text("done")

    expect(page.locator(".steps")).to_contain_text("after running for")
    expect(page.locator("#result")).to_contain_text('"sent": true')
    expect(page.locator("#cancel")).to_have_count(0)
    expect(page.locator("#replay")).to_be_visible()
    assert is_the_same(page)


def test_the_overview_shows_what_begins_to_run_and_what_died(
    engine: Engine, worker: Work, serve: Serve, open_page: Open
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail(claim: brooq.Claim) -> None:
        begun.set()
        go_on.wait(30)
        raise RuntimeError("the printer is out of paper")

    queue = worker("invoice.print", fail, max_attempts=1)
    page = open_page(serve())
    mark(page)
    expect(page.locator("#glance")).to_contain_text("No jobs yet")
    expect(page.locator("#died")).to_contain_text("Nothing died")

    job_id = enqueued(engine, "invoice.print")
    elsewhere(queue.start)
    assert begun.wait(30)
    expect(page.locator("#flight")).to_contain_text(str(job_id)[-8:])
    expect(page.locator("#flight")).to_contain_text(row(engine, job_id)["locked_by"])
    expect(page.locator(".topics")).to_contain_text("invoice.print")
    go_on.set()

    renewed(page, "#died", "RuntimeError: the printer is out of paper")
    expect(page.locator(".tile-dead")).to_contain_text("1")
    assert is_the_same(page)


def test_a_click_cancels_a_job_in_flight_and_its_handler_learns_it(
    engine: Engine, worker: Work, serve: Serve, open_page: Open
) -> None:
    causes: list[brooq.Interruption | None] = []

    def wait(claim: brooq.Claim) -> None:
        try:
            claim.wait(60)
        finally:
            causes.append(claim.cause)

    queue = worker("email.send", wait)
    job_id = enqueued(engine)
    elsewhere(queue.start)
    eventually(lambda: row(engine, job_id)["state"] == "processing")
    page = open_page(f"{serve()}/jobs/{job_id}")

    page.click("#cancel")

    expect(state_of(page)).to_have_text("canceled")
    expect(page.get_by_role("status").filter(has_text="its handler is told")).to_be_visible()
    eventually(lambda: causes)
    assert isinstance(causes[0], brooq.LeaseLost)
    assert row(engine, job_id)["state"] == "canceled"


def test_to_cancel_what_is_over_by_then_says_so(engine: Engine, serve: Serve, open_page: Open) -> None:
    job_id = enqueued(engine)
    page = open_page(f"{serve()}/jobs/{job_id}")
    page.click("#live-pause")  # so that the button stays
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET state = 'done', updated_at = now()"))

    page.click("#cancel")

    expect(page.get_by_role("status").filter(has_text="over already")).to_be_visible()
    assert row(engine, job_id)["state"] == "done"


def test_a_dead_job_is_replayed_and_both_pages_tell_of_the_other(
    engine: Engine, worker: Work, serve: Serve, open_page: Open
) -> None:
    is_repaired = threading.Event()

    def send(claim: brooq.Claim) -> None:
        if not is_repaired.is_set():
            raise RuntimeError("no connection to the mail server")

    queue = worker("email.send", send, max_attempts=2)
    job_id = enqueued(engine)
    elsewhere(queue.start)
    eventually(lambda: row(engine, job_id)["state"] == "dead")
    page = open_page(f"{serve()}/jobs/{job_id}")
    expect(page.locator("#error")).to_contain_text("RuntimeError: no connection to the mail server")
    expect(page.locator(".steps")).to_contain_text("1 earlier attempt")
    is_repaired.set()

    page.click("#replay")

    expect(page.get_by_role("status").filter(has_text="This is the replay")).to_be_visible()
    expect(state_of(page)).to_have_text("done")
    replay = UUID(page.locator(".full-id").inner_text())
    assert replay != job_id
    page.click("#replays")
    expect(page.locator(".full-id")).to_have_text(str(job_id))
    expect(page.locator("#replayed-by")).to_have_text(str(replay)[-8:])
    expect(page.locator("#replay")).to_have_count(0)
    assert states(engine) == {"dead": 1, "done": 1}


def test_the_page_pauses_and_catches_up(engine: Engine, serve: Serve, open_page: Open) -> None:
    job_id = enqueued(engine)
    page = open_page(f"{serve()}/jobs/{job_id}")
    page.click("#live-pause")
    expect(page.locator("#live-words")).to_have_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET state = 'canceled', updated_at = now()"))

    page.wait_for_timeout(2_500)  # a round, and half of one
    assert asked == []
    expect(state_of(page)).to_have_text("pending")

    page.click("#live-pause")
    expect(state_of(page)).to_have_text("canceled")
    expect(page.locator("#live-words")).to_have_text("Live")


def test_a_page_that_nobody_sees_asks_for_nothing(engine: Engine, serve: Serve, open_page: Open) -> None:
    job_id = enqueued(engine)
    page = open_page(f"{serve()}/jobs/{job_id}")
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true})")
    page.evaluate("window.isAway = true")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.wait_for_timeout(2_500)
    assert asked == []

    page.evaluate("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#live-words")).to_have_text("Live")
    page.wait_for_function("() => performance.getEntriesByType('resource').some((one) => one.name.endsWith('/part'))")
    assert asked
