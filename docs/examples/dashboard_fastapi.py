"""
A FastAPI application with the dashboard under /queue, for those of its users who are staff.

    export DATABASE_URL=postgresql+psycopg://shop@localhost/shop
    export SECRET_KEY=$(openssl rand -hex 32)
    brooq-worker migrate
    uvicorn dashboard_fastapi:app
"""

from __future__ import annotations

import os
from wsgiref.types import WSGIEnvironment

from a2wsgi import WSGIMiddleware
from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from itsdangerous import BadSignature, URLSafeSerializer
from sqlalchemy.ext.asyncio import create_async_engine
from werkzeug.http import parse_cookie

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.web import Grant, Role, create_app

STAFF = {"ada": Role.WRITE, "bob": Role.READ}

app = FastAPI()
engine = create_async_engine(os.environ["DATABASE_URL"])
queue = brooq.Queue(engine)
signed = URLSafeSerializer(os.environ["SECRET_KEY"])


@app.post("/login")
async def log_in(user: str) -> RedirectResponse:
    answer = RedirectResponse("/queue/", 303)
    answer.set_cookie("user", str(signed.dumps(user)), httponly=True, samesite="lax")  # your login asks for more
    return answer


def staff(environ: WSGIEnvironment) -> Grant | None:
    try:
        user = signed.loads(parse_cookie(environ)["user"])
    except (KeyError, BadSignature):
        return None
    return Grant(STAFF[user], user) if user in STAFF else None


# The dashboard is a WSGI application: it works in threads, and no coroutine waits for it.
dashboard = create_app(queue, authorize=staff, masks=["password", "card.number"])
app.mount("/queue", WSGIMiddleware(dashboard))  # type: ignore[arg-type]
