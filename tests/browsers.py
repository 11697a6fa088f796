"""
A real browser, the dashboard on a real server, and an eye for what no page of ours may do in it.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Engine, insert

from sqlalchemy_brooq.model import JOB
from tests.servers import ROOT
from tests.waiting import eventually

if TYPE_CHECKING:  # a plugin of every run: what only these tests need is imported when the first of them begins
    from playwright.sync_api import Browser, BrowserContext, Page

PROGRAM: Final = shutil.which("chromium")
FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DESK: Final = {"width": 1280, "height": 800}
PHONE: Final = {"width": 390, "height": 844}
RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
"""What axe looks at, unless it is told to look at something else."""
PATIENCE: Final = 20_000
"""Milliseconds that a page has to become what a test waits for."""
TOKEN: Final = "let me in"  # noqa: S105 - opens what a test serves

needs_chromium = pytest.mark.skipif(
    PROGRAM is None, reason="there is no chromium: install Debian's package of that name"
)

#: Told to the page's console, which the test reads.
_WATCH: Final = """
document.addEventListener("securitypolicyviolation", (event) => {
    console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
"""


@contextmanager
def served(application: Any) -> Iterator[str]:
    """
    Serve *application* on a loopback port, each request on a thread; yield its address.
    """
    from werkzeug.serving import WSGIRequestHandler, make_server
    from werkzeug.wsgi import ClosingIterator

    class Quiet(WSGIRequestHandler):
        def log(self, *_: Any) -> None:
            pass

    def whole(environ: Any, start_response: Any) -> list[bytes]:
        # This server forgets to close a file whose reader has gone, as browsers do that leave a page.
        with closing(ClosingIterator(application(environ, start_response))) as answer:
            return [b"".join(answer)]

    server = make_server("127.0.0.1", 0, whole, threaded=True, request_handler=Quiet)
    server.daemon_threads = False  # type: ignore[attr-defined] # so that closing it waits for what is being answered
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """
    One for the tests of a file: it holds an event loop, which the tests of other files want for themselves.
    """
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=list(FLAGS))
        yield browser
        browser.close()


Serve = Callable[..., str]
Open = Callable[..., "Page"]


@pytest.fixture
def serve(engine: Engine) -> Iterator[Serve]:
    """
    A function that serves the dashboard and returns its address; whoever sits at this machine may write.
    """
    from sqlalchemy_brooq.web import Role, create_app

    with ExitStack() as stack:

        def serve(source: Any = engine, **settings: Any) -> str:
            settings = settings or {"anonymous": Role.WRITE}
            return stack.enter_context(served(create_app(source, title="Shop jobs", **settings)))

        yield serve


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """
    A function that opens a page of a browser of its own; nothing on it may fail, or run that isn't ours.
    """
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def open_page(address: str, **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": DESK, **settings})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.add_init_script(_WATCH)
        page = context.new_page()
        watch(page, faults)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def watch(page: Page, faults: list[str]) -> None:
    """
    Note what no page of ours may do: raise, ask something, or want what its policy refuses.
    """

    def said(message: Any) -> None:
        if message.text.startswith("policy:") or "Content Security Policy" in message.text:
            faults.append(message.text)

    def asked(dialog: Any) -> None:
        faults.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    page.on("console", said)
    page.on("dialog", asked)
    page.on("pageerror", lambda error: faults.append(f"an error: {error}"))


def renewed(page: Page, part: str, text: str) -> None:
    """
    Wait until *part* of the page says *text*; it is asked for at once, as when somebody comes back to the page.
    """

    def says() -> bool:
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_timeout(100)
        return text in page.locator(part).inner_text()

    eventually(says, message=f"{part} doesn't say {text!r}")


def problems(page: Page, rules: Sequence[str] = RULES) -> list[str]:
    """
    Return what axe finds wrong with *page* by *rules*, and how it is too wide if it is.
    """
    page.evaluate(_axe())
    options = {"runOnly": list(rules), "resultTypes": ["violations"], "elementRef": False}
    found = page.evaluate("async (options) => (await axe.run(options)).violations", options)
    told = [f"{one['id']}: {node['html'][:200]} {node['failureSummary']}" for one in found for node in one["nodes"]]
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [*told, *([f"{wide} pixels too wide"] if wide > 0 else [])]


@cache
def _axe() -> str:
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text()


def picture(page: Page, name: str, *, height: int | None = None) -> None:
    """
    Write a picture of *page* for the docs, if the run was asked for them: ``BROOQ_SCREENSHOTS=docs/images``.
    """
    folder = os.environ.get("BROOQ_SCREENSHOTS")
    if not folder:
        return
    path = ROOT / folder / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    width = page.viewport_size["width"] if page.viewport_size else DESK["width"]
    clip: Any = None if height is None else {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=path, full_page=True, clip=clip, animations="disabled")
    _optimise(path)


def _optimise(path: Path) -> None:
    """
    Make a picture smaller: few colours are in it.
    """
    from PIL import Image

    with Image.open(path) as image:
        image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            path, optimize=True
        )


def put(engine: Engine, *rows: dict[str, Any]) -> None:
    """
    Write rows of the table as they are, past all checks but the table's own.
    """
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(JOB).values(row))
