"""
The description of the API, as OpenAPI 3.1 has it: written by hand, served, and compared with the routes by a test.

Data, but for the prefix that the application is mounted under.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from sqlalchemy_brooq import __version__
from sqlalchemy_brooq.kinds import MAX_DURATION
from sqlalchemy_brooq.statements.browsing import PRIVATE
from sqlalchemy_brooq.statements.overview import ENDS
from sqlalchemy_brooq.vocabulary import TERMINAL, JobState
from sqlalchemy_brooq.web.asking import BUCKETS, LONGEST_PAGE, MOST_BUCKETS, PAGE
from sqlalchemy_brooq.web.reading import MOST

Schema: TypeAlias = dict[str, Any]

STATES: Final = [state.value for state in JobState]
CANCELABLES: Final = [state.value for state in JobState if state not in TERMINAL]
PROBLEM: Final = "application/problem+json"
JSON: Final = "application/json"


def document(prefix: str) -> dict[str, Any]:
    """
    Return the description of the API where it is mounted under *prefix*.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sqlalchemy-brooq",
            "version": __version__,
            "summary": "Jobs that are rows of one table: what there is, and what becomes of them.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{"bearer": []}],
        "paths": _PATHS,
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": _SCHEMAS,
            "parameters": {"id": _parameter("id", "path", {"type": "string", "format": "uuid"}, "The job's id.")},
            "responses": _RESPONSES,
        },
    }


def _parameter(name: str, where: str, schema: Schema, text: str, **further: Any) -> dict[str, Any]:
    required = {"required": True} if where == "path" else {}
    return {"name": name, "in": where, **required, "description": text, "schema": schema, **further}


def _query(name: str, schema: Schema, text: str, **further: Any) -> dict[str, Any]:
    return _parameter(name, "query", schema, text, **further)


def _object(properties: dict[str, Schema], *, optional: tuple[str, ...] = (), **further: Any) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **further}


def _array(items: Schema, **further: Any) -> Schema:
    return {"type": "array", "items": items, **further}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _by_end(values: Schema) -> Schema:
    return _object(dict.fromkeys(ENDS, values))


def _operation(name: str, summary: str, answer: Schema, *codes: int, **further: Any) -> dict[str, Any]:
    """
    Return an operation that answers with *answer*, or with one of these *codes*.
    """
    problems = {str(code): {"$ref": f"#/components/responses/{code}"} for code in (401, 403, *codes, 422, 503)}
    known = {"200": {"description": "It was done.", "content": {JSON: {"schema": answer}}}}
    return {"operationId": name, "summary": summary, "responses": known | dict(sorted(problems.items())), **further}


def _body(which: str) -> dict[str, Any]:
    """
    Return a body that says which jobs: by their ids, or by a filter, whose jobs are counted first.
    """
    ways = [
        _object({"ids": _array(_ID, maxItems=MOST)}),
        _object({"filter": _ref(which), "dry_run": {"const": True}}),
        _object({"filter": _ref(which), "expected": {**_COUNT, "maximum": MOST}}),
    ]
    return {"required": True, "content": {JSON: {"schema": {"oneOf": ways}}}}


_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_SECONDS: Final[Schema] = {"type": "number"}
_MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
_ID: Final[Schema] = {"type": "string", "format": "uuid"}
_STATE: Final[Schema] = {"type": "string", "enum": STATES}
_NAME: Final[Schema] = {"type": "string", "minLength": 1, "pattern": "^[^\\x00]*$"}
#: A moment with its time zone, or how long ago: see `asking.since`.
_SINCE: Final[Schema] = {
    "type": "string",
    "description": f"A moment, as 2026-12-01T08:30:00Z, or how long ago, as 1h30m; at most {MAX_DURATION.days}d.",
    "anyOf": [_MOMENT, {"pattern": "^[0-9]{1,4}[dhms]$"}],
}
_MOMENTS: Final = {
    "created_since": "Enqueued then, or later.",
    "created_until": "Enqueued before.",
    "ended_since": "Over, and ended then or later.",
    "ended_until": "Over, and ended before.",
}
_CODES: Final = {
    400: "The body is no JSON.",
    401: "The request has no token, or a wrong one.",
    403: "This access may not do that.",
    404: "There is no such job.",
    409: "It can't be done to these jobs as they are now; nothing was changed.",
    413: "The body is too long.",
    415: "The body is not sent as JSON.",
    422: "A value is refused; the text says which, and why.",
    503: "The database can't be asked, or would take too long for an answer: it is not known.",
}
_RESPONSES: Final = {
    str(code): {"description": text, "content": {PROBLEM: {"schema": _ref("Problem")}}} for code, text in _CODES.items()
}

