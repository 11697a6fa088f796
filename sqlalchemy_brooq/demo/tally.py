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

from sqlalchemy_brooq.demo.catalogue import ARTICLES, ON_THE_SHELF, UNREACHABLE, Form
from sqlalchemy_brooq.demo.handlers import MAIL_ATTEMPTS, failures_of
from sqlalchemy_brooq.demo.till import Takings

#: What the shop enqueues besides the jobs of its orders: one stock count and one report.
OTHER_JOBS: Final = 2

#: Figure -> how the database is asked for it, as one number.
FIGURES: Final[Mapping[str, str]] = {
    "orders": "SELECT count(*) FROM orders",
    "orders_rolled_back": "SELECT count(*) FROM orders WHERE number = ANY(:refused)",
    "jobs_rolled_back": "SELECT count(*) FROM job WHERE (payload->>'order')::int = ANY(:refused)",
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
    "failures": """
        SELECT coalesce(sum(attempts - requeues - 1), 0) FROM job WHERE topic = 'email.send' AND state = 'done'""",
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
    What the demo has done and seen itself; the database isn't asked for it.
    """

    forms: list[Form] = field(default_factory=list)
    """All that were handed in."""
    takings: Takings = field(default_factory=Takings)
    killed: str = ""
    """The identity of the worker that was killed."""
    held: list[UUID] = field(default_factory=list)
    """The jobs that it held."""
    mailed_before_the_kill: int = 0
    """How many of those had sent their mail already."""
    unclean: int = 0
    """Workers that left something behind when they were asked to stop."""

    @property
    def orders(self) -> list[Form]:
        """
        The forms of which an order is to be made.
        """
        return [form for form in self.forms if not form.is_refused]

    @property
    def reachable(self) -> list[Form]:
        """
        Those of the orders whose customers can be reached by mail.
        """
        return [form for form in self.orders if form.customer is not UNREACHABLE]


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
        "refused": [form.number for form in notes.forms if form.is_refused],
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


def promises(found: Mapping[str, int], notes: Notes) -> Sequence[Promise]:
    """
    Compare what was *found* with what was to be expected.
    """
    return (
        *_promises_of_enqueuing(found, notes),
        *_promises_of_execution(found, notes),
        *_promises_of_effects(found, notes),
    )


def _promises_of_enqueuing(found: Mapping[str, int], notes: Notes) -> Sequence[Promise]:
    orders = len(notes.orders)
    return (
        Promise("orders placed", found["orders"], orders),
        Promise("  as the till has counted them", notes.takings.placed, orders),
        Promise("payments refused, rolled back", notes.takings.refused, len(notes.forms) - orders),
        Promise("  orders of these", found["orders_rolled_back"], 0),
        Promise("  jobs of these", found["jobs_rolled_back"], 0),
        Promise(
            "forms sent twice at once, taken once", notes.takings.repeated, sum(f.is_sent_twice for f in notes.forms)
        ),
        Promise("  jobs that exist twice all the same", found["repeated_jobs"], 0),
        Promise("jobs enqueued: three an order, two others", found["jobs"], 3 * orders + OTHER_JOBS),
    )


def _promises_of_execution(found: Mapping[str, int], notes: Notes) -> Sequence[Promise]:
    bounced = len(notes.orders) - len(notes.reachable)
    failures = sum(failures_of(form.number, form.pause) for form in notes.reachable)
    held = len(notes.held)
    return (
        Promise("  done", found["done"], 3 * len(notes.orders) + OTHER_JOBS - bounced - 1),
        Promise("  dead, the mailbox doesn't exist", found["dead"], bounced),
        Promise("    after so many attempts", found["last_failures"], bounced * MAIL_ATTEMPTS),
        Promise("  canceled while it ran", found["canceled"], 1),
        Promise("    handlers that heard of it", found["heard"], 1),
        Promise("  left in pending, processing or failed", found["unfinished"], 0),
        Promise("attempts that failed and were retried", found["failures"], failures),
        Promise("jobs that the killed worker held", held, 2, at_least=True),
        Promise("  requeued when their leases ran out", found["came_back"], held),
        Promise("  done by another worker", found["finished_elsewhere"], held),
        Promise("workers that didn't stop in good order", notes.unclean, 0),
    )


def _promises_of_effects(found: Mapping[str, int], notes: Notes) -> Sequence[Promise]:
    orders = len(notes.orders)
    return (
        Promise("ledger entries: exactly once", found["entries"], orders),
        Promise("  orders that have one", found["booked_orders"], orders),
        Promise("  pieces taken off the shelves", found["taken"], found["pieces"]),
        Promise("  orders in the report's result", found["reported"], orders),
        Promise("orders with a mail: at least once", found["mailed"], len(notes.reachable)),
        Promise(
            "  mails sent twice, because of the kill",
            found["mailed_twice"],
            notes.mailed_before_the_kill,
            at_least=True,
        ),
        Promise("  mails sent twice for no such reason", found["mailed_twice_unexplained"], 0),
    )
