"""
``brooq-worker run``: a worker process around the queue of somebody's program.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sqlalchemy_brooq.cli.endings import Failed, Refused, explained
from sqlalchemy_brooq.cli.logs import FORMATS, LEVELS, log_to_stderr
from sqlalchemy_brooq.cli.processes import OPTION, Supervision, supervise
from sqlalchemy_brooq.cli.settings import load_dotenv, setting_option, settings_over
from sqlalchemy_brooq.cli.target import app_dir_option, load_queue
from sqlalchemy_brooq.durations import counted
from sqlalchemy_brooq.errors import SchemaMismatch
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.service import service_app
from sqlalchemy_brooq.serving import ServiceError, ServiceServer
from sqlalchemy_brooq.worker.engine import StopReport

#: setting -> (its option, what the option takes)
OPTIONS: Final = {
    "workers": ("--workers", "N"),
    "prefetch": ("--prefetch", "N"),
    "wakeup": ("--wakeup", "listen|poll"),
    "lease": ("--lease", "DURATION"),
    "shutdown_grace": ("--shutdown-grace", "DURATION"),
    "listen_address": ("--listen", "HOST:PORT"),
}
FLAGS: Final = {name: flag for name, (flag, _) in OPTIONS.items()}

Function = TypeVar("Function", bound=Callable[..., Any])


def setting_options(function: Function) -> Function:
    """
    Decorate a command with the options for settings that `run` has.
    """
    for name, (flag, metavar) in reversed(OPTIONS.items()):
        function = setting_option(flag, name, metavar)(function)
    return function


@click.command("run", short_help="Run a worker.")
@click.argument("target", metavar="MODULE:QUEUE")
@app_dir_option
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="What is logged to stderr; info by default, or as the program has configured it.",
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS, case_sensitive=False),
    help="How a line of the log is written: text by default, or as the program has configured it; json is one object"
    " a line.",
)
@click.option(
    OPTION,
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Worker processes; several run under a supervisor, which starts them again.",
)
@setting_options
def run_command(
    target: str,
    app_dir: Path,
    log_level: str | None,
    log_format: str | None,
    processes: int,
    **options: str | None,
) -> None:
    """
    Run jobs with the handlers of MODULE:QUEUE until SIGINT or SIGTERM.

    MODULE:QUEUE is a Queue, or a function without arguments that returns one, such as "shop.jobs:queue".

    An option goes before the QUEUE_* variable, the variable before the .env file, and that before what the program
    gave its Queue: who runs a worker has the last word. (What a handler sets for itself stays.)

    The first signal ends claiming, and gives running handlers --shutdown-grace to finish; the second one ends that
    wait. The exit code is 0 if nothing was left behind, and 1 if a handler ignored the end, if an outcome could not be
    written, or if every slot was taken by a handler that hangs.

    With --processes the signals are passed on, and SIGHUP replaces the processes one after the other.
    """
    supervision = Supervision.found()
    if supervision is None and processes > 1:
        supervise(processes, log_level, log_format)
    load_dotenv(app_dir)
    queue = load_queue(target, app_dir, show_traceback=log_level == "debug")
    log_to_stderr(log_level, log_format)
    with explained():
        queue.reconfigure(**settings_over(queue.config, options, FLAGS))
    if not queue.topics:
        raise Refused(f"{target} has no handlers: import the modules that register them where the queue is made")
    _set_aside_what_stays()
    report = _run(queue) if supervision is None else _run_supervised(queue, supervision)
    if not report.clean:
        raise Failed(*_left_behind(report))


def _run(queue: Queue) -> StopReport:
    with _service(queue) as address, contextlib.closing(queue), explained():
        return queue.run(ready=lambda: _announce(queue, address))


def _run_supervised(queue: Queue, supervision: Supervision) -> StopReport:
    """
    Run as one of many: the supervisor serves for all of them, and announces them.
    """
    supervision.await_go(queue)
    with supervision.counting(), contextlib.closing(queue), explained():
        try:
            return queue.run(ready=lambda: supervision.ready(queue), signals=supervision.signals)
        except SchemaMismatch:
            supervision.final()
            raise


def _set_aside_what_stays() -> None:
    """
    Keep the garbage collector away from what the program has loaded: it is there to the end, and to look through all
    of it again and again, as a stream of short-lived objects makes the collector do, takes longer than the jobs.
    """
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _service(queue: Queue) -> Iterator[str | None]:
    """
    Serve ``/healthz`` and ``/metrics`` beside the worker, and give the address.

    The port is bound before a job is claimed, so that a second worker by mistake ends before it does anything.
    """
    if queue.config.listen is None:
        yield None
        return
    try:
        server = ServiceServer(service_app(queue), *queue.config.listen)
    except ServiceError as error:
        raise Refused(str(error)) from None
    with server:
        yield f"{server.url}/healthz"


def _announce(queue: Queue, address: str | None) -> None:
    health = queue.health()
    if health is None:
        return
    where = f"health at {address}" if address else "no health address"
    topics = ", ".join(sorted(queue.topics))
    line = f"worker {health.worker} serves {topics} in {counted(health.slots, 'slot')}; {where}"
    try:
        click.echo(line)
    except OSError:  # nobody reads it: no reason not to work, nor to complain again when the process ends
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - it lives as long as the process


def _left_behind(report: StopReport) -> Iterator[str]:
    again = "what they were about runs again when its lease runs out"
    if report.hung:
        yield f"all slots ({report.hung}) were taken by handlers that hang: start another worker in this one's place"
    if report.abandoned:
        yield f"{counted(report.abandoned, 'handler')} ignored the end of the worker: {again}"
    if report.unwritten:
        yield f"{counted(report.unwritten, 'outcome')} could not be written: {again}"
