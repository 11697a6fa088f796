"""
The JSON API: what it tells, what it changes, and what it makes of odd input.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine, event, func, select, text

from sqlalchemy_brooq.statements import overview as statements
from sqlalchemy_brooq.vocabulary import JobState
from sqlalchemy_brooq.web import create_app, reading
from tests.catalogs import run_sql
from tests.queues import states
from tests.test_browse import put
from tests.waiting import row
from tests.web import TOKEN, Program, bearer


@pytest.fixture
def api(engine: Engine) -> Program:
    return Program(engine, masks=["password", "card.number"])


@pytest.fixture
def offline() -> Program:
    """
    An API without a database: what it answers otherwise than with 503, it answers without asking.
    """
    return Program(create_engine("postgresql+psycopg://u@127.0.0.1:1/none"))


# -- what it tells


def test_topics_are_told_with_depth_age_rates_and_failures(engine: Engine, api: Program) -> None:
    put(engine, "pending", topic="a", count=3)
    put(engine, "pending", topic="a", available_at="now() + interval '1 h'")
    put(engine, "failed", topic="a")
    put(engine, "processing", topic="b", count=2)
    put(engine, "done", topic="b", count=3)
    put(engine, "dead", topic="b")
    put(engine, "dead", topic="b", count=4, updated_at="now() - interval '2 h'")
    put(engine, "dead", topic="c", updated_at="now() - interval '2 days'")

    a, b = api.get("topics")["topics"]

    assert a.pop("oldest_ready_seconds") == pytest.approx(900, abs=60)
    nothing = {"done": 0, "dead": 0, "canceled": 0}
    unknown = {"failure_share_last_hour": None, "failure_share_last_day": None}
    counts = {"ready": 4, "scheduled": 1, "in_flight": 0, "failed": 1}
    assert a == {"topic": "a", **counts, "last_hour": nothing, "last_day": nothing, **unknown}
    assert (b["in_flight"], b["failure_share_last_hour"], b["failure_share_last_day"]) == (2, 0.25, 5 / 8)
    assert (b["last_hour"], b["last_day"]) == ({**nothing, "done": 3, "dead": 1}, {**nothing, "done": 3, "dead": 5})


def test_throughput_is_told_from_the_table_itself(engine: Engine, api: Program) -> None:
    put(engine, "done", topic="a", count=2, updated_at="now()")
    put(engine, "dead", topic="a", updated_at="now() - interval '30 min'")
    put(engine, "canceled", topic="b", updated_at="now() - interval '2 h'")
    put(engine, "done", topic="b", updated_at="'infinity'")

    hour = api.get("throughput?period=1h&buckets=4")
    assert (hour["width_seconds"], len(hour["moments"]), list(hour["topics"])) == (900, 4, ["a"])
    assert hour["topics"]["a"]["done"] == [0, 0, 0, 2]
    assert sum(hour["topics"]["a"]["dead"][:3]) == 1
    assert sum(api.get("throughput?period=1d&buckets=24&topic=b")["topics"]["b"]["canceled"]) == 1
    assert hour["topics"]["a"].keys() == {"done", "dead", "canceled"}
    assert api.get("throughput?topic=nothing")["topics"] == {}
    assert api.get("throughput?period=7h&buckets=500")["topics"].keys() == {"a", "b"}


def test_holders_of_leases_are_told(engine: Engine, api: Program) -> None:
    put(engine, "processing", count=2)
    run_sql(
        engine,
        "UPDATE job SET locked_until = now() - interval '1 min' WHERE id = (SELECT min(id::text)::uuid FROM job)",
    )
    put(engine, "done")

    (holder,) = api.get("holders")["holders"]

    assert (holder["worker"], holder["leases"], holder["expired"]) == ("w1", 2, 1)
    assert holder["until"].endswith("Z")


def test_retention_is_told_as_far_as_it_is_known(engine: Engine, api: Program) -> None:
    put(engine, "done", count=60, updated_at="now() - interval '40 days'")
    put(engine, "dead", count=40)
    put(engine, "canceled", updated_at="'-infinity'")
    run_sql(engine, "CREATE TABLE orders (n int, job_id uuid CONSTRAINT its_job REFERENCES job) PARTITION BY LIST (n)")
    run_sql(engine, "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES IN (1)")
    assert api.get("retention")["rows"] is None
    run_sql(engine, "ANALYZE job")

    found = api.get("retention")

    assert (found["ttl_seconds"], found["due"]) == (None, None)
    assert (found["rows"]["done"], found["rows"]["dead"]) == (60, 40)
    assert found["oldest_end"] == "0001-06-01T00:00:00Z"
    assert found["held_by"] == [{"table": "orders", "constraint": "its_job"}]


def test_what_is_due_is_told_where_the_settings_are_known(engine: Engine, make_queue: Any) -> None:
    put(engine, "done", count=3, updated_at="now() - interval '40 days'")
    put(engine, "dead", count=2, updated_at="now() - interval '40 days'")
    app = create_app(make_queue(engine, retention_ttl_dead="0", retention_ttl="31d"), token=TOKEN)

    found = Program(app).get("retention")

    assert found["ttl_seconds"] == {"done": 31 * 86_400, "dead": 0, "canceled": 31 * 86_400}
    assert found["due"] == {"done": 3, "dead": 0, "canceled": 0}


def test_jobs_are_found_by_what_they_are(engine: Engine, api: Program) -> None:
    (old,) = put(engine, "pending", topic="a", created_at="now() - interval '3 h'")
    (dead,) = put(engine, "dead", topic="b", payload='\'{"customer": {"id": 42}}\'')
    (keyed,) = put(engine, "done", topic="b", idempotency_key="'k&=%'", payload='\'{"customer": {"id": "42"}}\'')

    def found(query: str) -> set[UUID]:
        return set(map(UUID, api.ids(query)))

    assert found("") == {old, dead, keyed}
    assert found("topic=a&topic=b&state=dead&state=pending") == {old, dead}
    assert found("key=k%26%3D%25") == {keyed}
    assert found("created_until=2h") == {old}
    assert found("created_since=2h&created_until=2100-01-01T00:00:00%2B01:00") == {dead, keyed}
    assert found("ended_since=1h&state=done") == {keyed}
    assert found("payload.customer.id=42") == {dead, keyed}
    assert found("payload.customer.id=42&state=dead") == {dead}


def test_pages_of_the_api_lose_no_job(engine: Engine, api: Program) -> None:
    ids = [str(one) for one in put(engine, "done", count=23)]  # all ended at the same moment

    assert sorted(api.ids("state=done&limit=5")) == sorted(ids)
    assert api.ids("limit=4") == sorted(ids, reverse=True)


def test_a_list_tells_the_consumer_s_own_only_where_it_is_asked_for(engine: Engine, api: Program) -> None:
    document = '{"password": "p", "card": {"number": [1]}, "n": 1e400, "é": "\\u2028"}'
    put(
        engine,
        "dead",
        last_error="'secret-error'",
        idempotency_key="'secret-key'",
        payload=f"'{document}'",
        result="'1'",
    )

    plain = api.get("jobs")["jobs"][0]
    answer = api.app.test_client().get(
        "/api/jobs?include=key&include=error&include=payload&include=result", headers=bearer()
    )

    assert "secret" not in str(plain)
    assert "payload" not in plain
    assert answer.text.isascii()
    assert '"password": "\\u2022\\u2022\\u2022"' in answer.text
    assert '"number": "\\u2022\\u2022\\u2022"' in answer.text
    assert "1" + "0" * 400 in answer.text  # what jsonb makes of it; no float
    assert '"error": "secret-error"' in answer.text


def test_one_job_is_told_whole(engine: Engine, api: Program) -> None:
    (job_id,) = put(engine, "dead", payload="'{\"password\": 1}'", result="'{\"password\": 2}'")
    (replay_id,) = put(engine, "pending", idempotency_key=f"'replay:{job_id}'")

    found = api.get(f"jobs/{job_id}")

    assert (found["payload"], found["result"]) == ({"password": "•••"}, {"password": "•••"})
    assert found["replayed_by"] == {"id": str(replay_id), "state": "pending"}
    assert "no job has the id" in api.refused(f"jobs/{uuid4()}", 404)


def test_a_field_that_is_hidden_can_t_be_guessed_by_looking_for_it(api: Program) -> None:
    for path in ("password", "a.0.PassWord", "password.x", "card.number", "x.card.0.number"):
        assert "is hidden here" in api.refused(f"jobs?payload.{path}=1")
    assert (
        "is hidden"
        in api.post("jobs/cancel", {"filter": {"payload": {"password": "1"}}, "dry_run": True}, 422)["detail"]
    )
    api.get("jobs?payload.number=1")


# -- what takes too long


def test_what_takes_too_long_is_not_known_and_the_answer_says_why(engine: Engine) -> None:
    api = Program(engine, budget=timedelta(milliseconds=50))
    (job_id,) = put(engine, "pending")
    with engine.begin() as other:
        other.execute(text("LOCK TABLE job IN ACCESS EXCLUSIVE MODE"))

        for path in ("jobs", f"jobs/{job_id}", "topics", "holders", "throughput", "retention"):
            assert "took longer than 50ms, and was given up" in api.refused(path, 503)
        assert api.post("jobs/cancel", {"filter": {}, "dry_run": True}, 503)["title"] == "Service Unavailable"
    assert api.get("jobs")["jobs"][0]["id"] == str(job_id)


def test_an_expensive_search_of_payloads_is_given_up(engine: Engine) -> None:
    put(engine, "pending", count=20_000, payload="jsonb_build_object('text', repeat('x', 1000))")
    api = Program(engine, budget=timedelta(milliseconds=1))

    assert "finding these jobs took longer than 1ms" in api.refused("jobs?payload.a.b=1", 503)


def test_a_count_that_takes_too_long_leaves_the_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(engine, "pending")
    monkeypatch.setattr(statements, "ended_lately", lambda: select(func.pg_sleep(60)))

    (topic,) = Program(engine, budget=timedelta(milliseconds=300)).get("topics")["topics"]

    assert topic["ready"] == 1
    assert topic["last_hour"] is topic["last_day"] is topic["failure_share_last_day"] is None


def test_many_viewers_ask_the_database_once(engine: Engine, api: Program) -> None:
    asked: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2]))
    (job_id,) = put(engine, "pending")
    api.get("topics")
    api.get("throughput")
    asked.clear()

    for _ in range(5):
        assert api.get("topics")["topics"][0]["ready"] == 1
        api.get("throughput")
    assert asked == []
    api.post(f"jobs/{job_id}/cancel")
    assert api.get("topics")["topics"][0]["ready"] == 0


# -- what it changes


def test_one_job_is_canceled_and_replayed(engine: Engine, api: Program) -> None:
    (job_id,) = put(engine, "pending")

    assert "only a job that is done" in api.post(f"jobs/{job_id}/replay", code=409)["detail"]
    assert api.post(f"jobs/{job_id}/cancel")["changed"] == 1
    assert api.post(f"jobs/{job_id}/cancel")["already"] == 1
    first = api.post(f"jobs/{job_id}/replay")["replays"][str(job_id)]
    again = api.post(f"jobs/{job_id}/replay")["replays"][str(job_id)]
    assert (first["created"], again) == (True, {**first, "created": False})
    assert states(engine) == {"canceled": 1, "pending": 1}
    for verb in ("cancel", "replay"):
        assert "no job has the id" in api.post(f"jobs/{uuid4()}/{verb}", code=404)["detail"]


def test_jobs_are_changed_by_their_ids(engine: Engine, api: Program) -> None:
    ids = [str(one) for one in (*put(engine, "pending", count=2), *put(engine, "dead"))]
    missing = str(uuid4())

    found = api.post("jobs/cancel", {"ids": [*ids, missing, ids[0]]})

    assert (found["changed"], found["already"], found["missing"]) == (2, 1, [missing])
    assert api.post("jobs/replay", {"ids": ids})["changed"] == 3


def test_what_a_filter_means_is_counted_before_it_is_changed(engine: Engine, api: Program) -> None:
    put(engine, "dead", count=3, topic="a")
    put(engine, "dead", topic="b")
    wanted = {"topics": ["a"], "states": ["dead"]}

    counted = api.post("jobs/replay", {"filter": wanted, "dry_run": True})
    assert counted == {"expected": 3, "is_more": False, "states": {"dead": 3}, "ended_since": "1d"}
    assert states(engine) == {"dead": 4}

    put(engine, "dead", topic="a")
    refusal = api.post("jobs/replay", {"filter": wanted, "expected": 3}, 409)["detail"]
    assert refusal == "3 jobs were expected, and 4 are meant by now: count them again; nothing was changed"
    assert states(engine) == {"dead": 5}

    assert api.post("jobs/replay", {"filter": wanted, "expected": 4})["changed"] == 4
    assert states(engine) == {"dead": 5, "pending": 4}


def test_fewer_than_expected_are_fine(engine: Engine, api: Program) -> None:
    put(engine, "pending", count=2)

    assert api.post("jobs/cancel", {"filter": {}, "expected": 10_000})["changed"] == 2


def test_more_than_one_request_may_change_is_refused(
    engine: Engine, api: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST", 5)
    put(engine, "pending", count=6)

    assert api.post("jobs/cancel", {"filter": {}, "dry_run": True})["states"] == {"pending": 6}
    refusal = api.post("jobs/cancel", {"filter": {}, "expected": 6}, 409)["detail"]
    assert (
        refusal == "more than 5 jobs are meant, which is too much for one request: narrow it down; nothing was changed"
    )
    assert "6 ids are too many" in api.post("jobs/cancel", {"ids": [str(uuid4()) for _ in range(6)]}, 422)["detail"]
    assert states(engine) == {"pending": 6}


def test_a_job_that_somebody_holds_is_left_alone_and_said(
    engine: Engine, api: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlalchemy_brooq.operations.PAUSES", (0.0,))
    (job_id,) = put(engine, "pending")
    with engine.begin() as other:
        other.execute(text("SELECT FROM job FOR UPDATE"))

        assert "holds this job" in api.post(f"jobs/{job_id}/cancel", code=409)["detail"]
        assert api.post("jobs/cancel", {"ids": [str(job_id)]})["held"] == 1
    assert row(engine, job_id)["state"] == JobState.PENDING


# -- odd input


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("state=gone", "state: 'gone' is none: it takes canceled, dead,"),
        ("stat=dead", "there is no parameter 'stat' here"),
        ("state", "state: it is empty"),
        ("key=a&key=b", "'key' is given 2 times"),
        ("key=%00", "NUL"),
        ("key=%ff", "not UTF-8"),
        ("key=\xff", "not UTF-8"),
        ("topic=%ed%a0%80", "not UTF-8"),  # a lone surrogate
        ("payload.=1", "names with dots between them"),
        ("payload.a..b=1", "names with dots between them"),
        ("payload=1", "there is no parameter 'payload'"),
        ("payload.a=%00", "NUL"),
        ("limit=0", "limit: '0' is no whole number from 1 to 500"),
        ("limit=501", "limit"),
        ("limit=1e3", "limit"),
        ("limit=%C2%B2", "limit"),
        ("limit=99999999999999999999", "limit"),
        ("limit=-1", "limit"),
        ("include=everything", "include: 'everything' is nothing that there is"),
        ("after=x", "this is no cursor"),
        ("after=%00", "this is no cursor"),
        ("created_since=yesterday", "created_since: 'yesterday' is not a duration"),
        ("created_since=2026-12-01", "is no moment"),
        ("created_since=2026-12-01T00:00:00", "with its time zone"),
        ("created_since=2026-12-01T00:00:00+01:00", "a \\+ in an address as %2B"),
        ("created_since=infinity", "is not a duration"),
        ("created_since=0001-01-01T00:00:00%2B14:00", "is no moment"),
        ("created_since=99999999d", "too long"),
        ("created_since=1e400d", "is not a duration|unknown unit"),
        ("ended_since=-1h", "is negative"),
        ("state=pending&ended_since=1h", "jobs that are over: pending is not"),
        ("&".join(["topic=a"] * 300), "more than 200 parameters"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_with_a_reason(offline: Program, query: str, reason: str) -> None:
    answer = offline.app.test_client().get("/api/jobs", environ_overrides={"QUERY_STRING": query}, headers=bearer())

    assert answer.status_code == 422, answer.text
    assert answer.mimetype == "application/problem+json"
    assert re.search(reason, answer.get_json()["detail"])


@pytest.mark.parametrize("query", ["created_since=9999-12-31T23:59:59Z", "created_since=36500d", "key=" + "x" * 5_000])
def test_a_query_at_the_edge_finds_nothing(api: Program, query: str) -> None:
    assert api.get(f"jobs?{query}")["jobs"] == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("nowhere", 404),
        ("jobs/1", 404),
        ("jobs/%00", 404),
        ("topics?x=1", 422),
        ("throughput?period=1ms&buckets=500", 422),
        ("throughput?period=0", 422),
        ("throughput?topic=%00", 422),
        ("throughput?buckets=501", 422),
        ("openapi.json?x", 422),
    ],
)
def test_an_address_that_leads_nowhere_says_so(offline: Program, path: str, code: int) -> None:
    assert offline.refused(path, code)


@pytest.mark.parametrize(
    ("body", "code", "reason"),
    [
        (b"", 400, "no JSON"),
        (b"{", 400, "no JSON"),
        (b"\xff", 400, "no JSON"),
        (b"[" * 100_000, 400, "nested too deep"),
        (b"NaN", 400, "NaN is no JSON"),
        (b"1" * 5_000, 400, "no JSON"),
        (b"[]", 422, "the body is to be a JSON object"),
        (b"{}", 422, "by ids or by a filter"),
        (b'{"ids": [], "filter": {}}', 422, "not by both"),
        (b'{"ids": {}}', 422, "ids is to be a JSON array"),
        (b'{"ids": [1]}', 422, "ids: 1 is no text"),
        (b'{"ids": ["\\ud800"]}', 422, "is no job's id"),
        (b'{"ids": [], "expected": 1}', 422, "go with a filter"),
        (b'{"filter": {}}', 422, "count first"),
        (b'{"filter": {}, "dry_run": true, "expected": 1}', 422, "count first"),
        (b'{"filter": {}, "dry_run": 1}', 422, "neither true nor false"),
        (b'{"filter": {}, "expected": -1}', 422, "no number of jobs"),
        (b'{"filter": {}, "expected": 1e400}', 422, "no number of jobs"),
        (b'{"filter": {}, "expected": 1.5}', 422, "no number of jobs"),
        (b'{"filter": {}, "expected": true}', 422, "no number of jobs"),
        (b'{"filter": {"topic": "a"}, "dry_run": true}', 422, "filter has nothing called 'topic'"),
        (b'{"filter": {"topics": "a"}, "dry_run": true}', 422, "topics is to be a JSON array"),
        (b'{"filter": {"topics": ["\\u0000"]}, "dry_run": true}', 422, "NUL"),
        (b'{"filter": {"key": ""}, "dry_run": true}', 422, "key: it is empty"),
        (b'{"filter": {"topics": [""]}, "dry_run": true}', 422, "topics: it is empty"),
        (b'{"filter": {"key": "\\ud800"}, "dry_run": true}', 422, "not UTF-8"),
        (b'{"filter": {"payload": {"a": 1}}, "dry_run": true}', 422, "payload 'a': 1 is no text"),
        (b'{"filter": {"payload": {"\\ud800": "1"}}, "dry_run": true}', 422, "not UTF-8"),
        (b'{"filter": {"states": ["dead"]}, "dry_run": true}', 422, "a job that is over can't be canceled"),
        (b'{"filter": {"ended_since": "1h"}, "dry_run": true}', 422, "a job that is over can't be canceled"),
        (b"x" * 2_000_000, 413, "exceeds"),
    ],
)  # fmt: skip
def test_a_body_that_makes_no_sense_is_refused_with_a_reason(
    offline: Program, body: bytes, code: int, reason: str
) -> None:
    assert reason in offline.post("jobs/cancel", code=code, data=body, content_type="application/json")["detail"]


def test_a_replay_has_to_say_of_which_jobs_that_are_over(offline: Program) -> None:
    for wanted in ({}, {"states": ["dead", "pending"]}, {"ended_since": "1h"}):
        refusal = offline.post("jobs/replay", {"filter": wanted, "dry_run": True}, 422)["detail"]
        assert "say which jobs that are over" in refusal


def test_another_kind_of_body_or_method_is_refused(offline: Program) -> None:
    assert "sent as application/json" in offline.post("jobs/cancel", code=415, data={"ids": "1"})["detail"]
    assert offline.post("jobs", {}, 405)["detail"] == "this address doesn't take that method"


def test_a_fault_of_ours_is_no_traceback_for_whoever_asks(
    api: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(reading.Reading, "holders", broken)

    assert api.refused("holders", 500) == "this went wrong here; the log says more"
    assert "RuntimeError: secret detail" in caplog.text


def test_a_database_without_our_table_is_said(empty_database_url: Any) -> None:
    engine = create_engine(empty_database_url)
    assert 'relation "job" does not exist' in Program(engine).refused("jobs", 503)
    engine.dispose()


@pytest.mark.parametrize("place", ["0", "-1", "%2B0", "%200", "0.0"])
def test_what_is_hidden_can_t_be_searched_for_under_any_number(engine: Engine, place: str) -> None:
    put(engine, "pending", payload='\'{"cards": [[{"number": "4711"}], {"number": "4711"}]}\'')
    put(engine, "pending", payload='\'{"cards": [{"number": "4711"}]}\'')
    query = f"jobs?payload.cards.{place}.number=4711"

    assert len(Program(engine).get(query)["jobs"]) == 1 + (place == "-1")
    assert "is hidden here" in Program(engine, masks=["cards.number"]).refused(query)


def test_where_something_is_hidden_nobody_guesses_at_the_whole_of_it(engine: Engine) -> None:
    put(engine, "pending", payload='\'{"card": {"pin": "4711"}}\'')
    query = "jobs?payload.card=%7B%22pin%22%3A%20%224711%22%7D"

    assert len(Program(engine).get(query)["jobs"]) == 1
    assert "name one value" in Program(engine, masks=["pin"]).refused(query)