_FACTS: Final[dict[str, Schema]] = {
    "id": _ID,
    "topic": _TEXT,
    "priority": {"type": "integer"},
    "state": _STATE,
    "attempts": {"type": "integer"},
    "requeues": {"type": "integer"},
    "is_ready": {"type": "boolean", "description": "Whether a worker may claim it."},
    "created_at": _MOMENT,
    "available_at": _MOMENT,
    "claimed_at": _or_null(_MOMENT),
    "updated_at": _MOMENT,
    "waited_seconds": _or_null(_SECONDS),
    "ran_seconds": _or_null(_SECONDS),
    "locked_by": _or_null(_TEXT),
    "locked_until": _or_null(_MOMENT),
    "key": _or_null(_TEXT),
    "error": _or_null(_TEXT),
    "payload": {"description": "Any JSON; what is masked is •••."},
    "result": {"description": "Any JSON; what is masked is •••."},
}
_FILTER: Final = {
    "topics": _array(_NAME),
    "states": _array(_STATE),
    "key": _NAME,
    **{name: {**_SINCE, "description": f"{text} {_SINCE['description']}"} for name, text in _MOMENTS.items()},
    "payload": {
        "type": "object",
        "description": "Dotted paths into the payload, and the value that is there, as text.",
        "propertyNames": {"pattern": "^[a-z_]+([.][a-z_]+)*$"},
        "additionalProperties": {"type": "string", "pattern": "^[^\\x00]*$"},
    },
}
_SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": _object(
        {"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT}, description="RFC 9457."
    ),
    "Topic": _object(
        {
            "topic": _TEXT,
            **{name: _or_null(_COUNT) for name in ("ready", "scheduled", "in_flight", "failed")},
            "oldest_ready_seconds": _or_null(_SECONDS),
            "last_hour": _or_null(_by_end(_COUNT)),
            "last_day": _or_null(_by_end(_COUNT)),
            "failure_share_last_hour": _or_null({"type": "number", "minimum": 0, "maximum": 1}),
            "failure_share_last_day": _or_null({"type": "number", "minimum": 0, "maximum": 1}),
        },
        description="How a topic does; a count that is null took too long.",
    ),
    "Series": _object({state: _array(_COUNT) for state in ENDS}),
    "Holder": _object(
        {
            "worker": _TEXT,
            "leases": _COUNT,
            "oldest": _or_null(_MOMENT),
            "until": _MOMENT,
            "expired": _COUNT,
            "asked_at": _MOMENT,
        }
    ),
    "Job": _object(_FACTS, optional=tuple(PRIVATE)),
    "WholeJob": _object(
        {
            **_FACTS,
            "chained_by": _or_null(_TEXT),
            "replays": _or_null(_TEXT),
            "replayed_by": _or_null(_object({"id": _ID, "state": _STATE})),
        }
    ),
    "Cancelable": _object(
        {name: schema for name, schema in _FILTER.items() if not name.startswith("ended_")}
        | {"states": _array({"type": "string", "enum": CANCELABLES})},
        optional=tuple(_FILTER),
        description="Which jobs, none of which is over; what isn't given excludes none.",
    ),
    "Replayable": _object(
        _FILTER | {"states": _array({"type": "string", "enum": ENDS}, minItems=1)},
        optional=tuple(_FILTER.keys() - {"states"}),
        description="Which jobs that are over; what isn't given, but for the states, excludes none.",
    ),
    "Count": _object(
        {
            "expected": {**_COUNT, "maximum": MOST, "description": "What to name when it is to be done."},
            "is_more": {"type": "boolean", "description": f"More than {MOST}: too many for one request."},
            "states": _map(_COUNT),
            "ended_since": {**_or_null(_TEXT), "description": "How far back jobs that are over were looked for."},
        }
    ),
    "Changes": _object(
        {
            "changed": {**_COUNT, "description": "Canceled, or replayed, by this request."},
            "already": {**_COUNT, "description": "Over before they could be canceled; replayed before."},
            "unfit": {**_COUNT, "description": "In a state by then that wasn't asked for."},
            "held": {**_COUNT, "description": "Left alone: transactions of others held them all along."},
            "missing": _array(_ID),
            "replays": _map(_object({"id": _ID, "created": {"type": "boolean"}})),
        }
    ),
}

