"""
The service surface: what is answered to whom, and a server that no client can block.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from typing import Any, NamedTuple
from wsgiref.types import StartResponse, WSGIEnvironment
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError

from sqlalchemy_brooq import serving as module
from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.errors import BrooqError
from sqlalchemy_brooq.gauges import Kind, Sample
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.service import Served, service_app
from sqlalchemy_brooq.serving import ServiceError, ServiceServer
from sqlalchemy_brooq.worker.engine import Health
from sqlalchemy_brooq.worker.loops import LoopHealth
from tests.waiting import eventually

TOKEN = "s3cr3t-tökén"  # noqa: S105 - a secret to look for
WELL = LoopHealth("pump", alive=True, failures=0, age=0.25, healthy=True)
HEALTHY = Health(healthy=True, worker="host:1:abcd", leases=3, slots=4, hung=0, loops=(WELL,))


@dataclass
class StandIn:
    """
    Stands for a queue: a health of the test's choice, and metrics of its own.
    """

    config: Config = field(default_factory=Config)
    metrics: Metrics = field(default_factory=lambda: Metrics(CollectorRegistry()))
    answer: Health | Exception | None = HEALTHY

    def health(self) -> Health | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Reply(NamedTuple):
    status: str
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> int:
        return int(self.status.split()[0])


@pytest.fixture
def served() -> StandIn:
    return StandIn()


def ask(served: Served, path: str = "/healthz", method: str = "GET", **environ: str) -> Reply:
    """
    Ask the application, with the standard library's watch over the rules of WSGI.
    """
    setup: WSGIEnvironment = {
        "PATH_INFO": path,
        "REQUEST_METHOD": method,
        "QUERY_STRING": "",
        "SCRIPT_NAME": "",
        **environ,
    }
    setup_testing_defaults(setup)
    begun: list[tuple[str, list[tuple[str, str]]]] = []

    def start(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Any:
        begun.append((status, headers))

    answer = validator(service_app(served))(setup, start)
    body = b"".join(answer)
    answer.close()  # type: ignore[attr-defined]
    [(status, headers)] = begun
    return Reply(status, dict(headers), body)


def requests(served: StandIn) -> dict[tuple[str, str], float]:
    families = served.metrics.registry.collect()
    return {
        (sample.labels["path"], sample.labels["code"]): sample.value
        for found in families
        for sample in found.samples
        if sample.name == "brooq_http_requests_total"
    }


# -- what is answered


def test_a_healthy_worker_answers_200_with_its_loops_and_leases(served: StandIn) -> None:
    reply = ask(served)

    assert reply.status == "200 OK"
    assert reply.headers["Content-Type"] == "application/json"
    assert json.loads(reply.body) == {
        "healthy": True,
        "database": True,
        "worker": "host:1:abcd",
        "leases": 3,
        "slots": 4,
        "hung": 0,
        "loops": {"pump": {"healthy": True, "alive": True, "failures": 0, "age_seconds": 0.25}},
    }


def test_a_worker_with_a_bad_loop_answers_503_and_names_it(served: StandIn) -> None:
    bad = LoopHealth("reaper", alive=True, failures=7, age=31.0, healthy=False)
    served.answer = replace(HEALTHY, healthy=False, loops=(WELL, bad))

    reply = ask(served)

    assert reply.status == "503 Service Unavailable"
    report = json.loads(reply.body)
    assert (report["healthy"], report["database"]) == (False, False)
    assert [name for name, loop in report["loops"].items() if not loop["healthy"]] == ["reaper"]


def test_a_dead_loop_is_not_blamed_on_the_database(served: StandIn) -> None:
    dead = LoopHealth("watchdog", alive=False, failures=0, age=90.0, healthy=False)
    served.answer = replace(HEALTHY, healthy=False, loops=(WELL, dead))

    assert json.loads(ask(served).body)["database"] is True


def test_a_queue_without_a_worker_answers_503_and_says_so(served: StandIn) -> None:
    served.answer = None

    reply = ask(served)

    assert reply.code == 503
    assert json.loads(reply.body) == {"healthy": False, "reason": "no worker runs in this process"}


def test_metrics_are_those_of_the_queues_registry_and_asking_for_them_is_a_scrape(served: StandIn) -> None:
    scrapes: list[None] = []
    served.metrics.watch.on_scrape = lambda: scrapes.append(None)
    served.metrics.watch.show(Kind.READY_AGES, Sample("db", {("t",): 2.5}))
    Counter("of_the_host", "The host's own.", registry=served.metrics.registry).inc()

    reply = ask(served, "/metrics")

    assert reply.code == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(reply.body.decode())}
    assert families["brooq_ready_oldest_age_seconds"].samples[0].value == 2.5
    assert "of_the_host" in families
    assert len(scrapes) == 1


def test_health_is_no_scrape(served: StandIn) -> None:
    served.metrics.watch.on_scrape = lambda: pytest.fail("/healthz looked at the gauges")

    assert ask(served).code == 200


def test_metrics_come_in_the_format_that_the_client_prefers(served: StandIn) -> None:
    reply = ask(served, "/metrics", HTTP_ACCEPT="application/openmetrics-text; version=1.0.0")

    assert reply.headers["Content-Type"].startswith("application/openmetrics-text")
    assert reply.body.endswith(b"# EOF\n")


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/nowhere"])
def test_head_answers_like_get_without_a_body(served: StandIn, path: str) -> None:
    get, head = ask(served, path), ask(served, path, "HEAD")

    assert head.status == get.status
    assert head.headers.keys() == get.headers.keys()
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert head.body == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_other_methods_are_refused_and_told_which_are_not(served: StandIn, path: str, method: str) -> None:
    reply = ask(served, path, method)

    assert reply.status == "405 Method Not Allowed"
    assert reply.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["", "/", "/healthz/", "/Metrics", "/metrics/x", "/jobs", "/\xff\x00"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_a_token_set_every_other_path_is_404(served: StandIn, path: str, method: str) -> None:
    reply = ask(served, path, method, HTTP_AUTHORIZATION="Bearer ", SCRIPT_NAME="/mounted")

    assert (reply.status, reply.body) == ("404 Not Found", b"Not Found\n")


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", TOKEN, "Bearer \xff"],
)
def test_with_a_token_set_every_other_path_is_401_without_it(given: str) -> None:
    served = StandIn(Config(api_token=TOKEN))

    reply = ask(served, "/jobs", HTTP_AUTHORIZATION=given.encode().decode("latin-1"))

    assert reply.status == "401 Unauthorized"
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert TOKEN.encode() not in reply.body


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_with_the_right_token_a_path_that_does_not_exist_is_404(scheme: str) -> None:
    served = StandIn(Config(api_token=TOKEN))

    reply = ask(served, "/jobs", HTTP_AUTHORIZATION=f"{scheme} {TOKEN}".encode().decode("latin-1"))

    assert reply.code == 404


@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_health_and_metrics_need_no_token(path: str) -> None:
    assert ask(StandIn(Config(api_token=TOKEN)), path).code == 200


def test_an_error_is_a_500_without_a_word_about_it_and_logged_without_its_values(
    served: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    served.answer = IntegrityError(
        "INSERT INTO card VALUES (:card)", {"card": "4111111111111111"}, Exception("refused")
    )

    reply = ask(served)

    assert (reply.status, reply.body) == ("500 Internal Server Error", b"Internal Server Error\n")
    assert "IntegrityError" in caplog.text
    assert "4111111111111111" not in caplog.text


def test_a_collector_of_the_host_that_fails_is_a_500_not_a_traceback(
    served: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def collect(self) -> Iterable[Any]:
            raise RuntimeError("no metrics today")

    served.metrics.registry.register(Broken())

    assert ask(served, "/metrics").body == b"Internal Server Error\n"
    assert "no metrics today" in caplog.text


def test_requests_are_counted_under_a_few_names_whatever_is_asked_for(served: StandIn) -> None:
    ask(served)
    ask(served, "/healthz", "POST")
    ask(served, "/metrics")
    for n in range(20):
        ask(served, f"/wp-admin/{n}")

    assert requests(served) == {
        ("/healthz", "200"): 1,
        ("/healthz", "405"): 1,
        ("/metrics", "200"): 1,
        ("other", "404"): 20,
    }


def test_the_application_takes_a_queue_that_was_not_started() -> None:
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    queue = Queue(engine, registry=CollectorRegistry())

    assert ask(queue).code == 503
    assert b"brooq_workers 0.0" in ask(queue, "/metrics").body


# -- the server


def get(server: ServiceServer, path: str = "/healthz", method: str = "GET", body: bytes | None = None) -> Reply:
    connection = HTTPConnection(*server.address, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path, body)
        response = connection.getresponse()
        return Reply(f"{response.status} {response.reason}", dict(response.getheaders()), response.read())


@contextlib.contextmanager
def connected(server: ServiceServer) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=10) as client:
        yield client


def service_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in ("brooq-service", "brooq-request")]


@pytest.fixture
def server(served: StandIn) -> Iterator[ServiceServer]:
    with ServiceServer(service_app(served), "127.0.0.1", 0) as server:
        yield server
    assert service_threads() == []


def test_it_serves_on_the_port_that_it_says(server: ServiceServer, capfd: pytest.CaptureFixture[str]) -> None:
    host, port = server.address

    assert host == "127.0.0.1"
    assert port > 0
    assert get(server).code == 200
    assert b"brooq_workers" in get(server, "/metrics").body
    assert get(server, "/metrics", "HEAD").body == b""
    assert get(server, "/metrics", "POST", b"x=1").code == 405
    assert get(server, "/no%0d%0athing?a=b").code == 404
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python was built without IPv6")
def test_it_serves_on_ipv6(served: StandIn) -> None:
    with ServiceServer(service_app(served), "::1", 0) as server:
        assert server.address[0] == "::1"
        assert get(server).code == 200


def test_it_is_bound_before_it_answers(served: StandIn) -> None:
    server = ServiceServer(service_app(served), "localhost", 0)
    with contextlib.closing(server), connected(server) as early:
        early.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        server.start()

        assert early.recv(15) == b"HTTP/1.0 200 OK"


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1:"), ("::1", "[::1]:")],
)
def test_a_busy_port_is_one_error_that_names_the_address_and_the_setting(
    served: StandIn, host: str, shown: str
) -> None:
    first = ServiceServer(service_app(served), host, 0)
    port = first.address[1]
    with contextlib.closing(first), pytest.raises(ServiceError) as refusal:
        ServiceServer(service_app(served), host, port)

    assert isinstance(refusal.value, BrooqError)
    assert isinstance(refusal.value, OSError)
    assert (refusal.value.host, refusal.value.port) == (host, port)
    assert f"can't listen on {shown}{port}: Address already in use" in str(refusal.value)
    assert "QUEUE_LISTEN_ADDRESS" in str(refusal.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 70])
def test_an_address_that_is_not_ours_is_the_same_error(served: StandIn, host: str) -> None:
    with pytest.raises(ServiceError, match=f"can't listen on {host}:8090: "):
        ServiceServer(service_app(served), host, 8090)


def test_a_port_is_free_again_once_its_server_was_closed(served: StandIn) -> None:
    with ServiceServer(service_app(served), "127.0.0.1", 0) as first:
        get(first)
    with ServiceServer(service_app(served), *first.address) as second:
        assert get(second).code == 200


def test_a_client_that_stalls_blocks_nobody(server: ServiceServer) -> None:
    with connected(server) as silent, connected(server) as slow:
        slow.sendall(b"GET /heal")

        assert [get(server).code for _ in range(5)] == [200] * 5
        assert silent.fileno() > 0


def test_a_client_that_stalls_is_let_go(
    server: ServiceServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 0.1)

    with connected(server) as slow:
        slow.sendall(b"GET /heal")
        assert slow.recv(100) == b""

    eventually(lambda: service_threads() == ["brooq-service"])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("said", [b"", b"\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_not_http_harms_nothing(server: ServiceServer, capfd: pytest.CaptureFixture[str], said: bytes) -> None:
    with connected(server) as client:
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4_096):
            pass

    assert get(server).code == 200
    assert capfd.readouterr() == ("", "")


def test_close_ends_every_thread_also_of_clients_that_stall(served: StandIn) -> None:
    server = ServiceServer(service_app(served), "127.0.0.1", 0)
    server.start()
    with connected(server), connected(server) as slow:
        slow.sendall(b"GET /heal")
        eventually(lambda: service_threads().count("brooq-request") == 2)

        began = time.monotonic()
        server.close()

        assert time.monotonic() - began < module.STALL / 2
        assert service_threads() == []
        server.close()


def test_close_lets_an_answer_under_way_be_finished() -> None:
    asked, closing = threading.Event(), threading.Event()

    def slow_app(_: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked.set()
        closing.wait(10)
        start_response("200 OK", [("Content-Length", "4")])
        return [b"late"]

    server = ServiceServer(slow_app, "127.0.0.1", 0)
    server.start()
    with connected(server) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert asked.wait(10)
        ending = threading.Thread(target=server.close)
        ending.start()
        closing.set()

        answer = b"".join(iter(lambda: client.recv(4_096), b""))
        ending.join()

    assert answer.endswith(b"\r\n\r\nlate")
    assert service_threads() == []


def test_a_client_that_does_not_take_its_answer_can_not_hold_up_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    answering = threading.Event()

    def huge_app(_: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response("200 OK", [])
        answering.set()
        return [b"x" * 50_000_000]

    server = ServiceServer(huge_app, "127.0.0.1", 0)
    server.start()
    with connected(server) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert answering.wait(10)

        server.close()

    assert service_threads() == []
    assert capfd.readouterr() == ("", "")


def test_a_server_that_was_never_started_can_be_closed(served: StandIn) -> None:
    ServiceServer(service_app(served), "127.0.0.1", 0).close()


def test_many_clients_at_once_are_all_answered(server: ServiceServer, caplog: pytest.LogCaptureFixture) -> None:
    codes: list[int] = []
    clients = [threading.Thread(target=lambda: codes.append(get(server).code)) for _ in range(40)]
    with caplog.at_level(logging.DEBUG, "sqlalchemy_brooq.service"):
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    assert codes == [200] * 40
    assert caplog.records == []
