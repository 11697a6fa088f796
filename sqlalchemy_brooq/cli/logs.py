"""
What ``brooq-worker run`` writes to stderr: log lines as text, or as JSON, one object a line.

Owns the form of a line, and where it is installed; what the engine says is the journal's. A traceback in either form
is the safe one: an error of the database is shown without its parameters.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from sqlalchemy_brooq.logs import JobLogFilter
from sqlalchemy_brooq.worker.journal import safe_traceback

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What any record has; whatever else it has was given as ``extra``."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class TextFormatter(logging.Formatter):
    """
    A line for people; one about a job that doesn't name it begins with its topic, id and attempt.
    """

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """
        Return the line.
        """
        # Another formatter may have left its own traceback here, with all that a database error quotes.
        others, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = others

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """
        Return the line without a traceback.
        """
        job_id = getattr(record, "job_id", None)
        if job_id is not None and str(job_id) not in record.message:
            topic, attempt = (getattr(record, name, "?") for name in ("topic", "attempt"))
            record.message = f"[{topic} {job_id} attempt {attempt}] {record.message}"
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 - logging's name
        """
        Return the traceback, without what a database error quotes.
        """
        return "" if ei[1] is None else safe_traceback(ei[1])


class JsonFormatter(TextFormatter):
    """
    One JSON object a line: time, level, logger, message, and every field that was given as ``extra``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """
        Return the line.
        """
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _extras(record):
            line.setdefault(name, value)
        if record.exc_info and record.exc_info[1] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(level: str | None, form: str | None) -> None:
    """
    Log to stderr, unless the program has configured logging; what was asked for holds in any case.

    Every logging handler of the process learns which job a record is about.

    Args:
        level: One of `LEVELS`; ``None`` leaves it to the program, or is info.
        form: One of `FORMATS`; ``None`` leaves it to the program, or is text.
    """
    root = logging.getLogger()
    is_ours = not root.handlers
    logging.basicConfig(level=(level or "info").upper())
    if level is not None:
        root.setLevel(level.upper())
    if is_ours or form is not None:
        _write_as(JsonFormatter() if form == "json" else TextFormatter())
    for handler in _handlers():
        handler.addFilter(JobLogFilter())


def _write_as(formatter: logging.Formatter) -> None:
    """
    Let what goes to the terminal be written by *formatter*; files and other services keep the form that they have.
    """
    root = logging.getLogger()
    streams = [handler for handler in root.handlers if getattr(handler, "stream", None) in (sys.stderr, sys.stdout)]
    if not streams:
        streams = [logging.StreamHandler()]
        root.addHandler(streams[0])
    for handler in streams:
        handler.setFormatter(formatter)


def _handlers() -> Iterator[logging.Handler]:
    loggers = [logging.getLogger(), *logging.root.manager.loggerDict.values()]
    yield from {handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers}


def _extras(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for name, value in vars(record).items():
        if name not in _OWN:
            yield name, _plain(value)


def _plain(value: object) -> object:
    """
    Return *value*, or its text where JSON has nothing for it: a line is never lost for what was given with it.
    """
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    try:
        return json.loads(json.dumps(value, default=str, allow_nan=False))
    except Exception:  # noqa: BLE001 - the value is the consumer's, and may do anything when it is read
        try:
            return str(value)
        except Exception:  # noqa: BLE001 - the same
            return f"<{type(value).__name__}>"
