"""
The service surface of a queue: its health and its metrics, as answers of `/healthz` and `/metrics`.

Owns the words of a health report. How it is served, `serving` knows; nothing here queries.
"""

from __future__ import annotations

from typing import Any, Protocol
from wsgiref.types import WSGIApplication

from prometheus_client import make_wsgi_app

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.metrics import Metrics
from sqlalchemy_brooq.serving import Surface
from sqlalchemy_brooq.worker.engine import Health
from sqlalchemy_brooq.worker.journal import safe_traceback


class Served(Protocol):
    """
    What the service surface needs of a `Queue`.
    """

    @property
    def config(self) -> Config: ...  # noqa: D102 - as the queue's

    @property
    def metrics(self) -> Metrics: ...  # noqa: D102

    def health(self) -> Health | None: ...  # noqa: D102


def service_app(queue: Served) -> WSGIApplication:
    """
    Return the WSGI application with ``/healthz`` and ``/metrics`` of *queue*, to be mounted anywhere.

    Args:
        queue: A `Queue`; it needn't run yet. Its settings say whether there is a token.
    """
    return Surface(
        lambda: health_report(queue.health()),
        make_wsgi_app(queue.metrics.exposed()),
        queue.config.api_token,
        queue.metrics.requested,
        safe_traceback,
    )


def health_report(health: Health | None) -> dict[str, Any]:
    """
    Return *health* in the words of ``/healthz``.
    """
    if health is None:
        return {"healthy": False, "reason": "no worker runs in this process"}
    return {
        "healthy": health.healthy,
        # Rounds fail of the database, and of nothing else that is known.
        "database": all(loop.healthy or not loop.failures for loop in health.loops),
        "worker": health.worker,
        "leases": health.leases,
        "slots": health.slots,
        "hung": health.hung,
        "loops": {
            loop.name: {
                "healthy": loop.healthy,
                "alive": loop.alive,
                "failures": loop.failures,
                "age_seconds": round(loop.age, 3),
            }
            for loop in health.loops
        },
    }
