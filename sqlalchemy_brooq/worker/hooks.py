"""
Tells the consumer's callbacks what happened to jobs, on a thread of its own.

Owns the rule that a callback can neither block nor break the engine: the engine puts an event into a bounded
queue and goes on, and what finds no room there is dropped, counted and said.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlalchemy_brooq.logs import fields
from sqlalchemy_brooq.vocabulary import Event, JobEvent, Notice
from sqlalchemy_brooq.worker.journal import safe_traceback
from sqlalchemy_brooq.worker.log import log

CAPACITY: Final = 10_000
"""Events that wait for the callbacks; with 500 jobs a second, twenty seconds of them."""

Callback = Callable[[JobEvent], object]
Callbacks = Mapping[Event, Sequence[Callback]]


class Hooks:
    """
    Calls the callbacks of each event, one after the other, in the order in which things happened here.

    Args:
        callbacks: Whom to tell of what.
        dropped: Is told of each event that found no room.
        capacity: Events that may wait.
    """

    def __init__(
        self, callbacks: Callbacks, dropped: Callable[[Event], object] = lambda _: None, capacity: int = CAPACITY
    ) -> None:
        self._callbacks = {event: tuple(some) for event, some in callbacks.items() if some}
        self._dropped = dropped
        self._capacity = capacity
        self._change = threading.Condition()
        self._waiting: deque[JobEvent] = deque()
        self._missed = 0
        self._ending = False
        self._thread: threading.Thread | None = None

    def __contains__(self, event: Event) -> bool:
        """
        Tell whether anybody wants to hear of *event*.
        """
        return event in self._callbacks

    def put(self, event: JobEvent) -> None:
        """
        Take an event that somebody wants to hear of; returns at once.
        """
        with self._change:
            has_room = len(self._waiting) < self._capacity
            if has_room:
                self._waiting.append(event)
                self._change.notify()
            else:
                self._missed += 1
            begins = self._missed == 1 and not has_room
        if not has_room:
            self._dropped(event.event)
        if begins:
            text = "%d events wait for slow callbacks: until there is room again, further ones are dropped"
            log.warning(text, self._capacity, extra={"event": Notice.EVENTS_DROPPED.value})

    def start(self) -> None:
        """
        Start the thread, if there is anybody to tell.
        """
        if self._callbacks:
            # With what the host had set when it started the queue, as handlers have it.
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=[self._run], name="brooq-hooks", daemon=True)
            thread.start()
            self._thread = thread

    def stop(self, timeout: float) -> None:
        """
        Tell what waits, within *timeout* seconds, and end; what is left then is dropped.
        """
        with self._change:
            self._ending = True
            self._change.notify()
        if self._thread is None or self._thread is threading.current_thread():
            return  # in the latter case a callback stops the queue: the thread ends once it returns
        self._thread.join(timeout)
        with self._change:
            left, self._waiting = self._waiting, deque()
            missed, self._missed = self._missed + len(left), 0
        for event in left:
            self._dropped(event.event)
        _tell_missed(missed)

    def _run(self) -> None:
        while (event := self._next()) is not None:
            for callback in self._callbacks[event.event]:
                self._call(callback, event)

    def _next(self) -> JobEvent | None:
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._ending)
            event = self._waiting.popleft() if self._waiting else None
            missed = 0
            # Not at each single place that gets free: callbacks that stay too slow are said once.
            if len(self._waiting) <= self._capacity // 2:
                missed, self._missed = self._missed, 0
        _tell_missed(missed)
        return event

    def _call(self, callback: Callback, event: JobEvent) -> None:
        try:
            callback(event)
        except BaseException as error:  # noqa: BLE001 - a thread's top: the next event is told all the same
            about = {"event": Notice.CALLBACK_RAISED.value, **fields(event.job_id, event.topic, event.attempt)}
            text = "a callback of %s raised, about %s %s attempt %d\n%s"
            place = event.event, event.topic, event.job_id, event.attempt
            # Not `exception`: its traceback would quote what a database error carries.
            log.error(text, *place, safe_traceback(error), extra=about)


def _tell_missed(count: int) -> None:
    if count:
        text = "%d events were dropped: callbacks are slower than the jobs"
        log.warning(text, count, extra={"event": Notice.EVENTS_DROPPED.value})
