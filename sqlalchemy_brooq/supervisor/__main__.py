"""
The supervisor's program: ``python -P .../supervisor/__main__.py ORDERS``, executed in place of ``brooq-worker run``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from sqlalchemy_brooq.serving import ServiceServer
    from sqlalchemy_brooq.supervisor.channel import Record

REFUSED: Final = 2


def _stay_small() -> None:
    """
    Let the package's modules be imported without the package itself, which would bring SQLAlchemy and all the rest.
    """
    package = ModuleType("sqlalchemy_brooq")
    package.__path__ = [str(Path(__file__).parent.parent)]
    sys.modules["sqlalchemy_brooq"] = package


def _fill_standard_streams() -> None:
    """
    Put ``/dev/null`` where a standard stream is closed: a channel that got its number would be written to by ``print``.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number, this one


def main(orders: Mapping[str, Any]) -> int:
    """
    Run a crew until it ends, and return the exit code.

    Args:
        orders: ``command``, ``processes``, and in ``log`` the level and the form of a line; none is JSON.
    """
    from sqlalchemy_brooq.supervisor.crew import Refusal

    _log_as(**orders["log"])
    try:
        with Supervisor(orders) as supervisor:
            return supervisor.run()
    except Refusal as refusal:
        print(f"Error: {refusal}", file=sys.stderr)  # noqa: T201 - this is a command
        return REFUSED


def _log_as(level: str, text: str | None) -> None:
    logging.basicConfig(level=level)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_JsonFormatter() if text is None else logging.Formatter(text))


class _JsonFormatter(logging.Formatter):
    """
    One JSON object a line, as the workers' lines are.
    """

    def format(self, record: logging.LogRecord) -> str:
        """
        Return the line.
        """
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        return json.dumps(line)


class Supervisor:
    """
    The crew and its service surface, which is opened as soon as a worker has told where.
    """

    def __init__(self, orders: Mapping[str, Any]) -> None:
        from sqlalchemy_brooq.supervisor.crew import Crew
        from sqlalchemy_brooq.supervisor.totals import Totals

        self._totals = Totals()
        self._server: ServiceServer | None = None
        self._crew = Crew(
            orders["processes"],
            orders["command"],
            os.environ,
            totals=self._totals,
            prepare=self._prepare,
            announce=self._announce,
        )
        self.run = self._crew.run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    def _prepare(self, settings: Record) -> None:
        from sqlalchemy_brooq.serving import ServiceError, ServiceServer
        from sqlalchemy_brooq.supervisor.crew import Refusal
        from sqlalchemy_brooq.supervisor.surface import crew_app

        if settings["listen"] is None:
            return
        app = crew_app(self._crew.places, self._totals, settings["token"])
        try:
            self._server = ServiceServer(app, *settings["listen"])
        except ServiceError as error:
            raise Refusal(str(error)) from None
        self._server.start()

    def _announce(self, ready: Sequence[Record]) -> None:
        topics = ", ".join(ready[0]["topics"])
        slots = sum(readiness["slots"] for readiness in ready)
        where = "no health address" if self._server is None else f"health at {self._server.url}/healthz"
        try:
            print(f"{len(ready)} processes serve {topics} in {slots} slots; {where}", flush=True)  # noqa: T201 - as above
        except OSError:  # nobody reads it: no reason not to work
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - it lives as long as the process


if __name__ == "__main__":
    _stay_small()
    _fill_standard_streams()
    sys.exit(main(json.loads(sys.argv[1])))
