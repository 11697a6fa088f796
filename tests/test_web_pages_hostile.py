"""
Text that means harm, in every place where the pages show text of somebody else's; in a real browser, which obeys it if
it is let to.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine

from tests.browsers import DESK, PHONE, Open, Serve, needs_chromium, problems, put

pytestmark = needs_chromium

TEXTS: Final = {
    "script": "<script>alert('script')</script>",
    "image": "<img src=x onerror=alert('image')>",
    "attribute": "\" autofocus onfocus=alert('attribute') x=\"' onfocus=alert(1) x='",
    "svg": "</title></pre></textarea><svg onload=alert('svg')>",
    "link": "javascript:alert('link')",
    "template": "{{ 7 * 7 }}{% raw %}",
    "htmx": "<b hx-get='/jobs' hx-trigger='load'>x</b>",
    "direction": "a\u202egnp.exe\u2066b\u200b",
    "escapes": "\\u0000 \\x00 %00 \x01\x1b[31m \u2028",
    "long": "W" * 3_000,
    "base": "<base href='//evil.example/'><meta http-equiv=refresh content='0;url=//evil.example'>",
}
EVERYTHING: Final = " ".join(text for name, text in TEXTS.items() if name != "long")


def rows() -> list[dict[str, Any]]:
    """
    Return jobs with all of it everywhere, one in flight and one dead.
    """
    now = datetime.now(UTC)
    worker = EVERYTHING
    lease = {"locked_by": worker, "locked_until": now + timedelta(hours=1), "claimed_at": now}
    place = {
        "payload": {**TEXTS, EVERYTHING: [EVERYTHING]},
        "result": list(TEXTS.values()),
        "last_error": f"{EVERYTHING}\n{TEXTS['long']}",
        "attempts": 2,
        "meta": {"chained_by": EVERYTHING, "replays": EVERYTHING},
    }
    return [
        {"id": uuid4(), "topic": EVERYTHING, "state": "processing", "idempotency_key": EVERYTHING, **place, **lease},
        {"id": uuid4(), "topic": TEXTS["long"], "state": "dead", "idempotency_key": TEXTS["long"][:900], **place},
        {"id": uuid4(), "topic": TEXTS["script"], "state": "pending", **place},
    ]


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_hostile_text_is_shown_as_the_text_it_is(
    engine: Engine, serve: Serve, open_page: Open, size: dict[str, int]
) -> None:
    jobs = rows()
    put(engine, *jobs)
    home = serve()
    page = open_page(home, viewport=size)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    expect(page.locator(".topics")).to_contain_text(TEXTS["script"])
    expect(page.locator("#flight")).to_contain_text(TEXTS["image"])
    expect(page.locator("#died")).to_contain_text(TEXTS["svg"][:20])
    assert problems(page) == []

    for job in jobs:
        page.goto(f"{home}/jobs/{job['id']}")
        expect(page.locator("#payload")).to_contain_text("onerror=alert('image')")
        expect(page.locator("#payload .unseen", has_text="U+202E").first).to_be_visible()
        expect(page.locator("#error")).to_contain_text("<base href=")
        assert page.locator("#payload *:not(.unseen), #error *:not(.unseen)").count() == 0
        assert problems(page) == []
    page.goto(f"{home}/jobs")
    assert problems(page) == []
    page.goto(home)
    page.get_by_role("link", name=TEXTS["script"], exact=True).click()  # the topic alone
    expect(page.locator("#rows-title")).to_have_text("1 job")
    expect(page.locator("#f-topic")).to_have_value(TEXTS["script"])
    page.click("#cancel-found")
    expect(page.locator(".facts")).to_contain_text(TEXTS["script"])
    assert problems(page) == []
    assert [url for url in asked if not url.startswith(home)] == []


def test_hostile_text_in_the_address_is_shown_as_the_text_it_is(serve: Serve, open_page: Open) -> None:
    home = serve()
    page = open_page(home)
    for field in ("topic", "key", "path", "since", "state", "within", "clock", "after", "note"):
        page.goto(f"{home}/jobs?{urlencode({field: EVERYTHING, 'value': EVERYTHING, 'until': '2026-12-01T10:00'})}")
        expect(page.locator("#f-find")).to_be_visible()
        assert page.evaluate("document.querySelectorAll('b, base, img, script:not([src])').length") == 0
