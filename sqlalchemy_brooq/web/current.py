"""
What a request is answered with: the reading of its application, what it may do, and the secret of its forms.
"""

from __future__ import annotations

from typing import Final, cast

from flask import current_app, g, request
from werkzeug.wrappers import Response

from sqlalchemy_brooq.web.access import SESSION, Access, Grant, Role, csrf_cookie, new_csrf
from sqlalchemy_brooq.web.reading import Reading

EXTENSION: Final = "sqlalchemy_brooq"
"""Under which the application keeps what belongs to it."""


def reading() -> Reading:
    """
    Return what asks the database.
    """
    return cast(Reading, current_app.extensions[EXTENSION]["reading"])


def access() -> Access:
    """
    Return what knows who may do what.
    """
    return cast(Access, current_app.extensions[EXTENSION]["access"])


def grant() -> Grant | None:
    """
    Return what this request may do; ``None`` on the few paths that are open to everybody.
    """
    return cast(Grant | None, g.get("brooq_grant"))


def set_grant(found: Grant | None) -> None:
    """
    Note what this request may do.
    """
    g.brooq_grant = found


def may_write() -> bool:
    """
    Tell whether this request may change jobs.
    """
    found = grant()
    return found is not None and found.role is Role.WRITE


def who() -> str:
    """
    Return who this request comes from, for the log.
    """
    found = grant()
    return f"{found.who if found else 'nobody'} at {request.remote_addr or 'an unknown address'}"


def log_in(text: str, answer: Response) -> bool:
    """
    Tell whether *text* is a token, and if so let *answer* set the cookie that stands for it.

    Raises:
        Throttled: It is not looked at, as too many wrong ones came before it.
    """
    cookie = access().logged_in(text, request.environ)
    if cookie is not None:
        set_cookie(answer, *cookie, age=SESSION)
    return cookie is not None


def log_out(answer: Response) -> None:
    """
    Let *answer* end the login of this browser.
    """
    for name in access().cookies:
        answer.delete_cookie(name, path=_path())


def set_cookie(answer: Response, name: str, value: str, age: int | None = None) -> None:
    """
    Let *answer* set a cookie that no script reads, that no form of another site sends, and that stays below our prefix.
    """
    secure = request.is_secure
    answer.set_cookie(name, value, max_age=age, path=_path(), secure=secure, httponly=True, samesite="Lax")


def _path() -> str:
    return request.root_path or "/"


def csrf_token() -> str:
    """
    Return what a form has to repeat in the field ``csrf_token``, or a script in the header ``X-CSRF-Token``.

    The answer sets the cookie that it is compared with, where the browser has none yet.
    """
    if "brooq_csrf" not in g:
        known = csrf_cookie(request.environ)
        g.brooq_csrf, g.brooq_csrf_is_new = (known, False) if known is not None else (new_csrf(), True)
    return str(g.brooq_csrf)


def new_csrf_cookie() -> str | None:
    """
    Return the secret that the answer has to set as a cookie, if there is one.
    """
    return csrf_token() if g.get("brooq_csrf_is_new") else None
