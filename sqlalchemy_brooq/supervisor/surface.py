"""
The service surface of a crew: one `/healthz` for all its workers, and one `/metrics` with their sums.

What it shows, the workers are asked. One that doesn't answer is not well.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry, Metric, make_wsgi_app

from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.serving import Surface
from sqlalchemy_brooq.supervisor.channel import COUNTED, HEALTH, SAMPLED
from sqlalchemy_brooq.supervisor.crew import Place
from sqlalchemy_brooq.supervisor.process import Process
from sqlalchemy_brooq.supervisor.totals import Totals, metric, plain

PATIENCE: Final = 2.0
"""Seconds that workers have to answer."""

_SILENT: Final = MappingProxyType({"healthy": False, "reason": "it did not answer in time"})
_OWN: Final = ""
"""The name under which the supervisor's own counts are added."""


def crew_app(places: Sequence[Place], totals: Totals, token: str | None) -> WSGIApplication:
    """
    Return the WSGI application with `/healthz` and `/metrics` of the workers in *places*.
    """
    own = Metrics(CollectorRegistry())
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Counted(places, totals, own.counted))
    registry.register(_Sampled(places))
    return Surface(lambda: crew_report(places), make_wsgi_app(registry), token, own.requested, told)


class _Counted:
    """
    What all workers counted, up to now, and what is counted here.
    """

    def __init__(self, places: Sequence[Place], totals: Totals, own: Callable[[], Iterable[Metric]]) -> None:
        self._places = places
        self._totals = totals
        self._own = own

    def collect(self) -> Iterable[Metric]:
        """
        Ask all, and return the sums; who doesn't answer counts as before.
        """
        until = time.monotonic() + PATIENCE
        for question in [process.ask(COUNTED) for process in _ready(self._places)]:
            question.wait(until)
        self._totals.tell(_OWN, 0, plain(self._own()))
        return self._totals.collect()


class _Sampled:
    """
    The gauges about the whole table, from the first worker that answers: the others' samplers may sleep.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places

    def collect(self) -> Iterable[Metric]:
        """
        Return the gauges; none where no worker answers.
        """
        until = time.monotonic() + PATIENCE
        for process in _ready(self._places):
            if (answer := process.ask(SAMPLED).wait(until)) is not None:
                return [metric(*family) for family in answer]
        return ()


def crew_report(places: Sequence[Place]) -> dict[str, Any]:
    """
    Return how the crew is, in the words of `/healthz`: well if each of its workers is.
    """
    while True:
        asked = [place.process for place in places]
        report = _report_of(places, asked)
        # One that was replaced meanwhile had reason not to be well.
        if asked == [place.process for place in places]:
            return report


def _report_of(places: Sequence[Place], processes: Sequence[Process | None]) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    questions = [process.ask(HEALTH) if process and process.readiness else None for process in processes]
    reports = [
        {
            "process": place.number,
            "pid": process and process.pid,
            "restarts": place.restarts,
            **(_absence(place, process) if question is None else question.wait(until) or _SILENT),
        }
        for place, process, question in zip(places, processes, questions, strict=True)
    ]
    return {
        "healthy": all(report["healthy"] for report in reports),
        "database": all(report.get("database", True) for report in reports),
        **{name: sum(report.get(name, 0) for report in reports) for name in ("leases", "slots", "hung")},
        "processes": reports,
    }


def _absence(place: Place, process: Process | None) -> dict[str, Any]:
    if process is not None:
        return {"healthy": False, "reason": "it has not started yet"}
    wait = max(place.due - time.monotonic(), 0.0)
    return {"healthy": False, "reason": f"it ended; another one is started in {wait:.1f} s"}


def _ready(places: Sequence[Place]) -> list[Process]:
    processes = [place.process for place in places]
    return [process for process in processes if process is not None and process.readiness is not None]


def told(error: BaseException) -> str:
    """
    Return a traceback for the log.
    """
    return "".join(traceback.format_exception(error)).rstrip()
