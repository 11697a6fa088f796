"""
The ``wsgi.py`` of a Django project, with the dashboard under /queue for users with ``is_staff``.

    export DATABASE_URL=postgresql+psycopg://shop@localhost/shop
    export SECRET_KEY=$(openssl rand -hex 32)
    brooq-worker migrate
    python -m waitress dashboard_django:application

In one file, with its settings; a real project has its own, and sets DJANGO_SETTINGS_MODULE instead.
"""

from __future__ import annotations

import os
from wsgiref.types import WSGIEnvironment

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from sqlalchemy import create_engine, make_url
from werkzeug.middleware.dispatcher import DispatcherMiddleware

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.web import Grant, Role, create_app

url = make_url(os.environ["DATABASE_URL"])
settings.configure(
    SECRET_KEY=os.environ["SECRET_KEY"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.database,
            "USER": url.username,
            "PASSWORD": url.password or "",
            "HOST": url.host or url.query.get("host", ""),
            "PORT": url.port or url.query.get("port", ""),
        }
    },
    ROOT_URLCONF=(),
)
django_application = get_wsgi_application()

from django.contrib.auth import get_user  # noqa: E402 - models, which need the application first
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.handlers.wsgi import WSGIRequest  # noqa: E402
from django.db import close_old_connections  # noqa: E402


def staff(environ: WSGIEnvironment) -> Grant | None:
    close_old_connections()  # as at the beginning of each request of Django's own
    request = WSGIRequest(environ)
    request.session = SessionStore(request.COOKIES.get(settings.SESSION_COOKIE_NAME))
    user = get_user(request)
    if not user.is_active or not user.is_staff:
        return None
    return Grant(Role.WRITE if user.has_perm("auth.change_user") else Role.READ, user.get_username())


engine = create_engine(url)
queue = brooq.Queue(engine)
dashboard = create_app(queue, authorize=staff, masks=["password", "card.number"])
application = DispatcherMiddleware(django_application, {"/queue": dashboard})
