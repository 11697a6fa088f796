"""
A Flask application with the dashboard under /queue, for those of its users who are staff.

    export DATABASE_URL=postgresql+psycopg://shop@localhost/shop
    export SECRET_KEY=$(openssl rand -hex 32)
    brooq-worker migrate
    flask --app dashboard_flask run
"""

from __future__ import annotations

import os
from wsgiref.types import WSGIEnvironment

from flask import Flask, redirect, request, session
from flask.typing import ResponseReturnValue
from sqlalchemy import create_engine
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.web import Grant, Role, create_app

STAFF = {"ada": Role.WRITE, "bob": Role.READ}

app = Flask(__name__)
app.secret_key = os.environ["SECRET_KEY"]
engine = create_engine(os.environ["DATABASE_URL"])
queue = brooq.Queue(engine)


@app.post("/login")
def log_in() -> ResponseReturnValue:
    session["user"] = request.form["user"]  # your login asks for more than a name
    return redirect("/queue/")


def staff(environ: WSGIEnvironment) -> Grant | None:
    with app.request_context(environ):  # the application's own session, of the same browser
        user = session.get("user")
    return Grant(STAFF[user], user) if user in STAFF else None


dashboard = create_app(queue, authorize=staff, masks=["password", "card.number"])
app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/queue": dashboard})  # type: ignore[method-assign]
