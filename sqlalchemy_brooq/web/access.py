"""
Who may see jobs, and who may change them: a token, the host application's own check, or whoever sits at this machine.

Owns what a request proves, the cookie that stands for a token in a browser, and how often a token may be guessed. Keeps
no sessions: a cookie is signed with a key that follows from the token, so it holds in every process that has the token,
and ends with it. Knows nothing of Flask.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias
from urllib.parse import urlsplit
from wsgiref.types import WSGIEnvironment

from itsdangerous import BadData, URLSafeTimedSerializer
from werkzeug.http import parse_cookie


class Role(StrEnum):
    """
    What somebody may do.
    """

    READ = "read"
    WRITE = "write"
    """Also cancel and replay."""


@dataclass(frozen=True, slots=True)
class Grant:
    """
    What a request may do, and who it comes from.
    """

    role: Role
    who: str
    """For the log."""
    by_header: bool = False
    """Whether the request proves itself by a header that no other site can make a browser send; no cookie has to."""


Authorize: TypeAlias = Callable[[WSGIEnvironment], Grant | None]
"""The host application's own check."""

SESSION: Final = 12 * 60 * 60
"""Seconds that a login holds."""
CSRF_COOKIE: Final = "brooq_csrf"
CSRF_FIELD: Final = "csrf_token"
CSRF_HEADER: Final = "X-CSRF-Token"
GUESSES: Final = 10
WINDOW: Final = 60.0
"""Of wrong tokens, an address has so many in so many seconds."""
ADDRESSES: Final = 10_000
"""Of so many addresses it is known; the one that guessed longest ago is forgotten."""


class Throttled(Exception):  # noqa: N818 - names the caller's situation
    """
    Too many wrong tokens came from there; `seconds` is how long no other is looked at.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many wrong tokens came from this address: try again in {seconds} s")
        self.seconds = seconds


class Access:
    """
    Knows who may do what.

    Args:
        token: Lets its bearer read and write.
        read_token: Lets its bearer read.
        authorize: Is asked where a request proves nothing by a token.
        anonymous: What clients on this machine may do without proving anything.
        read_only: Nobody may write, whatever the others say.
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        read_token: str | None = None,
        authorize: Authorize | None = None,
        anonymous: Role | None = None,
        read_only: bool = False,
    ) -> None:
        given = ((token, Role.WRITE, "token"), (read_token, Role.READ, "read token"))
        self._tokens = [_Token(text, Grant(role, who)) for text, role, who in given if text]
        self._authorize = authorize
        self._anonymous = anonymous
        self._read_only = read_only
        self._guesses = Guesses()

    @property
    def is_closed(self) -> bool:
        """
        Whether nobody may do anything.
        """
        return not self._tokens and self._authorize is None and self._anonymous is None

    @property
    def has_login(self) -> bool:
        """
        Whether a token opens it.
        """
        return bool(self._tokens)

    def granted(self, environ: WSGIEnvironment) -> Grant | None:
        """
        Return what a request may do; ``None``: nothing.
        """
        grant = self._by_header(environ) or self._by_cookie(environ)
        if grant is None and self._authorize is not None:
            grant = _checked(self._authorize(environ))
        if grant is None and self._anonymous is not None and is_local(environ):
            grant = Grant(self._anonymous, "this machine")
        return replace(grant, role=Role.READ) if grant is not None and self._read_only else grant

    def logged_in(self, text: str, environ: WSGIEnvironment) -> tuple[str, str] | None:
        """
        Return name and value of the cookie that stands for the token *text*; ``None``: it is none.

        Raises:
            Throttled: It is not looked at.
        """
        address = environ.get("REMOTE_ADDR", "")
        self._guesses.check(address)
        token = self._found(text.encode("utf-8", "surrogatepass"))
        if token is None:
            self._guesses.note(address)
            return None
        return token.cookie, token.signed()

    @property
    def cookies(self) -> Iterable[str]:
        """
        The names of the cookies of a login.
        """
        return [token.cookie for token in self._tokens]

    def _by_header(self, environ: WSGIEnvironment) -> Grant | None:
        # WSGI hands headers over as the Latin-1 reading of their bytes.
        scheme, _, given = environ.get("HTTP_AUTHORIZATION", "").encode("latin-1", "replace").partition(b" ")
        if scheme.lower() != b"bearer" or not self._tokens:
            return None
        token = self._found(given.strip())
        return None if token is None else replace(token.grant, by_header=True)

    def _by_cookie(self, environ: WSGIEnvironment) -> Grant | None:
        cookies = _cookies(environ)
        return next((one.grant for one in self._tokens if one.is_signed(cookies.get(one.cookie, ""))), None)

    def _found(self, given: bytes) -> _Token | None:
        """
        Return the token that was *given*. All are compared, so that it takes the same time for each.
        """
        found = [token for token in self._tokens if token.is_text(given)]
        return found[0] if found else None


