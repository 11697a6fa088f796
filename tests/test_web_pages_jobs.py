"""
Looking for jobs in a real browser, and changing many of them: counted first, then done.
"""

from __future__ import annotations

from playwright.sync_api import Page, expect
from sqlalchemy import Engine, text

import sqlalchemy_brooq as brooq
from tests.browsers import Open, Serve, needs_chromium, put
from tests.queues import states

pytestmark = needs_chromium

MANY = 10_000


def fill(engine: Engine) -> None:
    with engine.begin() as connection:
        jobs = (brooq.Job("bulk.topic", {"n": n}) for n in range(MANY))
        brooq.enqueue_many(connection, jobs)


def shown(page: Page) -> list[str]:
    found: list[str] = page.locator("[id^=tick-]:not(#tick-all)").evaluate_all("boxes => boxes.map(box => box.value)")
    return found


def test_ten_thousand_jobs_are_paged_through_and_canceled_after_a_count(
    engine: Engine, serve: Serve, open_page: Open
) -> None:
    fill(engine)
    page = open_page(f"{serve()}/jobs")
    page.fill("#f-topic", "bulk.topic")
    page.check("#f-pending")
    page.click("#f-find")
    first = shown(page)
    assert len(first) == 50

    pages = [first]
    for number in (2, 3, 4):
        page.click("#page-next")
        expect(page.locator("#rows-title")).to_have_text(f"Page {number}")
        pages.append(shown(page))
    assert len({job_id for found in pages for job_id in found}) == 200
    page.click("#page-back")
    expect(page.locator("#rows-title")).to_have_text("Page 3")
    assert shown(page) == pages[2]
    page.click("#page-back")
    page.click("#page-back")
    expect(page.locator("#page-back")).to_have_count(0)
    assert shown(page) == first

    page.click("#cancel-found")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 10,000 jobs?")
    assert states(engine) == {"pending": MANY}
    page.click("#confirm")
    expect(page.get_by_role("heading", level=1)).to_have_text("10,000 jobs canceled", timeout=60_000)
    assert states(engine) == {"canceled": MANY}


def test_more_jobs_than_were_counted_are_counted_again(engine: Engine, serve: Serve, open_page: Open) -> None:
    with engine.begin() as connection:
        brooq.enqueue_many(connection, [brooq.Job("t"), brooq.Job("t")])
    page = open_page(f"{serve()}/jobs?topic=t")
    page.click("#cancel-found")
    expect(page.locator("#confirm")).to_have_text("Cancel 2 jobs")
    with engine.begin() as connection:
        brooq.enqueue(connection, brooq.Job("t"))

    page.click("#confirm")

    expect(page.get_by_role("alert")).to_contain_text("nothing was changed")
    expect(page.locator("#confirm")).to_have_text("Cancel 3 jobs")
    assert states(engine) == {"pending": 3}
    page.click("#confirm")
    expect(page.get_by_role("heading", level=1)).to_have_text("3 jobs canceled")


def test_too_many_jobs_are_not_offered_to_be_changed(engine: Engine, serve: Serve, open_page: Open) -> None:
    fill(engine)
    with engine.begin() as connection:
        brooq.enqueue(connection, brooq.Job("bulk.topic"))

    page = open_page(f"{serve()}/jobs/bulk?action=cancel&everything=1")

    expect(page.get_by_role("heading", level=1)).to_have_text("More than 10,000 jobs")
    expect(page.locator("#confirm")).to_have_count(0)


def test_ticked_jobs_stay_ticked_and_are_the_ones_that_are_replayed(
    engine: Engine, serve: Serve, open_page: Open
) -> None:
    put(engine, *({"topic": "t", "state": "dead", "attempts": 1} for _ in range(3)))
    page = open_page(f"{serve()}/jobs?state=dead")
    jobs = shown(page)
    page.check(f"#tick-{jobs[0]}")
    page.check(f"#tick-{jobs[2]}")
    expect(page.locator("#live-words")).to_have_text("Held while jobs are ticked")

    page.click("#replay-ticked")
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 2 jobs?")
    page.click("#confirm")
    expect(page.get_by_role("heading", level=1)).to_have_text("2 jobs replayed")
    with engine.connect() as connection:
        replayed = connection.execute(text("SELECT meta->>'replays' FROM job WHERE state = 'pending'")).scalars().all()
    assert sorted(replayed) == sorted([jobs[0], jobs[2]])

    page.click("#back")
    page.check("#tick-all")
    page.click("#replay-ticked")
    page.click("#confirm")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job replayed")
    expect(page.locator("dl")).to_contain_text("replayed before")


def test_nothing_ticked_is_said(engine: Engine, serve: Serve, open_page: Open) -> None:
    put(engine, {"topic": "t"})
    page = open_page(f"{serve()}/jobs")

    page.click("#cancel-ticked")

    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing to cancel")
    page.click("#back")
    expect(page.locator("#rows-title")).to_have_text("1 job")


def test_jobs_are_found_by_each_field_of_the_form(engine: Engine, serve: Serve, open_page: Open) -> None:
    put(
        engine,
        {"topic": "email.send", "payload": {"customer": {"id": 42}}, "idempotency_key": "order 7"},
        {"topic": "email.send", "state": "done", "attempts": 1},
        {"topic": "ledger.post", "state": "dead", "attempts": 5, "last_error": "ValueError: no"},
    )
    page = open_page(f"{serve()}/jobs")
    expect(page.locator("#rows-title")).to_have_text("3 jobs")

    page.fill("#f-key", "order 7")
    page.click("#f-find")
    expect(page.locator("#rows-title")).to_have_text("1 job")
    page.click("#f-clear")
    page.click("#f-more-summary")
    page.fill("#f-path", "customer.id")
    page.fill("#f-value", "42")
    page.click("#f-find")
    expect(page.locator("#rows-title")).to_have_text("1 job")
    page.fill("#f-value", "43")
    page.click("#f-find")
    expect(page.locator("#rows")).to_contain_text("No job is like that")
    page.click("#f-clear")
    page.select_option("#f-clock", "ended")
    page.select_option("#f-within", "1h")
    page.click("#f-find")
    expect(page.locator("#rows-title")).to_have_text("2 jobs")
    expect(page.locator("#cancel-found")).to_have_count(0)

    job_id = shown(page)[0]
    page.fill("#f-key", job_id)
    page.select_option("#f-within", "")
    page.click("#f-find")
    expect(page.locator(".full-id")).to_have_text(job_id)
