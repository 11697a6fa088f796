"""
The application: puts together where jobs are read, who may do what, the API and the pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Final, TypeAlias

from flask import Flask
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from werkzeug.exceptions import HTTPException

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.queue import Queue
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState
from sqlalchemy_brooq.web import admission, current, problems
from sqlalchemy_brooq.web.access import Access, Authorize, Role
from sqlalchemy_brooq.web.api import api
from sqlalchemy_brooq.web.pages import pages
from sqlalchemy_brooq.web.patience import PATIENCE, Limited
from sqlalchemy_brooq.web.reading import BUDGET, Reading
from sqlalchemy_brooq.worker.origin import derived_engine, needs_derived

Source: TypeAlias = Engine | AsyncEngine | Queue

LARGEST: Final = 1 << 20
"""Bytes of a request's body."""


def create_app(
    source: Source,
    *,
    token: str | None = None,
    read_token: str | None = None,
    authorize: Authorize | None = None,
    anonymous: Role | None = None,
    read_only: bool = False,
    masks: Iterable[str] = (),
    title: str = "Jobs",
    schema: str | None = None,
    budget: timedelta = BUDGET,
) -> Flask:
    """
    Return a WSGI application with the API and the pages, to be served or mounted anywhere, under any prefix.

    Without *token*, *read_token*, *authorize* and *anonymous* it answers every path with 404.

    Args:
        source: Where the jobs are: an ``Engine``, an ``AsyncEngine`` or a `Queue`.
        token: Lets its bearer read and write; of a `Queue`, its ``api_token`` if none is given.
        read_token: Lets its bearer read.
        authorize: The host application's own check: gets the WSGI environment, and returns a `Grant`, or ``None``.
        anonymous: What clients on this machine may do without either, by the loopback interface alone.
        read_only: Nobody may cancel or replay, whatever the others say.
        masks: Names, or dotted paths, of fields in payloads and results that are not shown.
        title: What the pages are headed with.
        schema: Where the table is; by default where the connection's search_path leads.
        budget: How long the database may take for each statement, of which a page has several; what takes longer is
            unknown.
    """
    app = Flask("sqlalchemy_brooq.web", static_folder="static", template_folder="templates")
    config = source.config if isinstance(source, Queue) else None
    access = Access(
        token=token or (config.api_token if config else None),
        read_token=read_token,
        authorize=authorize,
        anonymous=anonymous,
        read_only=read_only,
    )
    engine = _engine(source)
    asked = engine.execution_options(schema_translate_map={None: schema}) if schema else engine
    transactions = Limited(asked, budget + PATIENCE)
    reading = Reading(transactions, masks=masks, ttls=None if config is None else ttls(config), budget=budget)
    app.extensions[current.EXTENSION] = {"access": access, "reading": reading, "engine": engine}
    app.config["MAX_CONTENT_LENGTH"] = app.config["MAX_FORM_MEMORY_SIZE"] = LARGEST
    _wire(app, title)
    return app


def ttls(config: Config) -> dict[JobState, timedelta]:
    """
    Return how long jobs are kept by the state that they ended in; a zero one is for good.
    """
    return {state: getattr(config, f"retention_ttl_{state}") for state in JobState if state in TERMINAL}


def _engine(source: Source) -> Engine:
    """
    Return what connects; where *source* can't, an engine is derived from its URL.
    """
    if isinstance(source, Queue):
        return source._plain_source()  # noqa: SLF001 - the very engine that a worker of it would connect with
    if isinstance(source, AsyncEngine) or needs_derived(source):
        return derived_engine(source)
    return source


def _wire(app: Flask, title: str) -> None:
    app.register_blueprint(api)
    app.register_blueprint(pages)
    app.before_request(admission.admit)
    app.after_request(admission.protect)
    app.register_error_handler(HTTPException, problems.refused)
    for kind in problems.CODES:
        app.register_error_handler(kind, problems.known)
    app.register_error_handler(Exception, problems.failed)
    app.jinja_env.globals.update(
        csrf_token=current.csrf_token, may_write=current.may_write, grant=current.grant, title=title
    )
