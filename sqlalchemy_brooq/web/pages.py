"""
The pages: what is where, jobs, one job, and retention; whole without scripts, and kept up to date with them.

Owns the paths and what each page is made of. What the database is asked, `reading` knows; who may see it, `admission`.
A part of a page is an answer of its own too, in the same words, so that a page can ask for it again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from flask import Blueprint, Response, abort, redirect, render_template, request, url_for
from flask.blueprints import BlueprintSetupState
from flask.typing import ResponseReturnValue

from sqlalchemy_brooq import __version__
from sqlalchemy_brooq.browse import JobView
from sqlalchemy_brooq.errors import JobNotFound
from sqlalchemy_brooq.operations import Counts
from sqlalchemy_brooq.overview import Throughput
from sqlalchemy_brooq.search import InvalidQuery
from sqlalchemy_brooq.vocabulary import CLAIMABLE, HELD, TERMINAL, JobState
from sqlalchemy_brooq.web import charts, current, life, shown
from sqlalchemy_brooq.web.bulk import bulk
from sqlalchemy_brooq.web.charts import DAY, HOUR, Period
from sqlalchemy_brooq.web.forms import JobForm, Trail
from sqlalchemy_brooq.web.glance import counts_of, glance
from sqlalchemy_brooq.web.reading import MOST, Answer

pages: Final = Blueprint("pages", __name__)

LISTED: Final = 8
"""Jobs in a list of the overview."""
PAGE: Final = 50
"""Jobs on a page of them."""
PART: Final = "Brooq-Part"
"""The header of an answer that is a part of a page."""
NOTES: Final = {
    "over": "It was over already, so there was nothing to cancel.",
    "again": "It was replayed before: this is that replay.",
    "replayed": "This is the replay: a new job with the same payload.",
    "held": "Nothing was changed: somebody else's transaction holds this job. Try again.",
    "unfit": "Nothing was changed: it is in another state by now.",
    "canceled": "Canceled. If a worker runs it, its handler is told at its next check.",
}
"""What a page says once about what was just done; an address names one of them."""


@pages.record_once
def _prepare(state: BlueprintSetupState) -> None:
    app = state.app
    app.jinja_env.filters.update(shown.FILTERS)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True


@pages.app_context_processor
def _common() -> dict[str, Any]:
    """
    Return what every page is rendered with.
    """
    return {
        "asset": lambda name: url_for("static", filename=name, v=__version__),
        "now": datetime.now(UTC),
        "page": (request.endpoint or "").removeprefix("pages."),
        "can_log_out": any(name in request.cookies for name in current.access().cookies),
        "states": list(JobState),
        "active": CLAIMABLE | HELD,
        "terminal": TERMINAL,
        "most": MOST,
    }


# -- the overview


@pages.get("/")
def overview() -> str:
    """
    Show what is where.
    """
    return render_template(
        "overview.html", **{name: value for part in OVERVIEW.values() for name, value in part().items()}
    )


@pages.get("/parts/<name>")
def part(name: str) -> Response:
    """
    Return a part of the overview.
    """
    if name not in OVERVIEW:
        abort(HTTPStatus.NOT_FOUND)
    return _part(name, **OVERVIEW[name]())


def _glance() -> dict[str, Any]:
    reading = current.reading()
    return {"glance": glance(reading.topics(), reading.holders(), _ended(HOUR), _ended(DAY))}


def _activity() -> dict[str, Any]:
    return {"activity": [_charted(period) for period in (HOUR, DAY)]}


def _charted(period: Period) -> dict[str, Any]:
    answer = _ended(period)
    found = answer.value
    drawn = None if found is None else charts.chart(period, found.moments, counts_of(found))
    return {"id": period.name.replace(" ", "-").lower(), "name": period.name, "chart": drawn, "reason": answer.reason}


def _ended(period: Period) -> Answer[Throughput]:
    return current.reading().throughput(period.length, period.buckets)


def _flight() -> dict[str, Any]:
    reading = current.reading()
    return {"flight": reading.in_flight(LISTED + 1), "holders": reading.holders(), "limit": LISTED}


def _died() -> dict[str, Any]:
    return {"died": current.reading().died(LISTED + 1), "limit": LISTED}


OVERVIEW: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "glance": _glance,
    "activity": _activity,
    "flight": _flight,
    "died": _died,
}
"""Part of the overview -> what it is rendered with."""


# -- jobs


@pages.get("/jobs")
def jobs() -> ResponseReturnValue:
    """
    Show those that are looked for.
    """
    form = JobForm.of(request.args)
    if form.job_id is not None and _exists(form.job_id):
        return redirect(url_for("pages.job", job_id=form.job_id))
    try:
        return render_template("jobs.html", **_found(form))
    except InvalidQuery as error:
        return render_template("jobs.html", form=form, problem=str(error)), HTTPStatus.UNPROCESSABLE_ENTITY


@pages.get("/jobs/part")
def jobs_part() -> Response:
    """
    Return the list alone.
    """
    return _part("rows", **_found(JobForm.of(request.args)))


def _found(form: JobForm) -> dict[str, Any]:
    trail, query = Trail.of(request.args), form.query()
    return {
        "form": form,
        "trail": trail,
        "found": current.reading().jobs(query, trail.after, PAGE),
        "by_end": query.by_end,
    }


def _exists(job_id: UUID) -> bool:
    try:
        current.reading().job(job_id)
    except JobNotFound:
        return False
    return True


# -- one job


@pages.get("/jobs/<uuid:job_id>")
def job(job_id: UUID) -> str:
    """
    Show all about one.
    """
    note = NOTES.get(request.args.get("note", ""))
    return render_template("job.html", note=note, **_described(job_id))


@pages.get("/jobs/<uuid:job_id>/part")
def job_part(job_id: UUID) -> Response:
    """
    Return the same without the page around it.
    """
    return _part("job", **_described(job_id))


def _described(job_id: UUID) -> dict[str, Any]:
    found: JobView = current.reading().job(job_id)
    return {"job": found, "steps": life.steps(found), "parts": life.parts(found), "width": life.WIDTH}


@pages.post("/jobs/<uuid:job_id>/cancel")
def cancel(job_id: UUID) -> Response:
    """
    Call it off.
    """
    counts = current.reading().cancel([job_id], who=current.who()).counts
    note = _left(job_id, counts) or ("over" if counts.already else "canceled")
    return _see("pages.job", job_id=job_id, note=note)


@pages.post("/jobs/<uuid:job_id>/replay")
def replay(job_id: UUID) -> Response:
    """
    Enqueue it once more.
    """
    changes = current.reading().replay([job_id], who=current.who())
    found = changes.replays.get(job_id)
    if found is None:
        return _see("pages.job", job_id=job_id, note=_left(job_id, changes.counts) or "unfit")
    return _see("pages.job", job_id=found.id, note="replayed" if found.created else "again")


def _left(job_id: UUID, counts: Counts) -> str | None:
    """
    Return the name of the note that says why a job was left alone; ``None``: it wasn't.

    Raises:
        JobNotFound: It is not there.
    """
    if counts.missing:
        raise JobNotFound(job_id)
    if counts.held:
        return "held"
    return "unfit" if counts.unfit else None


# -- retention


@pages.get("/retention")
def retention() -> str:
    """
    Show what is kept for how long, and what is due.
    """
    return render_template("retention.html", retention=current.reading().retention())


@pages.get("/retention/part")
def retention_part() -> Response:
    """
    Return the same without the page around it.
    """
    return _part("retention", retention=current.reading().retention())


# -- who it is


@pages.route("/login", methods=["GET", "POST"])
def login() -> ResponseReturnValue:
    """
    Take a token by a form; no address and no cookie ever has it.
    """
    target = _own(request.values.get("next", ""))
    if request.method == "GET":
        if current.grant() is not None:
            return redirect(target)
        return render_template("login.html", next=request.args.get("next", ""), wrong=False)
    answer = _see_path(target)
    if current.log_in(request.form.get("token", ""), answer):
        return answer
    return render_template("login.html", next=request.form.get("next", ""), wrong=True), HTTPStatus.UNAUTHORIZED


@pages.post("/logout")
def logout() -> Response:
    """
    Forget who it is.
    """
    answer = _see("pages.login")
    current.log_out(answer)
    return answer


def _own(path: str) -> str:
    """
    Return where *path* leads if that is a page of ours, and the overview if it isn't.
    """
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return request.root_path + path if is_ours else url_for("pages.overview")


# -- answers


def _part(name: str, **context: Any) -> Response:
    answer = Response(render_template(f"parts/{name}.html", **context))
    answer.headers[PART] = name
    return answer


def _see(endpoint: str, **values: Any) -> Response:
    return _see_path(url_for(endpoint, **values))


def _see_path(path: str) -> Response:
    return Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})


pages.register_blueprint(bulk)
