"""
The doctor's questions: about the server, our table, and what keeps it from being vacuumed.

They read catalogs and statistics, most of which SQLAlchemy has no names for; nothing is changed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Float, Interval, Select, TextClause, cast, extract, func, select, text
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects.postgresql import OID

from sqlalchemy_brooq.model import JOB
from sqlalchemy_brooq.statements.fence import leased
from sqlalchemy_brooq.statements.schema import oid

RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""What a worker does to the table."""

#: What needs no more than a connection.
_SERVER: Final = """
    SELECT current_setting('server_version') AS version, current_database() AS database, current_user AS role,
           pg_is_in_recovery() AS is_standby, current_setting('default_transaction_read_only') = 'on' AS is_read_only
"""
#: Dead rows go when no transaction can see them any more: who has a snapshot, or an id, keeps those that are younger.
_SESSIONS: Final = """
    SELECT pid, usename AS role, application_name AS application, state,
           extract(epoch FROM clock_timestamp() - xact_start)::float AS age
    FROM pg_catalog.pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND clock_timestamp() - xact_start >= :old
    ORDER BY xact_start
"""
#: Sessions of others, as a role without rights to look at them sees them.
_HIDDEN: Final = """
    SELECT count(*) FROM pg_catalog.pg_stat_activity
    WHERE datname = current_database() AND query = '<insufficient privilege>'
"""
_PREPARED: Final = """
    SELECT gid, owner AS role, extract(epoch FROM clock_timestamp() - prepared)::float AS age
    FROM pg_catalog.pg_prepared_xacts
    WHERE database = current_database() AND clock_timestamp() - prepared >= :old ORDER BY prepared
"""
#: A standby reports what its queries see (hot_standby_feedback); its slot remembers that, also while it is away.
_STANDBYS: Final = """
    SELECT slot_name AS name, active, age(xmin) AS transactions
    FROM pg_catalog.pg_replication_slots WHERE xmin IS NOT NULL AND (NOT active OR age(xmin) >= :transactions)
    UNION ALL
    SELECT coalesce(nullif(application_name, ''), pid::text), true, age(backend_xmin)
    FROM pg_catalog.pg_stat_replication WHERE age(backend_xmin) >= :transactions
    ORDER BY 1
"""
_VACUUM: Final = """
    SELECT n_live_tup AS live, n_dead_tup AS dead,
           extract(epoch FROM clock_timestamp() - greatest(last_vacuum, last_autovacuum))::float AS age,
           current_setting('autovacuum') = 'on' AS is_on, current_setting('track_counts') = 'on' AS is_counting,
           EXISTS (SELECT FROM unnest(reloptions) AS option WHERE split_part(option, '=', 1) = 'autovacuum_enabled'
                   AND NOT split_part(option, '=', 2)::boolean) AS is_off_here
    FROM pg_catalog.pg_class JOIN pg_catalog.pg_stat_all_tables ON relid = pg_class.oid WHERE pg_class.oid = :table
"""


def server() -> TextClause:
    """
    Answer with what the server is, and as what it takes us.
    """
    return text(_SERVER)


def table_oid(schema: str | None) -> Select[Any]:
    """
    Answer with the table's OID. Without a *schema* it is the table that ``job`` means on this connection.
    """
    return select(oid(schema))


def rights() -> Select[Any]:
    """
    Answer with whether we have each of `RIGHTS`. Parameter: ``table``.
    """
    table = bind("table", type_=OID)
    return select(*(func.has_table_privilege(table, right).label(right) for right in RIGHTS))


def expired() -> Select[Any]:
    """
    Answer with (topic, jobs, seconds) of leases that ran out at least the parameter ``grace`` ago.
    """
    # Each moment by itself: an infinite one can't be subtracted before PostgreSQL 17.
    age = extract("epoch", func.now()) - extract("epoch", func.min(JOB.c.locked_until))
    ran_out = JOB.c.locked_until < func.now() - bind("grace", type_=Interval)
    return (
        select(JOB.c.topic, func.count().label("jobs"), cast(age, Float).label("seconds"))
        .where(leased(), ran_out)
        .group_by(JOB.c.topic)
        .order_by(JOB.c.topic)
    )


def sessions(old: timedelta) -> TextClause:
    """
    Answer with sessions of this database that keep what is *old* from being vacuumed.
    """
    return text(_SESSIONS).bindparams(bind("old", old, Interval))


def hidden_sessions() -> TextClause:
    """
    Answer with how many sessions of this database we may not look at.
    """
    return text(_HIDDEN)


def prepared(old: timedelta) -> TextClause:
    """
    Answer with the prepared transactions of this database that are *old*: nobody has committed them yet.
    """
    return text(_PREPARED).bindparams(bind("old", old, Interval))


def standbys(transactions: int) -> TextClause:
    """
    Answer with the standbys that hold vacuum back: those that are away, and those behind by many *transactions*.
    """
    return text(_STANDBYS).bindparams(transactions=transactions)


def vacuum() -> TextClause:
    """
    Answer with what is known of the table's dead rows, and of how they go. Parameter: ``table``.
    """
    return text(_VACUUM)


def clock() -> Select[Any]:
    """
    Answer with the server's clock, in seconds.
    """
    return select(cast(extract("epoch", func.clock_timestamp()), Float))
