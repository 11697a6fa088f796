"""
The switch for OpenTelemetry: off until somebody turns it on, for the whole process.

Owns nothing else, and imports nothing of OpenTelemetry until then: `spans` does the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the extra "otel" may not be installed
    from opentelemetry.trace import TracerProvider

    from sqlalchemy_brooq.spans import Tracing

__all__ = ["disable", "enable"]

active: Tracing | None = None
"""What traces; while nothing does, a look at this is all that a job pays."""


def enable(tracer_provider: TracerProvider | None = None) -> None:
    """
    From now on, jobs that this process enqueues remember the current span, and handlers that it runs get a span.

    Called again, it replaces the provider.

    Args:
        tracer_provider: Makes the handlers' spans. OpenTelemetry's global one if not given, which may
            be set later.

    Raises:
        ImportError: OpenTelemetry's API is not installed.
    """
    global active  # noqa: PLW0603 - a process has one switch: `session.add` knows no queue
    try:
        from sqlalchemy_brooq.spans import Tracing
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise ImportError(
            "tracing needs OpenTelemetry's API, which is not installed: pip install 'sqlalchemy-brooq[otel]'"
        ) from error
    active = Tracing(tracer_provider)


def disable() -> None:
    """
    Trace nothing more; handlers that are running end their spans.
    """
    global active  # noqa: PLW0603 - see enable()
    active = None