class _Token:
    """
    A token that opens something.
    """

    def __init__(self, text: str, grant: Grant) -> None:
        self.grant = grant
        self._text = text.encode("utf-8", "surrogatepass")
        # Slow to derive, so that a cookie which somebody got hold of is no short way to guess the token.
        key = hashlib.scrypt(self._text, salt=b"sqlalchemy-brooq session", n=1 << 14, r=8, p=1)
        self._serializer = URLSafeTimedSerializer(key, salt="session", signer_kwargs={"digest_method": hashlib.sha256})
        # A name of its own: browsers keep cookies by host, whatever the port, and there may be several dashboards.
        self.cookie = f"brooq_{hashlib.sha256(key).hexdigest()[:8]}"

    def is_text(self, given: bytes) -> bool:
        return hmac.compare_digest(given, self._text)

    def signed(self) -> str:
        return str(self._serializer.dumps(secrets.token_urlsafe(9)))

    def is_signed(self, cookie: str) -> bool:
        try:
            self._serializer.loads(cookie, max_age=SESSION)
        except BadData:
            return False
        return True


class Guesses:
    """
    Counts wrong tokens in the form by the address that they came from; in this process alone, and for a minute.

    A hindrance, and no lock: who has many addresses guesses as often, and headers are not counted. What protects a
    token is its length.

    Not those in a header: a script with an outdated token would lock out all others behind the same proxy.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """
        Raise `Throttled` if too many came from *address*.
        """
        with self._lock:
            times = self._times.get(address)
            if times is not None and len(times) == GUESSES:
                left = times[0] + WINDOW - self._clock()
                if left > 0:
                    raise Throttled(int(left) + 1)

    def note(self, address: str) -> None:
        """
        Note that a wrong one came from *address*.
        """
        with self._lock:
            self._times.setdefault(address, deque(maxlen=GUESSES)).append(self._clock())
            self._times.move_to_end(address)
            if len(self._times) > ADDRESSES:
                self._times.popitem(last=False)


def _checked(answer: object) -> Grant | None:
    """
    Return what the host's check answered, if it is an answer: what is true or false is not taken for a yes or a no.
    """
    if answer is None or isinstance(answer, Grant):
        return answer
    raise TypeError(f"authorize is to return a Grant, or None for nobody: it returned {answer!r}")


def is_local(environ: WSGIEnvironment) -> bool:
    """
    Tell whether a request comes from this machine, and means it.

    Also the host that it names has to be this machine: a site that lets its name point here could else have a browser
    ask for it. What a proxy passed on comes from somewhere else.
    """
    if any(name in environ for name in ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP", "HTTP_VIA")):
        return False
    return _is_loopback(environ.get("REMOTE_ADDR", "")) and _is_loopback(_host_name(environ.get("HTTP_HOST", "")))


def is_same_site(environ: WSGIEnvironment) -> bool:
    """
    Tell whether a request may have been sent by a page of ours, as far as the browser tells; others tell nothing.
    """
    fetched = environ.get("HTTP_SEC_FETCH_SITE")
    if fetched is not None:
        return bool(fetched == "same-origin")
    origin = environ.get("HTTP_ORIGIN")
    if origin is None:
        return True
    scheme, _, host = origin.lower().partition("://")
    return scheme in ("http", "https") and host == environ.get("HTTP_HOST", "").lower()


def csrf_cookie(environ: WSGIEnvironment) -> str | None:
    """
    Return the secret that a page's forms have to repeat, if the browser has one.
    """
    value = _cookies(environ).get(CSRF_COOKIE, "")
    return value if len(value) >= len(new_csrf()) else None


def new_csrf() -> str:
    """
    Return a new such secret.
    """
    return secrets.token_urlsafe(16)


def is_csrf(environ: WSGIEnvironment, given: str) -> bool:
    """
    Tell whether *given* is what the browser's cookie says.

    Another site can read neither, nor set the header. A neighbour below the same domain, such as blog.example.com
    beside jobs.example.com, can set a cookie for both and fill in a form with it: `is_same_site` stops that one.
    """
    known = csrf_cookie(environ)
    return known is not None and hmac.compare_digest(known.encode(), given.encode("utf-8", "surrogatepass"))


def _cookies(environ: WSGIEnvironment) -> Mapping[str, str]:
    """
    Return the cookies of a request. Those of others may be anything, and keep nobody from reading ours.
    """
    header = environ.get("HTTP_COOKIE", "").encode("latin-1", "replace").decode(errors="replace")
    return parse_cookie(header.encode().decode("latin-1"))


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
