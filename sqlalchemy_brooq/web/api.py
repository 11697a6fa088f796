"""
The JSON API.
"""

from __future__ import annotations

from uuid import UUID

from flask import Blueprint, Response

from sqlalchemy_brooq.documents import to_json
from sqlalchemy_brooq.web import current

api = Blueprint("api", __name__, url_prefix="/api")


@api.get("/jobs/<uuid:job_id>")
def show_job(job_id: UUID) -> Response:
    """
    All about one job.
    """
    return _answered(current.reading().job(job_id, pretty=False).all_facts())


def _answered(value: object, code: int = 200) -> Response:
    return Response(to_json(value), code, mimetype="application/json")
