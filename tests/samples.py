"""
A day in the life of a small shop, as rows: what the pages of the dashboard are looked at with.

The same in every run, but for the moments, which end now.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import Engine, text

DEAD: Final = UUID("0197a5a0-0000-7000-8000-0000c01dcafe")
"""A job that ran out of attempts; its error and its payload are worth a look."""
RUNNING: Final = UUID("0197a5a0-0000-7000-8000-0000beadfeed")
"""One that a worker holds."""
SCHEDULED: Final = UUID("0197a5a0-0000-7000-8000-00000000feed")
"""One for tomorrow."""

_WORKER: Final = "'worker-7c9f-' || n % 3 || ':' || 41 + n % 3 || ':a81c9e'"

#: Spread over 26 hours, more of them lately; one topic fails now and then, and one often.
_ENDED: Final = f"""
INSERT INTO job (
    topic, payload, state, attempts, available_at, claimed_at, locked_by, locked_until, last_error, created_at,
    updated_at, idempotency_key
)
SELECT
    topic, jsonb_build_object('order', 1000 + n), state, CASE WHEN state = 'dead' THEN 5 ELSE 1 END, at,
    at + wait * interval '4 s', {_WORKER}, at + interval '2 min', CASE WHEN state = 'dead' THEN error END,
    at - interval '50 ms', at + interval '4 s' + more * interval '9 s', CASE WHEN n % 7 = 0 THEN 'order-' || n END
FROM
    generate_series(1, 12000) AS n,
    LATERAL (
        SELECT
            (hashint4(n)::bigint + 2147483648) / 4294967296.0 AS luck,
            (hashint4(-n)::bigint + 2147483648) / 4294967296.0 AS wait,
            (hashint4(7 * n)::bigint + 2147483648) / 4294967296.0 AS more
    ) AS chance,
    LATERAL (SELECT now() - interval '20 s' - interval '26 hours' * (luck - sin(20 * luck) / 40) AS at) AS moment,
    LATERAL (
        SELECT
            (ARRAY['email.send', 'email.send', 'invoice.print', 'ledger.post', 'search.index', 'thumbnail.make'])
                [1 + n % 6] AS topic,
            CASE
                WHEN n % 6 = 2 AND n % 13 = 0 OR n % 6 < 2 AND n % 211 = 0 THEN 'dead'
                WHEN n % 97 = 0 THEN 'canceled'
                ELSE 'done'
            END AS state,
            CASE
                WHEN n % 6 = 2 THEN 'PrinterOffline: tray 2 of hp-4015 is empty'
                WHEN n % 5 < 3 THEN 'SMTPServerDisconnected: Connection unexpectedly closed'
                ELSE 'ReadTimeout: mail.post.example did not answer within 10 s'
            END AS error
    ) AS kind
"""
_RUNNING: Final = f"""
INSERT INTO job (topic, payload, state, attempts, available_at, claimed_at, locked_by, locked_until, created_at)
SELECT
    (ARRAY['email.send', 'search.index', 'invoice.print'])[1 + n % 3], jsonb_build_object('order', 4700 + n),
    'processing', 1 + n % 2, now() - n * n * interval '3.7 s', now() - n * n * interval '3.4 s', {_WORKER},
    now() + CASE WHEN n = 8 THEN - interval '4 s' ELSE interval '150 s' - n * interval '11 s' END,
    now() - n * n * interval '3.7 s'
FROM generate_series(1, 8) AS n
"""
_WAITING: Final = """
INSERT INTO job (topic, payload, available_at, created_at)
SELECT 'ledger.post', jsonb_build_object('entry', n), now() - n * interval '300 ms', now() - n * interval '300 ms'
FROM generate_series(1, 804) AS n
"""
_LETTER: Final = (
    '{"to": "ada@post.example", "order": 1001, "card": {"number": "4111 1111 1111 1111"}, "lines": '
    '[{"sku": "A-1", "count": 2}, {"sku": "B-7", "count": 1}], "note": "please ring twice"}'
)
_ALONE: Final = f"""
INSERT INTO job (
    id, topic, payload, state, attempts, requeues, last_error, available_at, claimed_at, locked_by, locked_until,
    created_at, updated_at, idempotency_key, meta
) VALUES (
    '{DEAD}', 'email.send', '{_LETTER}', 'dead', 5, 1,
    E'SMTPServerDisconnected: Connection unexpectedly closed\\nwhile talking to mail.post.example',
    now() - interval '121 s', now() - interval '115 s', 'worker-7c9f-1:42:a81c9e', now() - interval '60 s',
    now() - interval '6 min', now() - interval '93 s', 'order-1001', '{{"chained_by": "{RUNNING}"}}'
), (
    '{RUNNING}', 'thumbnail.make', '{{"image": "cat.png", "sizes": [64, 128, 512]}}', 'processing', 1, 0, NULL,
    now() - interval '45 s', now() - interval '38 s', 'worker-7c9f-2:43:a81c9e', now() + interval '82 s',
    now() - interval '45 s', now() - interval '38 s', NULL, NULL
), (
    '{SCHEDULED}', 'email.send', '{_LETTER}', 'pending', 0, 0, NULL, now() + interval '1 day', NULL, NULL, NULL,
    now(), now(), NULL, NULL
), (
    gen_random_uuid(), 'email.send', '{_LETTER}', 'failed', 2, 0,
    'SMTPServerDisconnected: Connection unexpectedly closed', now() + interval '40 s', now() - interval '9 s', NULL,
    NULL, now() - interval '75 s', now() - interval '4 s', NULL, NULL
)
"""


def fill(engine: Engine) -> None:
    """
    Write the rows, and let the planner know of them.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in (_ENDED, _RUNNING, _WAITING, _ALONE):
            connection.execute(text(statement.replace(":", "\\:")))
        connection.execute(text("ANALYZE job"))
