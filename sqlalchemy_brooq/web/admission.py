"""
What each request passes before it is answered, and what each answer carries for its protection.

Whatever is not named here as open needs a grant, and whatever is no plain reading needs the role that may write, and a
proof that no other site sent it: no page and no route has to think of either.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from flask import Response, redirect, request, url_for
from flask.typing import ResponseReturnValue

from sqlalchemy_brooq.web import access as gate
from sqlalchemy_brooq.web import current
from sqlalchemy_brooq.web.access import Access, Grant, Role
from sqlalchemy_brooq.web.problems import is_api, problem

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
STATIC: Final = "static"
LOGIN: Final = "pages.login"
LOGOUT: Final = "pages.logout"
OPEN: Final = frozenset({STATIC, LOGIN})
"""Endpoints that everybody may see, if anybody may see anything."""
HARMLESS: Final = frozenset({LOGIN, LOGOUT})
"""Endpoints that change nothing but who it is: whoever may read may do that."""
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": with it browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def admit() -> ResponseReturnValue | None:
    """
    Let a request in that may do what it is about; answer any other.
    """
    access = current.access()
    if access.is_closed:
        return problem(HTTPStatus.NOT_FOUND, "nothing is served here")
    grant = access.granted(request.environ)
    current.set_grant(grant)
    if grant is None and request.endpoint not in OPEN:
        return _unknown(access)
    return None if request.method in SAFE else _check_write(grant)


def _check_write(grant: Grant | None) -> ResponseReturnValue | None:
    if grant is not None and grant.role is not Role.WRITE and request.endpoint not in HARMLESS:
        return problem(HTTPStatus.FORBIDDEN, "this access may read, and change nothing")
    if (grant is not None and grant.by_header) or _is_ours():
        return None
    return problem(HTTPStatus.FORBIDDEN, "this comes from no page of ours, or from an outdated one: load it anew")


def _is_ours() -> bool:
    """
    Tell whether a page of ours sent the request.
    """
    given = request.headers.get(gate.CSRF_HEADER) or request.form.get(gate.CSRF_FIELD, "")
    return gate.is_same_site(request.environ) and gate.is_csrf(request.environ, given)


def _unknown(access: Access) -> ResponseReturnValue:
    """
    Answer a request that proves nothing: where a token opens the pages, lead to the form that takes one.
    """
    if not access.has_login:
        return problem(HTTPStatus.FORBIDDEN, "who asks is not known here, or may see nothing")
    if request.method in SAFE and not is_api():
        return redirect(url_for(LOGIN, next=request.full_path.rstrip("?")))
    answer = problem(HTTPStatus.UNAUTHORIZED, "this needs a token: send it as Authorization: Bearer TOKEN")
    answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


def protect(answer: Response) -> Response:
    """
    Add to an answer what keeps browsers from doing with it what it isn't for.
    """
    answer.headers.update(HEADERS)
    if request.endpoint != STATIC:
        answer.headers["Cache-Control"] = "no-store"
    secret = current.new_csrf_cookie()
    if secret is not None:
        current.set_cookie(answer, gate.CSRF_COOKIE, secret)
    return answer
