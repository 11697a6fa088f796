"""
A connection on which notifications don't arrive, as behind a pooler in transaction mode; and one that falls silent.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from sqlalchemy import URL

NOTIFICATION: Final = b"A"
"""What a notification begins with on the wire."""
_HEADER: Final = 5


@contextmanager
def deaf(url: URL) -> Iterator[URL]:
    """
    Stand between the server of *url*, on a socket, and its clients, and keep notifications back.
    """
    with _between(url, _filter) as found:
        yield found


@contextmanager
def muted(url: URL) -> Iterator[tuple[URL, threading.Event]]:
    """
    Stand there, too, and let nothing of what the server says through while the event is set.
    """
    silent = threading.Event()
    with _between(url, partial(_mute, silent)) as found:
        yield found, silent


@contextmanager
def _between(url: URL, answer: Callable[[socket.socket, socket.socket], None]) -> Iterator[URL]:
    server = f"{url.query['host']}/.s.PGSQL.{url.query['port']}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, server, answer), daemon=True).start()
        port = str(listener.getsockname()[1])
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        yield url.set(query={"host": "127.0.0.1", "port": port, **plain})
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, server: str, answer: Callable[[socket.socket, socket.socket], None]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(server)
            for work in (_forward, answer):
                threading.Thread(target=work, args=(client, upstream), daemon=True).start()


def _forward(client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError):
        while read := client.recv(1 << 16):
            upstream.sendall(read)
        upstream.shutdown(socket.SHUT_WR)


def _filter(client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError, ValueError), client, upstream, upstream.makefile("rb") as stream:
        while header := stream.read(_HEADER):
            body = stream.read(int.from_bytes(header[1:], "big") - 4)
            if header[:1] != NOTIFICATION:
                client.sendall(header + body)


def _mute(silent: threading.Event, client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError), client, upstream:
        while read := upstream.recv(1 << 16):
            if not silent.is_set():
                client.sendall(read)
