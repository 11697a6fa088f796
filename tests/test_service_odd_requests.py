"""
The service surface and requests that no good client sends: never a 500, never a traceback in the log.
"""

from __future__ import annotations

import logging
import random
import re
import socket
from collections.abc import Iterator

import pytest

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.service import service_app
from sqlalchemy_brooq.serving import ServiceServer
from tests.test_service import StandIn, get

TOKEN = "s3cret"  # noqa: S105 - to be guessed
BEARER = f"Authorization: Bearer {TOKEN}".encode()
END = b"\r\n\r\n"


@pytest.fixture
def server(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[ServiceServer]:
    """
    A server that knows a token; whatever it was asked, it still answers, and nobody has complained.
    """
    caplog.set_level(logging.DEBUG)
    with ServiceServer(service_app(StandIn(Config(api_token=TOKEN))), "127.0.0.1", 0) as server:
        yield server
        assert get(server).code == 200
    assert [record for record in caplog.records if record.levelno > logging.DEBUG or record.exc_info] == []
    assert "Traceback" not in caplog.text
    assert capfd.readouterr() == ("", "")


def answer(server: ServiceServer, said: bytes) -> bytes:
    """
    Send *said*, and return all that comes back; a connection that is broken off has said nothing.
    """
    with socket.create_connection(server.address, timeout=10) as client:
        received = b""
        try:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(65_536):
                received += part
        except OSError:  # it had enough before all was sent
            pass
        return received


def code(reply: bytes) -> int | None:
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", reply)
    return int(found[1]) if found else None


def head(path: bytes = b"/healthz", *lines: bytes, method: bytes = b"GET") -> bytes:
    return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"Host: x", *lines]) + END


