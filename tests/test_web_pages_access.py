"""
Who may see and do what, in a real browser: signing in and out, a role that reads, and pages without scripts.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import Engine

import sqlalchemy_brooq as brooq
from tests.browsers import FLAGS, PROGRAM, TOKEN, Open, Serve, needs_chromium, problems, put
from tests.queues import states

pytestmark = needs_chromium


def test_a_token_opens_the_page_that_was_asked_for_and_signing_out_closes_it(
    engine: Engine, serve: Serve, open_page: Open
) -> None:
    put(engine, {"topic": "t"})
    home = serve(token=TOKEN)
    page = open_page(f"{home}/jobs?topic=t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    expect(page.locator("#token")).to_be_focused()
    assert problems(page) == []

    page.fill("#token", "guess")
    page.press("#token", "Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    assert problems(page) == []
    page.fill("#token", TOKEN)
    page.press("#token", "Enter")
    expect(page.locator("#rows-title")).to_have_text("1 job")
    assert page.url == f"{home}/jobs?topic=t"
    cookies = page.context.cookies()
    assert {one["httpOnly"] for one in cookies} == {True}
    assert TOKEN not in str(cookies)

    page.click("#sign-out")
    expect(page.locator("#token")).to_be_visible()
    page.goto(f"{home}/jobs")
    expect(page.locator("#token")).to_be_visible()


def test_a_login_that_has_expired_is_said_and_what_was_shown_stays(
    engine: Engine, serve: Serve, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engine, {"topic": "email.send"})
    page = open_page(f"{serve(token=TOKEN)}/jobs")
    page.fill("#token", TOKEN)
    page.click("#sign-in")
    expect(page.locator("#rows-title")).to_have_text("1 job")

    monkeypatch.setattr("sqlalchemy_brooq.web.access.SESSION", -1)
    page.evaluate("document.querySelector('#rows').dataset.every = '0.2'")
    page.click("#live-pause")
    page.click("#live-pause")  # which catches up at once

    expect(page.locator("#live-words")).to_contain_text("You are signed out")
    expect(page.locator("#rows")).to_contain_text("email.send")
    page.reload()
    expect(page.locator("#token")).to_be_visible()


def test_a_form_of_another_site_or_of_an_old_page_changes_nothing(
    engine: Engine, serve: Serve, open_page: Open
) -> None:
    with engine.begin() as connection:
        job_id = brooq.enqueue(connection, brooq.Job("t")).id
    home = serve()
    page = open_page(f"{home}/jobs/{job_id}")
    page.evaluate("document.querySelectorAll('[name=csrf_token]').forEach((field) => { field.value = 'x'.repeat(22) })")
    page.click("#cancel")
    expect(page.get_by_role("heading", level=1)).to_have_text("Forbidden")
    assert problems(page) == []

    other = page.context.new_page()
    other.route(
        "http://other.example/",
        lambda route: route.fulfill(
            body=f"<form method=post action='{home}/jobs/{job_id}/cancel'><button>a game</button></form>",
            content_type="text/html",
        ),
    )
    other.goto("http://other.example/")
    other.click("button")
    expect(other.get_by_role("heading", level=1)).to_have_text("Forbidden")
    assert states(engine) == {"pending": 1}


def test_who_may_only_read_sees_no_buttons_and_can_change_nothing(
    engine: Engine, serve: Serve, open_page: Open
) -> None:
    with engine.begin() as connection:
        job_id = brooq.enqueue(connection, brooq.Job("t")).id
    home = serve(token=TOKEN, read_token="only look")  # noqa: S106 - of this test
    page = open_page(f"{home}/jobs/{job_id}")
    page.fill("#token", "only look")
    page.click("#sign-in")

    expect(page.locator(".full-id")).to_have_text(str(job_id))
    expect(page.locator(".tag")).to_have_text("read only")
    expect(page.locator("#cancel")).to_have_count(0)
    page.goto(f"{home}/jobs")
    expect(page.locator("#rows-title")).to_have_text("1 job")
    expect(page.locator("[name=id]")).to_have_count(0)
    expect(page.locator(".bulk")).to_have_count(0)
    page.goto(f"{home}/jobs/bulk?action=cancel&everything=1")
    expect(page.get_by_role("heading", level=1)).to_have_text("Forbidden")

    page.evaluate(
        """(path) => {
            const form = document.querySelector("form[action$='/logout']");
            form.action = path;
            form.submit();
        }""",
        f"/jobs/{job_id}/cancel",
    )
    expect(page.locator("main")).to_contain_text("may read, and change nothing")
    assert states(engine) == {"pending": 1}

    page.click("#sign-out")
    expect(page.locator("#token")).to_be_visible()
    page.goto(home)
    expect(page.locator("#token")).to_be_visible()


def test_forms_work_over_plain_http_under_any_name(engine: Engine, serve: Serve, browser: Browser) -> None:
    put(engine, {"topic": "t"})
    home = serve(token=TOKEN).replace("127.0.0.1", "jobs.intranet")
    # A name that isn't this machine's: over plain HTTP a browser tells nothing of a form but where it is from.
    flags = [*FLAGS, "--host-resolver-rules=MAP jobs.intranet 127.0.0.1"]
    with browser.browser_type.launch(executable_path=PROGRAM, args=flags) as other:
        page = other.new_page()
        page.goto(f"{home}/jobs")
        page.fill("#token", TOKEN)
        page.click("#sign-in")
        expect(page.locator("#rows-title")).to_have_text("1 job")
        page.locator("#rows .id").first.click()
        page.click("#cancel")
        expect(page.locator(".said")).to_contain_text("Canceled.")
        page.click("#sign-out")
        expect(page.locator("#token")).to_be_visible()


def test_all_of_it_works_without_scripts(engine: Engine, serve: Serve, open_page: Open) -> None:
    with engine.begin() as connection:
        brooq.enqueue_many(connection, [brooq.Job("email.send"), brooq.Job("t"), brooq.Job("t")])
    page = open_page(serve(token=TOKEN), java_script_enabled=False)
    page.fill("#token", TOKEN)
    page.click("#sign-in")
    expect(page.locator("#live")).to_be_hidden()
    page.get_by_role("link", name="Refresh").click()
    expect(page.locator(".topics")).to_contain_text("email.send")
    page.locator("#last-hour-numbers summary").click()
    expect(page.locator("#last-hour-numbers")).to_contain_text("Nothing ended.")

    page.get_by_role("link", name="email.send").click()
    expect(page.locator("#rows-title")).to_have_text("1 job")
    page.locator("#rows .id").first.click()
    page.click("#cancel")
    expect(page.locator(".job-head .state")).to_have_text("canceled")
    page.click("#replay")
    expect(page.locator(".said")).to_contain_text("This is the replay")

    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page.locator("#tick-all")).to_be_hidden()
    page.fill("#f-topic", "t")
    page.click("#f-find")
    page.locator("[name=id]").first.check()
    page.click("#cancel-ticked")
    page.click("#confirm")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job canceled")
    page.click("#back")
    page.click("#cancel-found")
    page.click("#confirm")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job canceled")
    assert states(engine) == {"canceled": 3, "pending": 1}
    page.click("#sign-out")
    expect(page.locator("#token")).to_be_visible()
