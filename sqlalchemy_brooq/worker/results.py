"""
What a handler returned, as JSON text for its row, where it opted in.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from sqlalchemy_brooq import payload as payloads
from sqlalchemy_brooq import policy
from sqlalchemy_brooq.errors import PayloadError
from sqlalchemy_brooq.payload import Serializer
from sqlalchemy_brooq.vocabulary import Notice
from sqlalchemy_brooq.worker.attempt import Attempt
from sqlalchemy_brooq.worker.journal import fields
from sqlalchemy_brooq.worker.log import log

MAX_RESULT: Final = 2**23
"""Characters of JSON. Outcomes are written together: a huge one would hold up the others."""


class Results:
    """
    Turns return values into text.

    Args:
        serializer: The engine's ``json_serializer``; ``None`` means the standard library's.
    """

    def __init__(self, serializer: Serializer | None) -> None:
        self._serializer = serializer

    def text(self, attempt: Attempt, result: Any) -> str | None:
        """
        Return *result* as JSON text; ``None`` where it isn't kept, or ``jsonb`` can't hold it.

        Raises:
            TypeError: *result* is a coroutine: the handler did nothing yet, and nobody would await it.
        """
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("the handler returned a coroutine that nobody awaits: write it as `async def`")
        if not attempt.handler.options.keep_result:
            return None
        try:
            return _of_a_size(payloads.encoded(result, self._serializer, "the result"))
        except Exception as error:  # noqa: BLE001 - the value is the handler's, and may do anything when it is read
            said = "the result of %s %s can't be stored; the job is done without it: %s"
            claim = attempt.claim
            extra = {"event": Notice.RESULT_LEFT_OUT.value, **fields(claim)}
            log.error(said, claim.topic, claim.id, policy.error_text(error), extra=extra)
            return None


def _of_a_size(text: str) -> str:
    if len(text) > MAX_RESULT:
        raise PayloadError(f"it has {len(text)} characters of JSON; at most {MAX_RESULT} are kept")
    return text
