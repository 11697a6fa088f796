"""
The tally: what was promised, what the database says, and whether the two agree.

`count` asks the database, `promises` compares; the comparing is pure, so that it can be tried with a broken tally.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import Engine, text

from sqlalchemy_brooq.demo.catalogue import ARTICLES, ON_THE_SHELF, UNREACHABLE
from sqlalchemy_brooq.demo.handlers import MAIL_ATTEMPTS, failures_of
from sqlalchemy_brooq.demo.till import Takings

#: What the shop enqueues besides the jobs of its orders: one stock count and one report.
OTHER_JOBS: Final = 2

#: Figure -> how the database is asked for it, as one number.
FIGURES: Final[Mapping[str, str]] = {
    "orders": "SELECT count(*) FROM orders",
    "orders_refused": "SELECT count(*) FROM orders WHERE number = ANY(:refused)",
    "jobs_refused": "SELECT count(*) FROM job WHERE (payload->>'order')::int = ANY(:refused)",
    "repeated_jobs": """
        SELECT count(*) FROM (SELECT FROM job WHERE topic IN ('invoice.write', 'ledger.post')
        GROUP BY topic, payload->>'order' HAVING count(*) > 1) AS repeated""",
    "jobs": "SELECT count(*) FROM job",
    "done": "SELECT count(*) FROM job WHERE state = 'done'",
    "dead": "SELECT count(*) FROM job WHERE state = 'dead'",
    "canceled": "SELECT count(*) FROM job WHERE state = 'canceled'",
    "unfinished": "SELECT count(*) FROM job WHERE state IN ('pending', 'processing', 'failed')",
    "heard": """
        SELECT count(*) FROM job WHERE state = 'canceled'
        AND EXISTS (SELECT FROM stock_note WHERE job_id = job.id AND note LIKE 'put the pencil down%')""",
    "failures": "SELECT coalesce(sum(attempts - requeues - 1), 0) FROM job WHERE topic = 'email.send' AND state = 'done'",
    "last_failures": "SELECT coalesce(sum(attempts - requeues), 0) FROM job WHERE state = 'dead'",
    "came_back": "SELECT count(*) FROM job WHERE id = ANY(:held) AND requeues > 0",
    "finished_elsewhere": """
        SELECT count(*) FROM job WHERE id = ANY(:held) AND state = 'done' AND locked_by <> :killed""",
    "entries": "SELECT count(*) FROM ledger_entry",
    "booked_orders": "SELECT count(DISTINCT order_number) FROM ledger_entry",
    "pieces": "SELECT coalesce(sum(quantity), 0) FROM order_line",
    "taken": "SELECT :shelved - sum(stock) FROM product",
    "mailed": "SELECT count(DISTINCT order_number) FROM sent_mail",
    "mailed_twice": "SELECT count(*) FROM (SELECT FROM sent_mail GROUP BY job_id HAVING count(*) > 1) AS twice",
    "mailed_twice_unexplained": """
        SELECT count(*) FROM (SELECT FROM sent_mail JOIN job ON job.id = job_id WHERE requeues = 0
        GROUP BY job.id HAVING count(*) > 1) AS twice""",
    "reported": "SELECT coalesce(sum((result->>'orders')::int), 0) FROM job WHERE topic = 'report.day'",
}


@dataclass(slots=True)
class Notes:
    """
    What the demo itself has seen, and the database can't know.
    """

    takings: Takings
    killed: str = ""
    """The identity of the worker that was killed."""
    held: list[UUID] = field(default_factory=list)
    """The jobs that it held."""
    twice_at_the_kill: int = 0
    """How many of those had sent their mail already."""
    unclean: int = 0
    """Workers that left something behind when they were asked to stop."""


class Promise(NamedTuple):
    """
    One line of the summary.
    """

    what: str
    found: int
    wanted: int
    at_least: bool = False

    @property
    def is_kept(self) -> bool:
        """
        Whether what was found is what was promised.
        """
        return self.found >= self.wanted if self.at_least else self.found == self.wanted


def count(engine: Engine, notes: Notes) -> dict[str, int]:
    """
    Ask the database for all `FIGURES`.
    """
    known: dict[str, Any] = {
        "refused": [form.number for form in notes.takings.refused],
        "held": notes.held,
        "killed": notes.killed,
        "shelved": len(ARTICLES) * ON_THE_SHELF,
    }
    figures = {}
    with engine.connect() as connection:
        for name, statement in FIGURES.items():
            asked = text(statement)
            wanted = {key: value for key, value in known.items() if key in asked.compile().params}
            figures[name] = int(connection.scalar(asked, wanted))
    return figures


def promises(figures: Mapping[str, int], notes: Notes) -> Sequence[Promise]:
    """
    Return every promise with what was found.
    """
    return (
        *_promises_of_enqueuing(figures, notes.takings),
        *_promises_of_execution(figures, notes),
        *_promises_of_effects(figures, notes),
    )


def _promises_of_enqueuing(found: Mapping[str, int], takings: Takings) -> Sequence[Promise]:
    placed = len(takings.placed)
    sent_twice = sum(form.is_sent_twice for form in (*takings.placed, *takings.repeated)) // 2
    return (
        Promise("orders placed", found["orders"], placed),
        Promise("orders rolled back, their payment refused", len(takings.refused), 1, at_least=True),
        Promise("  orders left of these", found["orders_refused"], 0),
        Promise("  jobs left of these", found["jobs_refused"], 0),
        Promise("forms sent twice at once, the second suppressed", len(takings.repeated), sent_twice),
        Promise("  jobs that exist twice all the same", found["repeated_jobs"], 0),
        Promise("jobs enqueued: three an order, and two others", found["jobs"], 3 * placed + OTHER_JOBS),
    )


def _promises_of_execution(found: Mapping[str, int], notes: Notes) -> Sequence[Promise]:
    placed = notes.takings.placed
    bounced = sum(form.customer is UNREACHABLE for form in placed)
    failures = sum(failures_of(form.number, form.pause) for form in placed if form.customer is not UNREACHABLE)
    return (
        Promise("  done", found["done"], 3 * len(placed) + OTHER_JOBS - bounced - 1),
        Promise("  dead, the mailbox doesn't exist", found["dead"], bounced),
        Promise("    attempts that took", found["last_failures"], bounced * MAIL_ATTEMPTS),
        Promise("  canceled while it ran", found["canceled"], 1),
        Promise("    handlers that heard of it", found["heard"], 1),
        Promise("  left in pending, processing or failed", found["unfinished"], 0),
        Promise("failed attempts that were tried again", found["failures"], failures),
        Promise("jobs that the killed worker held", len(notes.held), 2, at_least=True),
        Promise("  requeued when their leases ran out", found["came_back"], len(notes.held)),
        Promise("  done by another worker", found["finished_elsewhere"], len(notes.held)),
        Promise("workers that left something when they stopped", notes.unclean, 0),
    )


def _promises_of_effects(found: Mapping[str, int], notes: Notes) -> Sequence[Promise]:
    placed = notes.takings.placed
    reachable = sum(form.customer is not UNREACHABLE for form in placed)
    return (
        Promise("ledger entries (exactly once)", found["entries"], len(placed)),
        Promise("  orders that have one", found["booked_orders"], len(placed)),
        Promise("  pieces taken off the shelves", found["taken"], found["pieces"]),
        Promise("  orders in the report's result", found["reported"], len(placed)),
        Promise("orders with a mail sent (at least once)", found["mailed"], reachable),
        Promise("  mails sent twice, because of the kill", found["mailed_twice"], notes.twice_at_the_kill, at_least=True),
        Promise("  mails sent twice for no such reason", found["mailed_twice_unexplained"], 0),
    )
