"""
``brooq-worker web``: the API and the dashboard, served.
"""

from __future__ import annotations

import contextlib
import ipaddress
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, cast
from wsgiref.types import WSGIApplication

import click
from sqlalchemy import Engine

from sqlalchemy_brooq.cli.database import database_engine, database_options
from sqlalchemy_brooq.cli.endings import Failed, Refused, explained, first_line
from sqlalchemy_brooq.cli.logs import FORMATS, LEVELS, log_to_stderr
from sqlalchemy_brooq.cli.settings import load_dotenv, settings_over, text_of
from sqlalchemy_brooq.cli.target import app_dir_option, load_queue
from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.kinds import SECRET, host_and_port, is_loopback
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.schema import check_schema
from sqlalchemy_brooq.worker.connection import short_transaction

LISTEN: Final = "127.0.0.1:8091"
LIMITS: Final[dict[str, Any]] = {"max_request_body_size": 2 << 20, "connection_limit": 1_000, "channel_timeout": 20}
"""What clients that nobody knows yet may take: bytes of a body, connections, seconds that one of them may be idle."""
THREADS: Final = 8
"""Requests that are answered at once; as many connections to the database are needed at most."""
ROLES: Final = ("read", "write")
SHORTEST: Final = 16
"""Characters of a token that other hosts may guess at."""
FORWARDED: Final = frozenset({"x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"})
"""What a trusted proxy may say about a request."""


@click.command("web", short_help="Serve the API and the dashboard.")
@click.argument("target", metavar="[MODULE:QUEUE]", required=False)
@app_dir_option
@click.option("--listen", metavar="HOST:PORT", default=LISTEN, show_default=True, help="Where to listen; port 0: any.")
@click.option(
    "--read-token-file",
    metavar="FILE",
    help="A file with a second token: who has it may read, and change nothing.",
)
@click.option(
    "--anonymous",
    type=click.Choice(ROLES),
    help="What whoever sits at this machine may do without a token. On a loopback address only.",
)
@click.option("--read-only", is_flag=True, help="Nobody may cancel or replay, whatever token they have.")
@click.option(
    "--mask",
    "masks",
    metavar="FIELD",
    multiple=True,
    help="Don't show this field of payloads and results: a name, or a path such as card.number. Repeat it for more.",
)
@click.option("--title", metavar="TEXT", default="Jobs", show_default=True, help="What the pages are headed with.")
@click.option("--prefix", metavar="PATH", default="", help="The path that a proxy serves this under, such as /jobs.")
@click.option(
    "--trust-proxy",
    metavar="ADDRESS",
    help="The address of a proxy in front: its X-Forwarded-For, -Host and -Proto are believed, and nobody else's.",
)
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), help="What is logged; info by default.")
@click.option(
    "--log-format", type=click.Choice(FORMATS, case_sensitive=False), help="How a line of the log is written."
)
@database_options
def web_command(
    target: str | None,
    app_dir: Path,
    log_level: str | None,
    log_format: str | None,
    database_url: str | None,
    schema: str | None,
    **options: Any,
) -> None:
    """
    Serve the API and the dashboard until SIGINT or SIGTERM.

    It shows the jobs in the database of MODULE:QUEUE, or in the one that --database-url or DATABASE_URL names. Given a
    queue, it also knows for how long its jobs are kept.

    Who wants to see anything needs the token that QUEUE_API_TOKEN, or QUEUE_API_TOKEN_FILE, sets: a browser asks for
    it, programs send it as "Authorization: Bearer TOKEN". Other hosts reach it only with a --listen that says so,
    QUEUE_ALLOW_PUBLIC=1 and a token.
    """
    load_dotenv(app_dir)
    queue = load_queue(target, app_dir) if target is not None else None
    config = _config(queue)
    tokens = {"token": config.api_token, "read_token": _read_token(options["read_token_file"])}
    place = _place(options["listen"])
    _check_proxy(options["trust_proxy"])
    _check_exposure(place[0], config, options, [token for token in tokens.values() if token])
    log_to_stderr(log_level, log_format)
    with explained(), _source(queue, database_url, schema) as source:
        in_schema = schema if source is queue else None  # an engine of our own has been told
        application = _application(source, {**options, **tokens, "schema": in_schema})
        with _listening(application, place, options) as server:
            _run(server)


def _config(queue: Queue | None) -> Config:
    """
    Return the settings in force, which *queue* then has as well.
    """
    if queue is None:
        return replace(Config(), **cast(dict[str, Any], settings_over(Config(), {}, {})))
    with explained():
        queue.reconfigure(**settings_over(queue.config, {}, {}))
    return queue.config


