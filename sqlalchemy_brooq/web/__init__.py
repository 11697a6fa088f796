"""
The HTTP API and the pages: to see jobs and to steer them, served by ``brooq-worker web`` or mounted anywhere.

Needs the extra ``web``; nothing else of the library leads here but the command line.
"""

from __future__ import annotations

try:
    import flask as _flask  # noqa: F401 - to say in one line what is missing
except ImportError as error:
    raise ImportError(
        f"sqlalchemy_brooq.web needs more than a worker does ({error}): pip install 'sqlalchemy-brooq[web]'"
    ) from error

from sqlalchemy_brooq.web.access import Authorize, Grant, Role
from sqlalchemy_brooq.web.app import create_app

__all__ = ["Authorize", "Grant", "Role", "create_app"]
