"""
The crew: as many workers as were asked for, each started again when it ends, and what becomes of all of them.

Owns the decisions: who is started when, who is told to stop, and when it is over. One thread makes them, the main
one: the kernel's signal for a parent's death follows the thread that started a child. Other threads only read.
"""

from __future__ import annotations

import logging
import os
import random
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy_brooq.supervisor.channel import COUNTED, Record
from sqlalchemy_brooq.supervisor.process import Process
from sqlalchemy_brooq.supervisor.signals import Signals
from sqlalchemy_brooq.supervisor.totals import Totals

log = logging.getLogger("sqlalchemy_brooq.supervisor")

STEADY: Final = 10.0
"""Seconds that a worker has to live for its end to be no sign of another one soon."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
"""Seconds before a worker is started in the place of one that ended at once, again and again."""
LOOK: Final = 60.0
"""Seconds to wait for something to happen when nothing is due."""
CLEAN: Final = 0
FAILED: Final = 1
REFUSED: Final = 2


class Refusal(Exception):  # noqa: N818 - it is told to a user, as "Error: ..."
    """
    The crew can't work like this; the text says why.
    """


@dataclass
class Place:
    """
    One of the places in the crew, and the worker that fills it.
    """

    number: int
    process: Process | None = None
    failures: int = 0
    """Workers in a row that ended soon after their start."""
    restarts: int = 0
    """Workers that ended by themselves."""
    due: float = 0.0
    """When the next one is started, while there is none."""


class Crew:
    """
    Runs *size* workers.

    Args:
        size: How many.
        command: The command of one.
        environ: Its environment.
        totals: Is told what the workers have counted.
        prepare: Called with the first worker's settings, before any worker claims. If it raises a `Refusal`, the crew
            ends.
        announce: Called with what all workers said, when all are ready for the first time.
    """

    def __init__(
        self,
        size: int,
        command: Sequence[str],
        environ: Mapping[str, str],
        *,
        totals: Totals,
        prepare: Callable[[Record], object],
        announce: Callable[[Sequence[Record]], object],
    ) -> None:
        self._command = command
        self._environ = environ
        self._totals = totals
        self._prepare = prepare
        self._announce = announce
        self.places = tuple(Place(number) for number in range(size))
        """For who wants to know how the workers are."""
        self._processes: dict[int, Process] = {}
        self._rolling: deque[Place] = deque()
        self._successor: Process | None = None
        self._refusal: Refusal | None = None
        self._prepared = self._begun = self._announced = self._ending = False
        self._signaled = 0
        self._code = CLEAN
        self._signals = Signals()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._signals, selectors.EVENT_READ)

    def run(self) -> int:
        """
        Run until a signal, or a worker's final error, has ended it; return the exit code.

        Raises:
            Refusal: As *prepare* said; the workers have ended.
        """
        while not (self._ending and not self._processes):
            self._act(time.monotonic())
            for key, _ in self._selector.select(self._pause(time.monotonic())):
                if key.data is not None:
                    self._listen(key.data)
            for number in self._signals.taken():
                self._heed(number)
            self._reap()
        if self._refusal is not None:
            raise self._refusal
        return self._code

    def _pause(self, now: float) -> float:
        due = [process.kill_at for process in self._processes.values() if process.kill_at is not None]
        due += [place.due for place in self._open_places()]
        return max(min(due, default=now + LOOK) - now, 0.0)

    def _act(self, now: float) -> None:
        """
        Do what is due: kill, start, replace.
        """
        for process in self._processes.values():
            if process.kill_at is not None and process.kill_at <= now:
                log.error("%r ignores that it is to stop: it is killed, and its leases run out", process)
                process.kill(now + LOOK)
        for place in self._open_places():
            if place.due <= now:
                place.process = self._start(place)
        leaving = any(process.stopping for process in self._processes.values())
        if self._rolling and self._successor is None and not leaving:
            self._replace(self._rolling.popleft(), now)

    # -- starting

    def _open_places(self) -> Iterator[Place]:
        """
        Yield the places to fill; until the first worker has started, that is the first one's alone.

        So whatever is wrong with the program, its settings or the database is told once.
        """
        if not self._ending:
            places = self.places if self._begun else self.places[:1]
            yield from (place for place in places if place.process is None)

    def _start(self, place: Place) -> Process | None:
        try:
            process = Process(place.number, self._command, self._environ)
        except OSError as error:
            pause = self._postpone(place)
            log.error("process %d can't be started, next try in %.1f s: %s", place.number, pause, error)  # noqa: TRY400 - one line will do
            return None
        self._processes[process.pid] = process
        self._selector.register(process.channel, selectors.EVENT_READ, process)
        return process

    def _postpone(self, place: Place) -> float:
        """
        Let the next start wait, for the longer the more of them failed; return the seconds.
        """
        place.failures += 1
        pause = backoff(place.failures) * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        place.due = time.monotonic() + pause
        return pause

    # -- replacing them, one after the other

    def _roll(self) -> None:
        """
        Replace all workers; those that a roll under way has replaced already, once more.
        """
        log.info("rolling restart of %d processes", len(self.places))
        self._rolling = deque(self.places)
        if self._successor is not None:
            # It may hang, and was started from what is no longer wanted.
            self._successor.stop(time.monotonic())

    def _replace(self, place: Place, now: float) -> None:
        """
        Start a worker beside the one that works, which is told to stop once the new one works too.
        """
        place.failures, place.due = 0, 0.0
        if place.process is None:
            return  # it is started anyway
        if place.process.readiness is None:
            place.process.stop(now)  # it does nothing yet
            return
        self._successor = self._start(place)
        if self._successor is None:
            self._give_up_rolling("a process can't be started")

    def _take_over(self, process: Process) -> None:
        """
        Let *process* have its place, and the one that had it go.
        """
        place = self.places[process.place]
        predecessor, place.process = place.process, process
        self._successor = None
        if predecessor is not None:
            log.info("%r has started, %r is to stop", process, predecessor)
            predecessor.stop(time.monotonic())
        if not self._rolling:
            log.info("the rolling restart has reached all processes")

    def _give_up_rolling(self, reason: str) -> None:
        self._rolling.clear()
        log.error("the rolling restart is given up, and who ran goes on: %s", reason)

    # -- what they say

    def _listen(self, process: Process) -> bool:
        """
        Hear what a worker has said; False if that was nothing.
        """
        records = process.channel.pending()
        if records is None:
            self._selector.unregister(process.channel)
            process.deaf = True
        for record in records or ():
            self._hear(process, record)
        return bool(records)

    def _hear(self, process: Process, record: Record) -> None:
        match record["say"]:
            case "settings":
                process.settings = record
                self._let_go(process, record)
            case "ready":
                process.readiness = record
                self._is_ready(process)
            case "final":
                process.final = True
            case "answer":
                if record["what"] == COUNTED and record["answer"] is not None:
                    self._totals.tell(process.name, process.place, record["answer"])
                process.answered(record)
            case "counted":
                self._totals.tell(process.name, process.place, record["families"])

    def _let_go(self, process: Process, settings: Record) -> None:
        if not self._prepared:
            try:
                self._prepare(settings)
            except Refusal as refusal:
                self._refusal = refusal
                self._stop_all()
                return
            self._prepared = True
        process.channel.send("go")

    def _is_ready(self, process: Process) -> None:
        self._begun = True
        if process is self._successor:
            self._take_over(process)
        said = [place.process.readiness for place in self.places if place.process is not None]
        ready = [readiness for readiness in said if readiness is not None]
        if len(ready) == len(self.places) and not self._announced:
            self._announced = True
            self._announce(ready)

    # -- how they end

    def _reap(self) -> None:
        """
        Take note of who has ended; also of strangers, which the first process of a container inherits.
        """
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if (process := self._processes.pop(pid, None)) is not None:
                self._dismiss(process)
                self._has_ended(process, os.waitstatus_to_exitcode(status))

    def _dismiss(self, process: Process) -> None:
        """
        Hear the last that a worker had to say, and let go of it.
        """
        while not process.deaf and self._listen(process):
            pass
        if not process.deaf:  # a process of its own has the wire
            self._selector.unregister(process.channel)
        process.ended()
        self._totals.forget(process.name)

    def _has_ended(self, process: Process, code: int) -> None:
        place = self.places[process.place]
        if process is self._successor:
            self._successor = None
            if not process.stopping:
                self._give_up_rolling(f"{process!r} {ending(code)} before it had started")
        elif process.stopping:
            self._has_stopped(process, place, code)
        elif self._successor is not None and self._successor.place == process.place:
            place.process, self._successor = self._successor, None
            log.error("%r %s: the one that was to replace it does so at once", process, ending(code))
        else:
            self._is_lost(process, place, code)

    def _has_stopped(self, process: Process, place: Place, code: int) -> None:
        if place.process is process:
            place.process = None
        # By the signal itself, where it had not started yet.
        if code not in (CLEAN, -signal.SIGTERM):
            log.error("%r %s when it was to stop", process, ending(code))
            self._code = self._code or (FAILED if self._ending else CLEAN)

    def _is_lost(self, process: Process, place: Place, code: int) -> None:
        """
        Have another worker in the place of one that ended by itself, unless it would end in the same way.
        """
        place.process = None
        if code == REFUSED or process.final or (code == FAILED and not self._begun):
            if self._begun:  # otherwise the worker itself has said all there is to say
                log.error("%r %s, and so would any other: all are to stop", process, ending(code))
            self._code = code
            self._stop_all()
            return
        place.restarts += 1
        place.due, pause = 0.0, 0.0
        if time.monotonic() - process.started_at < STEADY:
            pause = self._postpone(place)
        else:
            place.failures = 0
        log.error("%r %s: another one is started%s", process, ending(code), f" in {pause:.1f} s" if pause else "")

    # -- signals

    def _heed(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            self._signaled += 1
            hurry = self._signaled > 1
            log.info("%d processes are to stop%s", len(self._processes), " at once" if hurry else "")
            self._stop_all(hurry=hurry)
        elif number == signal.SIGHUP and not self._ending:
            self._roll()

    def _stop_all(self, *, hurry: bool = False) -> None:
        self._ending = True
        self._rolling.clear()
        for process in self._processes.values():
            if hurry or not process.stopping:
                process.stop(time.monotonic())


def backoff(failures: int) -> float:
    """
    Return the seconds to wait after so many failures in a row.
    """
    return float(min(FIRST_PAUSE * 2.0 ** min(failures - 1, 62), LONGEST_PAUSE))


def ending(code: int) -> str:
    """
    Return in words how a process ended.
    """
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:  # one of the nameless real-time signals
        return f"was killed by signal {-code}"