def _place(listen: str) -> tuple[str, int]:
    try:
        return host_and_port(listen)
    except ValueError as error:
        raise Refused(f"--listen: {error}") from None


def _check_proxy(address: str | None) -> None:
    """
    Refuse to believe whoever comes by: waitress would take a star for everybody.
    """
    try:
        ipaddress.ip_address(address or "127.0.0.1")
    except ValueError:
        raise Refused(
            f"--trust-proxy: {address!r} is no address: name the one that the proxy connects from, such as 127.0.0.1"
        ) from None


def _check_exposure(host: str, config: Config, options: Mapping[str, Any], tokens: Sequence[str]) -> None:
    """
    Refuse to show jobs to whoever comes by.
    """
    if not tokens and options["anonymous"] is None:
        raise Refused(
            "there is no token: set QUEUE_API_TOKEN or QUEUE_API_TOKEN_FILE; for yourself alone, --anonymous read"
            " shows everything to whoever sits at this machine"
        )
    if options["anonymous"] is not None and (not is_loopback(host) or options["trust_proxy"]):
        raise Refused("--anonymous is for this machine alone: listen on 127.0.0.1, and without --trust-proxy")
    if not is_loopback(host) and not (config.allow_public and tokens):
        raise Refused(
            f"--listen: {host!r} is not a loopback address, so other hosts could reach it: use 127.0.0.1, or allow it"
            " with QUEUE_ALLOW_PUBLIC=1 and a token"
        )
    if not is_loopback(host) and min(map(len, tokens)) < SHORTEST:
        raise Refused(
            f"a token of fewer than {SHORTEST} characters can be guessed by other hosts, which --listen lets in:"
            " openssl rand -hex 32 makes a better one"
        )


def _read_token(path: str | None) -> str | None:
    if path is None:
        return None
    label = f"--read-token-file: {path!r}"
    try:
        token = SECRET.check(text_of(Path(path), label).rstrip("\r\n"))
    except ValueError as error:
        raise Refused(f"{label}: {error}") from None
    if token is None:
        raise Refused(f"{label} is empty: put the token into it")
    return str(token)


@contextlib.contextmanager
def _source(queue: Queue | None, url: str | None, schema: str | None) -> Iterator[Engine | Queue]:
    """
    Lend what knows the jobs, once it is sure that they are there.
    """
    if queue is not None and url is None:
        with contextlib.closing(queue):
            yield queue
        return
    with database_engine(url, schema, connections=THREADS) as engine:
        with short_transaction(engine) as connection:
            check_schema(connection)
        yield engine


def _application(source: Engine | Queue, options: Mapping[str, Any]) -> WSGIApplication:
    try:
        from sqlalchemy_brooq import web
    except ImportError as error:
        raise _missing(error) from None
    return web.create_app(
        source,
        token=options["token"],
        read_token=options["read_token"],
        anonymous=options["anonymous"] and web.Role(options["anonymous"]),
        read_only=options["read_only"],
        masks=options["masks"],
        title=options["title"],
        schema=options["schema"],
    )


@contextlib.contextmanager
def _listening(application: WSGIApplication, place: tuple[str, int], options: Mapping[str, Any]) -> Iterator[Any]:
    """
    Lend a server that listens; it ends with what it holds.
    """
    try:
        from waitress.server import create_server
    except ImportError as error:
        raise _missing(error) from None
    host, port = place
    proxy = options["trust_proxy"]
    proxied = {"trusted_proxy": proxy, "trusted_proxy_headers": FORWARDED} if proxy else {}
    try:
        server = create_server(
            application,
            host=host,
            port=port,
            threads=THREADS,
            **LIMITS,
            ident=None,  # who serves is nobody's business
            url_prefix=options["prefix"],
            **proxied,
            # Without them the application would take what a proxy passes on for a request of this machine's.
            clear_untrusted_proxy_headers=False,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(
            f"can't listen on {host}:{port}: {reason}; stop what listens there, or --listen elsewhere"
        ) from None
    with contextlib.closing(server):
        yield server


def _missing(error: ImportError) -> Failed:
    return Failed(
        f"the dashboard needs more than a worker does ({first_line(error)}): "
        "pip install 'sqlalchemy-brooq[web]', then try again"
    )


def _run(server: Any) -> None:
    """
    Serve until a signal comes; then let what is being answered end.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    listening = getattr(server, "effective_listen", None) or [(server.effective_host, server.effective_port)]
    host, port = listening[0]
    click.echo(f"the dashboard is at http://{f'[{host}]' if ':' in host else host}:{port}{server.adj.url_prefix}/")
    server.run()


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