ODD: dict[str, tuple[bytes, int | None]] = {
    "a huge header": (head(b"/healthz", b"X: " + b"a" * 70_000), 431),
    "many headers": (head(b"/healthz", *(b"X%d: 1" % n for n in range(200))), 431),
    "a huge path": (head(b"/" + b"a" * 70_000), 414),
    "a long path": (head(b"/" + b"a" * 60_000), 401),
    "two slashes": (head(b"//healthz"), 200),
    "a whole address": (head(b"http://x/healthz"), 401),
    "a folder up": (head(b"/healthz/../metrics"), 401),
    "escapes": (head(b"/%00%ff%2e%2e%"), 401),
    "an escaped letter": (head(b"/%68ealthz"), 200),
    "a query": (head(b"/healthz?a=%ff&b"), 200),
    "no path": (head(b"*", method=b"OPTIONS"), 401),
    "OPTIONS": (head(method=b"OPTIONS"), 405),
    "TRACE": (head(method=b"TRACE"), 405),
    "a method of its own": (head(method=b"G\xcbT"), 405),
    "CONNECT": (head(b"x:80", method=b"CONNECT"), 401),
    "HEAD": (head(method=b"HEAD"), 200),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", 200),
    "another HTTP/0.9": (b"POST /healthz\r\n\r\n", 400),
    "HTTP/2.0": (b"GET /healthz HTTP/2.0" + END, 505),
    "HTTP/one": (b"GET /healthz HTTP/one" + END, 400),
    "HTTP/¹.¹": ("GET /healthz HTTP/¹.¹".encode("latin-1") + END, 400),
    "four words": (b"GET /healthz now HTTP/1.1" + END, 400),
    "no length": (head(b"/healthz", b"Content-Length:"), 200),
    "a length that is none": (head(b"/healthz", b"Content-Length: ten"), 200),
    "a negative length": (head(b"/healthz", b"Content-Length: -1", method=b"POST"), 405),
    "a length and no body": (head(b"/healthz", b"Content-Length: 99999999999999999999"), 200),
    "two lengths": (head(b"/healthz", b"Content-Length: 1", b"Content-Length: 2"), 200),
    "chunks": (head(b"/healthz", b"Transfer-Encoding: chunked", method=b"POST") + b"zz\r\n", 405),
    "a header without a colon": (head(b"/healthz", b"what"), 200),
    "a header without a name": (head(b"/healthz", b": x"), 200),
    "a folded header": (head(b"/healthz", b"X: a\r\n b"), 200),
    "bare newlines": (b"GET /healthz HTTP/1.1\nHost: x\n\n", 200),
    "a NUL": (head(b"/healthz", b"X: \x00"), 200),
    "the right token": (head(b"/jobs", BEARER), 404),
    "no token": (head(b"/jobs", b"Authorization:"), 401),
    "a token beyond ASCII": (head(b"/jobs", "Authorization: Bearer sécret€".encode()), 401),
    "a token of any bytes": (head(b"/jobs", b"Authorization: Bearer \xff\xfe\x80"), 401),
    "two tokens, the right one first": (head(b"/jobs", BEARER, b"Authorization: Bearer x"), 401),
    "two tokens, the right one last": (head(b"/jobs", b"Authorization: Bearer x", BEARER), 401),
    "the right token twice": (head(b"/jobs", BEARER, BEARER), 401),
    "a token that goes on": (head(b"/jobs", BEARER + b"x"), 401),
    "a folded token": (head(b"/jobs", b"Authorization: Bearer\r\n " + TOKEN.encode()), None),
    "a header like its variable": (head(b"/jobs", b"Authorization_: x"), 401),
    "an odd Accept": (
        head(b"/metrics", b"Accept: application/openmetrics-text; version=\xff;escaping=,;q=x"),
        200,
    ),
    "an Accept of another version": (head(b"/metrics", b"Accept: application/openmetrics-text;version=9.x.1"), 200),
    "an Accept of a version and an odd escaping": (
        head(b"/metrics", b"Accept: application/openmetrics-text;version=1.0.0;escaping=\xff"),
        200,
    ),
    "an Accept of no version": (head(b"/metrics", b"Accept: text/plain; version=; escaping=what"), 200),
    "an odd Accept-Encoding": (head(b"/metrics", b"Accept-Encoding: gzip;q=0, \xff, gzip"), 200),
    "names that don't exist": (head(b"/metrics?name[]=nothing&name[]=%ff&;;=&"), 200),
    "an Expect": (head(b"/healthz", b"Expect: 100-continue"), 200),
    "an Upgrade": (head(b"/healthz", b"Connection: Upgrade", b"Upgrade: h2c"), 200),
    "a colon in the host": (head(b"/healthz", b"Host: :::"), 200),
}


@pytest.mark.parametrize(("said", "expected"), ODD.values(), ids=ODD)
def test_an_odd_request_has_an_ordinary_answer(server: ServiceServer, said: bytes, expected: int | None) -> None:
    found = code(answer(server, said))

    assert found == expected or (expected is None and found in (401, 404))


def test_a_second_request_of_a_pipeline_is_not_taken_for_a_body(server: ServiceServer) -> None:
    reply = answer(server, head() + head(b"/metrics"))

    assert reply.count(b"HTTP/1.0 ") == 1  # and the connection ends
    assert code(reply) == 200


def test_head_has_no_body(server: ServiceServer) -> None:
    _, _, body = answer(server, head(method=b"HEAD")).partition(END)

    assert body == b""


def test_a_mangled_request_is_never_a_500(server: ServiceServer) -> None:
    for seed in range(200):
        assert code(answer(server, mangled(random.Random(seed)))) not in {500, 501, 502, 503}, seed


def mangled(chance: random.Random) -> bytes:
    said = bytearray(
        head(
            chance.choice([b"/healthz", b"/metrics?name[]=a", b"/jobs", b"/"]),
            BEARER,
            b"Accept: application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores;q=0.5",
            b"Accept-Encoding: gzip",
            b"Content-Length: 3",
        )
        + b"abc"
    )
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(said))
        match chance.randrange(3):
            case 0:
                said[at] = chance.randrange(256)
            case 1:
                del said[at : at + chance.randint(1, 8)]
            case _:
                said[at:at] = chance.choice([b"\r\n", b"\x00", b"%", b":", b";", b",", b"\xff" * 5, b"9" * 30, b" "])
    return bytes(said)
