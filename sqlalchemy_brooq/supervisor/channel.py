"""
What a supervisor and its workers say to each other: records, as JSON, one a line, over a pair of sockets.

::

    worker → supervisor
      settings  {listen, token, grace}   how it is to be run; it waits for "go"
      ready     {topics, slots}          it claims
      answer    {what, answer}           to a question
      counted   {families}               its metrics, unasked
      final     {}                       its end is one that a new start won't mend

    supervisor → worker
      go        {}                       the address is bound, it may start
      ask       {what}                   one of the questions below
      hurry     {}                       as a second signal would

A supervisor outlives an upgrade of the package under it, and then has workers of another version. So words may be
added, and none of these may change.

Owns the words and the wire. The end of the wire is also how one side learns that the other is gone.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Self

VARIABLE: Final = "BROOQ_SUPERVISOR"
"""Tells a worker that it is one of many."""
HEALTH: Final = "health"
COUNTED: Final = "counted"
SAMPLED: Final = "sampled"

_CHUNK: Final = 1 << 16

Record = Mapping[str, Any]


class Summons(NamedTuple):
    """
    What a worker finds in its environment.
    """

    supervisor: int
    """The process id of its supervisor, and so of its parent."""
    wire: int
    """The file descriptor of its end of the channel."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Return what the variable says; a ``ValueError`` if it is none of ours.
        """
        supervisor, wire = text.split(":")
        return cls(int(supervisor), int(wire))

    def __str__(self) -> str:
        return f"{self.supervisor}:{self.wire}"


class Channel:
    """
    One end of the wire; any thread may send.
    """

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._sending = threading.Lock()
        self._rest = b""

    def fileno(self) -> int:
        """
        Return the file descriptor, to be waited for.
        """
        return self._wire.fileno()

    def send(self, say: str, **record: Any) -> None:
        """
        Send a record; one that nobody takes any more is no error.
        """
        line = json.dumps({"say": say, **record}).encode() + b"\n"
        with self._sending, suppress(OSError):
            self._wire.sendall(line)

    def records(self) -> Iterator[Record]:
        """
        Yield what the other side says, until it is gone.
        """
        while (said := self._received(0)) is not None:
            yield from said

    def pending(self) -> list[Record] | None:
        """
        Return what the other side has said since, without waiting; ``None`` if it is gone.
        """
        try:
            return self._received(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []

    def _received(self, flags: int) -> list[Record] | None:
        try:
            chunk = self._wire.recv(_CHUNK, flags)
        except BlockingIOError:
            raise
        except OSError:  # reset, or closed under us
            chunk = b""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines] if chunk else None

    def close(self) -> None:
        """
        Close this end; the other side learns of it.
        """
        self._wire.close()
