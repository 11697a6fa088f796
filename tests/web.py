"""
The web application in tests: clients that know a token, and what they are told.
"""

from __future__ import annotations

from typing import Any, Final

from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import Engine
from werkzeug.test import TestResponse

from sqlalchemy_brooq.web import create_app

TOKEN: Final = "s3cr3t-tökén"  # noqa: S105 - a secret to look for
READ_TOKEN: Final = "look-but-do-not-touch"  # noqa: S105 - the same


def bearer(token: str = TOKEN) -> dict[str, str]:
    """
    Return the header that shows a token, as WSGI hands bytes over.
    """
    return {"Authorization": f"Bearer {token}".encode().decode("latin-1")}


class Program:
    """
    A program that uses the API with a token.
    """

    def __init__(self, app: Flask | Engine, token: str = TOKEN, **options: Any) -> None:
        self.app = create_app(app, token=TOKEN, read_token=READ_TOKEN, **options) if isinstance(app, Engine) else app
        self._client: FlaskClient = self.app.test_client()
        self._headers = bearer(token)

    def get(self, path: str, code: int = 200) -> Any:
        """
        Return what is answered at *path* below the API, with this *code*.
        """
        return self._said(self._client.get(f"/api/{path}", headers=self._headers), code)

    def post(self, path: str, body: Any = None, code: int = 200, **request: Any) -> Any:
        """
        Send *body* as JSON to *path* below the API.
        """
        given = {"json": body, **request} if body is not None else request
        return self._said(self._client.post(f"/api/{path}", headers=self._headers, **given), code)

    def refused(self, path: str, code: int = 422) -> str:
        """
        Return why a request is refused.
        """
        return str(self.get(path, code)["detail"])

    def ids(self, query: str = "") -> list[str]:
        """
        Return the ids of all jobs that *query* finds, page by page.
        """
        found: list[str] = []
        after = ""
        while True:
            page = self.get(f"jobs?{query}{after}")
            found += (job["id"] for job in page["jobs"])
            if page["next"] is None:
                return found
            after = f"&after={page['next']}"

    def _said(self, answer: TestResponse, code: int) -> Any:
        assert answer.status_code == code, answer.text
        assert answer.mimetype == ("application/json" if code < 400 else "application/problem+json")
        assert "Traceback" not in answer.text
        found = answer.get_json()
        if code >= 400:
            assert found.keys() == {"type", "title", "status", "detail"}
            assert found["status"] == code
        return found
