"""
How the pages look and read: every page in every state, on a desk and on a phone, by day and by night, by keyboard
alone, and with a database that is slow or gone.

With ``BROOQ_SCREENSHOTS=docs/images`` the pictures in the docs come from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Literal

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, create_engine, text

from sqlalchemy_brooq import Queue
from sqlalchemy_brooq.demo.postgres import LocalPostgres
from sqlalchemy_brooq.migrations import migrate
from sqlalchemy_brooq.web import Role
from tests.browsers import DESK, PHONE, RULES, Open, Serve, needs_chromium, picture, problems, put, renewed
from tests.samples import DEAD, RUNNING, SCHEDULED, fill

pytestmark = needs_chromium

Scheme = Literal["light", "dark"]
PLACES: Final[dict[str, dict[str, Any]]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": PHONE, "has_touch": True, "is_mobile": True},
}
CONTRAST: Final = ("color-contrast", "link-in-text-block")
TOUCH: Final = ("target-size", "color-contrast", "scrollable-region-focusable", "meta-viewport")
#: path -> what the picture of it is called, if the docs have one, and how much of it they show
BUSY: Final = {
    "/": ("dashboard-overview", 1340),
    "/jobs": (None, None),
    "/jobs?state=dead&state=canceled&clock=ended&within=1d": ("dashboard-jobs", 800),
    f"/jobs/{DEAD}": ("dashboard-job", 900),
    f"/jobs/{RUNNING}": (None, None),
    f"/jobs/{SCHEDULED}": (None, None),
    "/retention": (None, None),
    "/jobs/bulk?action=replay&everything=1&state=dead": (None, None),
    "/jobs?state=gone": (None, None),
    "/nothing": (None, None),
}


@pytest.mark.timeout(400)  # where the machine is busy, axe takes its time over pages of many rows
@pytest.mark.parametrize(("where", "rules"), [("light", RULES), ("dark", CONTRAST), ("phone", TOUCH)])
def test_every_page_of_a_busy_shop_reads_well(
    engine: Engine,
    serve: Serve,
    open_page: Open,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    rules: Sequence[str],
) -> None:
    monkeypatch.setattr("sqlalchemy_brooq.web.pages.PAGE", 14)
    fill(engine)
    home = serve(Queue(engine), anonymous=Role.WRITE, masks=["card.number"])
    page = open_page(home, **PLACES[where])
    found = {}
    for path, (name, height) in BUSY.items():
        page.goto(home + path)
        expect(page.locator("main")).to_be_visible()
        found[path] = problems(page, rules)
        if name is not None and (where != "phone" or path == "/"):
            picture(
                page,
                name if where == "light" else f"{name}-{where}",
                height=PHONE["height"] if where == "phone" else height,
            )

    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", PHONE)], ids=["desk", "phone"])
def test_an_empty_table_says_what_to_do_next(
    serve: Serve, open_page: Open, scheme: Scheme, size: dict[str, int]
) -> None:
    home = serve()
    page = open_page(home, color_scheme=scheme, viewport=size)
    expect(page.locator("#glance")).to_contain_text("brooq-worker run")
    assert problems(page) == []
    page.goto(f"{home}/jobs")
    expect(page.locator("#rows")).to_contain_text("No jobs yet")
    assert problems(page) == []
    page.goto(f"{home}/retention")
    expect(page.locator("#retention")).to_contain_text("this dashboard was given an engine")
    assert problems(page) == []


@pytest.mark.parametrize(("scheme", "size"), [("dark", DESK), ("light", PHONE)], ids=["desk", "phone"])
def test_what_takes_too_long_is_unknown_and_the_reason_stands_beside_it(
    engine: Engine, serve: Serve, open_page: Open, scheme: Scheme, size: dict[str, int]
) -> None:
    put(engine, {"topic": "t"})
    home = serve(anonymous=Role.WRITE, budget=timedelta(milliseconds=30))
    with engine.begin() as connection:
        connection.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))
        page = open_page(home, color_scheme=scheme, viewport=size)
        for part in ("#glance", "#activity", "#flight", "#died"):
            expect(page.locator(part)).to_contain_text("took longer than 30ms")
        assert problems(page) == []
        page.goto(f"{home}/retention")
        expect(page.locator("#retention")).to_contain_text("took longer than 30ms")
        page.goto(f"{home}/jobs")
        expect(page.locator("#rows")).to_contain_text("took longer than 30ms")
        assert problems(page) == []
        page.goto(f"{home}/jobs/bulk?action=cancel&everything=1")
        expect(page.get_by_role("heading", level=1)).to_have_text("Cancel an unknown number of jobs?")
        expect(page.locator("#confirm")).to_have_count(0)
        assert problems(page) == []


def test_a_database_that_is_down_is_said_and_the_pages_recover(
    postgres_server: LocalPostgres, serve: Serve, open_page: Open
) -> None:
    migrate(postgres_server.url())
    engine = create_engine(postgres_server.url())
    put(engine, {"topic": "email.send"})
    home = serve(engine)
    page = open_page(f"{home}/jobs")
    expect(page.locator("#rows")).to_contain_text("email.send")
    other = page.context.new_page()

    postgres_server.stop("immediate")
    catch_up(page)
    expect(page.locator("#live-words")).to_have_text("The database can’t answer. Trying again.")  # noqa: RUF001
    expect(page.locator("#rows")).to_contain_text("email.send")
    assert problems(page) == []
    answer = other.goto(f"{home}/jobs")
    assert answer is not None
    assert answer.status == 503
    expect(other.get_by_role("heading", level=1)).to_have_text("The database can’t answer")  # noqa: RUF001
    assert problems(other) == []

    postgres_server.start()
    catch_up(page)
    expect(page.locator("#live-words")).to_have_text("Live")
    expect(other.locator("#rows")).to_contain_text("email.send", timeout=15_000)  # by itself
    engine.dispose()


def catch_up(page: Page) -> None:
    """
    Let the page ask for all its parts now: that is what it does after a pause.
    """
    page.click("#live-pause")
    page.click("#live-pause")


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.className || 'none'"))


def test_a_keyboard_is_enough_and_the_focus_is_seen(engine: Engine, serve: Serve, open_page: Open) -> None:
    put(engine, *({"topic": "t", "priority": n % 3} for n in range(3)))
    home = serve()
    page = open_page(home)

    page.keyboard.press("Tab")
    assert focused(page) == "skip"
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert focused(page) == "topic-1"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")

    expect(page.locator("#rows-title")).to_have_text("3 jobs")
    box = page.locator("[name=id]").nth(1)
    box.focus()
    page.keyboard.press("Space")
    expect(box).to_be_checked()
    page.locator("#cancel-ticked").focus()
    page.keyboard.press("Enter")
    page.locator("#confirm").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("1 job canceled")


def test_the_focus_and_what_was_opened_stay_while_parts_are_renewed(
    engine: Engine, serve: Serve, open_page: Open
) -> None:
    put(engine, {"topic": "t"}, {"topic": "u"})
    page = open_page(serve())
    page.click("#last-hour-numbers-summary")
    page.focus("#topic-2")
    put(engine, *({"topic": topic, "state": "done", "attempts": 1} for topic in ("t", "a")))

    renewed(page, ".topics", "a\t")
    renewed(page, "#last-hour-numbers", "\t2\t")

    assert page.evaluate("document.activeElement.textContent") in ("t", "u")
    assert page.locator("#last-hour-numbers").get_attribute("open") is not None


def test_whoever_wants_no_motion_sees_none(serve: Serve, open_page: Open) -> None:
    page = open_page(serve(), reduced_motion="reduce")

    assert page.evaluate("document.getAnimations().length") == 0
