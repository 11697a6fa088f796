"""
The HTTP of the service surface: who gets which answer on which path, and a small server that no client can block.

Owns paths, methods, the token and the connections. What health is and what the metrics are, it is told: it knows no
queue and no database, and imports nothing that would need one, as the supervisor of many workers serves by it too.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import logging
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from types import MappingProxyType
from typing import Any, Final, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from sqlalchemy_brooq.errors import BrooqError

log = logging.getLogger("sqlalchemy_brooq.service")

STALL: Final = 5.0
"""Seconds that a client may keep silent, or not take what it asked for."""
CLOSING: Final = 1.0
"""Seconds that answers under way have when the server closes."""
POLL: Final = 0.1
"""Seconds between looks of the accepting thread at whether it should end."""
METHODS: Final = ("GET", "HEAD")

_OTHER: Final = "other"
"""The metrics' label for paths that don't exist: anybody could make up any number of them."""
_VERSIONS: Final = re.compile(r"version=([^;,]*)")
"""The versions of formats that a client accepts, each to be a `_VERSION`."""
_VERSION: Final = re.compile(r"\s*[0-9]{1,3}(\.[0-9]{1,3}){0,2}\s*")
_PLAIN: Final = ("Content-Type", "text/plain; charset=utf-8")
_JSON: Final = ("Content-Type", "application/json")
_FRESH: Final = ("Cache-Control", "no-store")


class ServiceError(BrooqError, OSError):
    """
    The service surface can't listen where it should; `host` and `port` are where.
    """

    def __init__(self, host: str, port: int, reason: str) -> None:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        super().__init__(
            f"can't listen on {place}: {reason}. Stop what listens there, or set QUEUE_LISTEN_ADDRESS"
            " (listen_address) to another address; port 0 is any free one, 'off' is none"
        )
        self.host = host
        self.port = port


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    headers: Sequence[tuple[str, str]]
    body: bytes

    @property
    def line(self) -> str:
        return f"{self.status.value} {self.status.phrase}"


class Surface:
    """
    The application: picks the page, and never lets an error out.

    Args:
        health: Returns what `/healthz` answers with; it is 503 unless that says ``healthy``.
        metrics: Answers `/metrics`, in the format and encoding that the client prefers.
        token: Opens every other path, of which there is none yet; without one nobody learns even that.
        requested: Called with the path and the code of each answer; of paths that don't exist it hears "other".
        told: Renders an exception for the log; the standard traceback would quote what a database error carries.
    """

    def __init__(
        self,
        health: Callable[[], Mapping[str, Any]],
        metrics: WSGIApplication,
        token: str | None,
        requested: Callable[[str, str], object],
        told: Callable[[BaseException], str],
    ) -> None:
        self._health = health
        self._exposition = metrics
        self._token = None if token is None else token.encode()
        self._requested = requested
        self._told = told
        self._pages: Mapping[str, Callable[[WSGIEnvironment], _Answer]] = MappingProxyType(
            {"/healthz": self._healthz, "/metrics": self._metrics}
        )

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """
        Answer one request, as WSGI has it.
        """
        path = environ.get("PATH_INFO", "")
        if path not in self._pages:
            path = _OTHER
        try:
            answer = self._answer(path, environ)
        except Exception as error:  # noqa: BLE001 - a request's top: the client must not see what went wrong
            log.error("%s could not be answered\n%s", path, self._told(error))  # noqa: TRY400 - it renders the error
            answer = _said(HTTPStatus.INTERNAL_SERVER_ERROR)
        self._requested(path, str(answer.status.value))
        start_response(answer.line, [*answer.headers, ("Content-Length", str(len(answer.body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _answer(self, path: str, environ: WSGIEnvironment) -> _Answer:
        page = self._pages.get(path)
        if page is None:
            return self._elsewhere(environ)
        if environ["REQUEST_METHOD"] not in METHODS:
            return _said(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", ", ".join(METHODS)))
        return page(environ)

    def _elsewhere(self, environ: WSGIEnvironment) -> _Answer:
        """
        Answer for every other path: who has no token doesn't learn whether there is anything.
        """
        if self._token is None or self._authorized(environ, self._token):
            return _said(HTTPStatus.NOT_FOUND)
        return _said(HTTPStatus.UNAUTHORIZED, ("WWW-Authenticate", "Bearer"))

    def _authorized(self, environ: WSGIEnvironment, token: bytes) -> bool:
        # WSGI hands headers over as the Latin-1 reading of their bytes.
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token)

    def _healthz(self, _: WSGIEnvironment) -> _Answer:
        report = self._health()
        status = HTTPStatus.OK if report["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE
        return _Answer(status, (_JSON, _FRESH), json.dumps(report, indent=2).encode() + b"\n")

    def _metrics(self, environ: WSGIEnvironment) -> _Answer:
        headers: list[tuple[str, str]] = []

        def start(_status: str, given: list[tuple[str, str]], _error: object = None, /) -> Callable[[bytes], object]:
            headers.extend(given)
            return lambda _: None

        asked = {**environ, "REQUEST_METHOD": "GET"}
        if not all(map(_VERSION.fullmatch, _VERSIONS.findall(asked.get("HTTP_ACCEPT", "")))):
            del asked["HTTP_ACCEPT"]  # prometheus_client falls over it; the plain format is for everybody
        body = b"".join(self._exposition(asked, start))
        return _Answer(HTTPStatus.OK, headers, body)


def _said(status: HTTPStatus, *headers: tuple[str, str]) -> _Answer:
    return _Answer(status, (_PLAIN, *headers), f"{status.phrase}\n".encode())


class ServiceServer:
    """
    Serves *app* on a thread of its own; bound at once, answering from `start` on.

    Args:
        app: The WSGI application.
        host: An address or a name; also IPv6, without brackets.
        port: 0 means any free one.

    Raises:
        ServiceError: The address is taken, not this machine's, or not allowed.
    """

    def __init__(self, app: WSGIApplication, host: str, port: int) -> None:
        self._server = _bound(app, host, port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL,), name="brooq-service", daemon=True
        )

    @property
    def address(self) -> tuple[str, int]:
        """
        Host and port that it listens on.
        """
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """
        The address as a URL, without a path.
        """
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def start(self) -> None:
        """
        Begin to answer.
        """
        self._thread.start()

    def close(self) -> None:
        """
        Stop listening, and end what is being answered; harmless when repeated.
        """
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bound(app: WSGIApplication, host: str, port: int) -> _Server:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return _Server(family, address, app)
    except (OSError, UnicodeError) as error:  # the latter for a name that can't be one
        raise ServiceError(host, port, getattr(error, "strerror", None) or str(error)) from error


class _Handler(WSGIRequestHandler):
    timeout = STALL
    #: Also to a request that doesn't say its version, or none that is one, the answer begins with a status.
    default_request_version = "HTTP/1.0"

    def log_message(self, *_: object) -> None:
        """
        Say nothing: a scrape every few seconds is no news.
        """

    def get_stderr(self) -> io.StringIO:
        """
        Swallow what wsgiref has to say about clients that went away; the application logs its own errors.
        """
        return io.StringIO()


class _Server(ThreadingMixIn, WSGIServer):
    """
    A thread a connection, so that a client that stalls blocks nobody; all of them end with the server.
    """

    request_queue_size = 64

    def __init__(self, family: int, address: Any, app: WSGIApplication) -> None:
        self.address_family = family
        self._guard = threading.Lock()
        self._open: dict[threading.Thread, socket.socket] = {}
        super().__init__(address, _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """
        Bind without looking up the host's name, as the inherited method does: that can take seconds.
        """
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """
        Answer one connection on a thread of its own, which `server_close` knows of from its beginning.
        """
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name="brooq-request", daemon=True
        )
        with self._guard:
            self._open[thread] = request
        try:
            thread.start()
        except RuntimeError:  # no more threads can be had: the inherited code closes the connection
            self._forget(thread)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """
        Answer one connection.
        """
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(threading.current_thread())

    def _forget(self, thread: threading.Thread) -> None:
        with self._guard:
            del self._open[thread]

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the inherited signature
        """
        Take note of a client that stalled or went away; the inherited method prints a traceback.
        """
        log.debug("a request ended early: %r", sys.exception())

    def server_close(self) -> None:
        """
        Close, and end the connections: first those that say nothing, then also those that don't listen.
        """
        super().server_close()
        for how in (socket.SHUT_RD, socket.SHUT_RDWR):
            self._end_connections(how)

    def _end_connections(self, how: int) -> None:
        with self._guard:
            left = dict(self._open)
        for request in left.values():
            with contextlib.suppress(OSError):
                request.shutdown(how)
        until = time.monotonic() + CLOSING
        for thread in left:
            thread.join(max(until - time.monotonic(), 0.0))