_LIST: Final = [
    _query("topic", _array(_NAME), "Of these topics."),
    _query("state", _array(_STATE), "In these states."),
    _query("key", _NAME, "With this idempotency key."),
    *(_query(name, _SINCE, text) for name, text in _MOMENTS.items()),
    _query(
        "payload",
        {
            "type": "object",
            "patternProperties": {"^payload([.][a-z_]+)+$": {"type": "string", "pattern": "^[^\\x00]*$"}},
            "additionalProperties": False,
        },
        "With this value at this path, such as payload.customer.id=42, which is the number as well as the text.",
        style="form",
        explode=True,
    ),
    _query("include", _array({"type": "string", "enum": list(PRIVATE)}), "What to tell of each job as well."),
    _query("limit", {"type": "integer", "minimum": 1, "maximum": LONGEST_PAGE, "default": PAGE}, "Jobs on a page."),
    _query("after", _TEXT, "The cursor that the page before names as next."),
]
_ONE: Final = [{"$ref": "#/components/parameters/id"}]
_COUNTED: Final = {"anyOf": [_ref("Changes"), _ref("Count")]}
_SENT: Final = (400, 409, 413, 415)
_PATHS: Final[dict[str, Any]] = {
    "/api/openapi.json": {
        "get": _operation("describe", "This description.", {"type": "object"}),
    },
    "/api/topics": {
        "get": _operation("listTopics", "How each topic does.", _object({"topics": _array(_ref("Topic"))})),
    },
    "/api/throughput": {
        "get": _operation(
            "showThroughput",
            "How many jobs ended when, by topic.",
            _object({"width_seconds": _SECONDS, "moments": _array(_MOMENT), "topics": _map(_ref("Series"))}),
            parameters=[
                _query(
                    "period", {"type": "string", "pattern": "^[1-9][0-9]{0,3}[dhms]$", "default": "1h"}, "How far back."
                ),
                _query(
                    "buckets",
                    {"type": "integer", "minimum": 1, "maximum": MOST_BUCKETS, "default": BUCKETS},
                    "In how many parts.",
                ),
                _query("topic", _NAME, "Of one topic."),
            ],
        ),
    },
    "/api/holders": {
        "get": _operation("listHolders", "Who holds leases.", _object({"holders": _array(_ref("Holder"))})),
    },
    "/api/retention": {
        "get": _operation(
            "showRetention",
            "What retention is about.",
            _object(
                {
                    "ttl_seconds": _or_null(_by_end(_SECONDS)),
                    "rows": _or_null(_by_end(_COUNT)),
                    "oldest_end": _or_null(_MOMENT),
                    "due": _or_null(_by_end(_or_null(_COUNT))),
                    "held_by": _array(_object({"table": _TEXT, "constraint": _TEXT})),
                }
            ),
        ),
    },
    "/api/jobs": {
        "get": _operation(
            "listJobs",
            "Jobs, page by page: those that are over by their end, others by their ids, the last one first.",
            _object({"jobs": _array(_ref("Job")), "next": _or_null(_TEXT), "ended_since": _or_null(_TEXT)}),
            parameters=_LIST,
        ),
    },
    "/api/jobs/{id}": {
        "parameters": _ONE,
        "get": _operation("showJob", "All about one job.", _ref("WholeJob"), 404),
    },
    "/api/jobs/cancel": {
        "post": _operation("cancelJobs", "Cancel jobs.", _COUNTED, *_SENT, requestBody=_body("Cancelable")),
    },
    "/api/jobs/replay": {
        "post": _operation(
            "replayJobs", "Replay jobs that are over.", _COUNTED, *_SENT, requestBody=_body("Replayable")
        ),
    },
    "/api/jobs/{id}/cancel": {
        "parameters": _ONE,
        "post": _operation("cancelJob", "Cancel one job.", _ref("Changes"), 404, 409),
    },
    "/api/jobs/{id}/replay": {
        "parameters": _ONE,
        "post": _operation("replayJob", "Replay one job that is over.", _ref("Changes"), 404, 409),
    },
}
