"""
Answers that say what is wrong: to programs as RFC 9457 has it, to people as a page.

Owns which failure is which code, and that no answer tells more than it says itself: what went wrong here stands in the
log.
"""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import Final

from flask import Response, render_template, request
from werkzeug.exceptions import HTTPException

from sqlalchemy_brooq.browse import TooSlow
from sqlalchemy_brooq.errors import JobNotFound
from sqlalchemy_brooq.search import InvalidQuery
from sqlalchemy_brooq.web.access import Throttled
from sqlalchemy_brooq.web.kept import Unreachable
from sqlalchemy_brooq.web.reading import Grown
from sqlalchemy_brooq.worker.journal import safe_traceback

log = logging.getLogger("sqlalchemy_brooq.web")

API: Final = "/api/"
"""What the paths of the API begin with."""
PAGE: Final = "problem.html"
"""The template of the page, which gets ``code``, ``name`` and ``text``."""
TYPE: Final = "application/problem+json"
#: exception -> the code of the answer that says it
CODES: Final[dict[type[Exception], HTTPStatus]] = {
    InvalidQuery: HTTPStatus.UNPROCESSABLE_ENTITY,
    JobNotFound: HTTPStatus.NOT_FOUND,
    Grown: HTTPStatus.CONFLICT,
    Throttled: HTTPStatus.TOO_MANY_REQUESTS,
    TooSlow: HTTPStatus.SERVICE_UNAVAILABLE,
    Unreachable: HTTPStatus.SERVICE_UNAVAILABLE,
}
#: code -> what is said, where werkzeug's own text is about typing addresses, or about nothing
TEXTS: Final = {
    HTTPStatus.NOT_FOUND: "there is nothing at this address",
    HTTPStatus.METHOD_NOT_ALLOWED: "this address doesn't take that method",
}


def problem(code: int, text: str) -> Response:
    """
    Return an answer that says what is wrong.
    """
    status = HTTPStatus(code)
    if is_api():
        body = {"type": "about:blank", "title": status.phrase, "status": code, "detail": text}
        return Response(json.dumps(body), code, mimetype=TYPE)
    return Response(render_template(PAGE, code=code, name=status.phrase, text=text), code)


def is_api() -> bool:
    """
    Tell whether this request is a program's.
    """
    return request.path.startswith(API)


def known(error: Exception) -> Response:
    """
    Answer with what a request, or the database, did to cause *error*.
    """
    code = next(code for kind, code in CODES.items() if isinstance(error, kind))
    if code == HTTPStatus.SERVICE_UNAVAILABLE:
        reason = error.reason if isinstance(error, Unreachable) else str(error)
        log.warning("%s %r could not be answered: %s", request.method, request.path, reason)
    answer = problem(code, str(error))
    if isinstance(error, Throttled):
        answer.headers["Retry-After"] = str(error.seconds)
    return answer


def refused(error: HTTPException) -> Response:
    """
    Answer with what Flask raises: that there is no such page, that a body is too long, and the like.
    """
    code = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
    if error.response is not None or code < HTTPStatus.BAD_REQUEST:  # an answer already, such as a redirect
        return Response.force_type(error.get_response(), request.environ)  # type: ignore[return-value] # it returns this class
    answer = problem(code, TEXTS.get(code) or error.description or code.phrase)
    answer.headers.extend((name, value) for name, value in error.get_headers() if name.lower() != "content-type")
    return answer


def failed(error: Exception) -> Response:
    """
    Answer where the fault is ours; what it was stands in the log, without values from the database.
    """
    log.error("%s %r could not be answered\n%s", request.method, request.path, safe_traceback(error))
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "this went wrong here; the log says more")
