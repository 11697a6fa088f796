"""
Changing many jobs: what it would be about is counted and shown first, and done when somebody has agreed to that.

Owns which of the jobs that somebody looks at an action is about. Nothing is changed by looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from uuid import UUID

from flask import Blueprint, abort, render_template, request
from flask.typing import ResponseReturnValue
from werkzeug.datastructures import MultiDict

from sqlalchemy_brooq.operations import Counts
from sqlalchemy_brooq.search import InvalidQuery, JobQuery
from sqlalchemy_brooq.vocabulary import JobState
from sqlalchemy_brooq.web import current
from sqlalchemy_brooq.web.forms import JobForm
from sqlalchemy_brooq.web.reading import MOST, Grown

bulk: Final = Blueprint("bulk", __name__)

CANCEL: Final = "cancel"
REPLAY: Final = "replay"
EVERYTHING: Final = "everything"
"""The field that says that all jobs are meant which the form finds, and not those that were ticked."""
_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What is to be done to which jobs.
    """

    action: str
    form: JobForm
    ids: tuple[UUID, ...] = ()
    """Those that were ticked; none where the form's are meant."""
    everything: bool = False

    @classmethod
    def of(cls, given: MultiDict[str, str]) -> Plan:
        """
        Return what *given* says.

        Raises:
            InvalidQuery: It says nothing that can be done.
        """
        action = given.get("action", "")
        if action not in (CANCEL, REPLAY):
            raise InvalidQuery("say what is to be done: cancel, or replay")
        form, everything = JobForm.of(given), EVERYTHING in given
        return cls(action, form, () if everything else tuple(map(_id, dict.fromkeys(given.getlist("id")))), everything)

    @property
    def states(self) -> frozenset[JobState]:
        """
        The states of the jobs that it is about.
        """
        found = self.form.cancelable if self.action == CANCEL else self.form.replayable
        if not found:
            raise InvalidQuery(f"there is nothing to {self.action} among these: choose other states")
        return found

    @property
    def query(self) -> JobQuery:
        """
        The question that finds the jobs.
        """
        return self.form.query(self.states)


@bulk.get("/jobs/bulk")
def preview() -> ResponseReturnValue:
    """
    Say how many jobs it would be about.
    """
    return _preview(Plan.of(request.args))


@bulk.post("/jobs/bulk")
def change() -> ResponseReturnValue:
    """
    Do it, unless it is about more jobs by now.
    """
    plan = Plan.of(request.form)
    expected = request.form.get("expected", "")
    if plan.everything and not (expected.isdecimal() and len(expected) < _DIGITS):
        raise InvalidQuery("say how many jobs are expected, as the page before does")
    try:
        counts = _done(plan, int(expected) if plan.everything else None)
    except Grown as error:
        return _preview(plan, str(error)), HTTPStatus.CONFLICT
    return render_template("changed.html", plan=plan, counts=counts, rest=_rest(counts))


def _preview(plan: Plan, problem: str | None = None) -> str:
    if not current.may_write():
        abort(HTTPStatus.FORBIDDEN, "this access may read, and change nothing")
    return render_template("bulk.html", plan=plan, problem=problem, **_counted(plan))


def _counted(plan: Plan) -> dict[str, Any]:
    if not plan.everything:
        return {"counts": None, "total": len(plan.ids), "period": None, "too_many": False, "most": MOST}
    query = plan.query
    answer = current.reading().count(query)
    total = None if answer.value is None else sum(answer.value.values())
    return {
        "counts": answer,
        "total": total,
        "period": None if query.asks_for_ends else query.period,
        "too_many": total is not None and total > MOST,
        "most": MOST,
    }


def _done(plan: Plan, expected: int | None) -> Counts:
    reading, who = current.reading(), current.who()
    act = reading.cancel if plan.action == CANCEL else reading.replay
    return act(plan.query if plan.everything else plan.ids, who=who, expected=expected).counts


def _rest(counts: Counts) -> Mapping[str, int]:
    """
    Return what became of the jobs that were not changed.
    """
    found = {
        "already": counts.already,
        "unfit": counts.unfit,
        "held": counts.held,
        "missing": len(counts.missing),
    }
    return {name: count for name, count in found.items() if count}


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidQuery("a job's id is a UUID") from None
