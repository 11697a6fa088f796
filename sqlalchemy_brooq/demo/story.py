"""
The story: one day at the shop, scene by scene.

Decides what happens and what is shown of it. The other modules know how: `till` places orders, `crew` starts and
kills workers, `account` writes it down, `tally` compares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo import models, tally
from sqlalchemy_brooq.demo.account import Account
from sqlalchemy_brooq.demo.catalogue import ARTICLES, ON_THE_SHELF, UNREACHABLE, Form, Forms
from sqlalchemy_brooq.demo.crew import Crew, WorkerProcess
from sqlalchemy_brooq.demo.handlers import LEASE, SLOTS
from sqlalchemy_brooq.demo.interrupts import Interrupts
from sqlalchemy_brooq.demo.till import Till
from sqlalchemy_brooq.migrations import migrate

TIME_LIMIT: Final = 55.0
"""Seconds after which nothing is waited for any more; what isn't so by then shows in the summary."""
PATIENCE: Final = 15.0
"""Seconds for one thing to happen."""
WAVES: Final = 3
"""How often a worker is tried to be caught in the middle of both kinds of work."""
PAUSE: Final = 3.0
"""Seconds that jobs take in the scene where a worker is killed."""

_LOOK: Final = 0.05
_TELL: Final = 1.0


class Story:
    """
    Tells the day on *engine*'s database.
    """

    def __init__(self, account: Account, engine: Engine, crew: Crew, interrupts: Interrupts, seed: int) -> None:
        self._account = account
        self._engine = engine
        self._crew = crew
        self._interrupts = interrupts
        self._forms = Forms(seed)
        self._till = Till(engine)
        self._notes = tally.Notes(self._till.takings)

    def tell(self) -> bool:
        """
        Tell all of it; True if every promise was kept.
        """
        self._open_the_shop()
        self._orders_without_workers()
        self._two_workers()
        self._bad_mood()
        self._called_off()
        self._a_worker_is_killed()
        self._the_report()
        self._closing_time()
        return self._summary()

    # -- the scenes

    def _open_the_shop(self) -> None:
        self._account.scene("1. The tables")
        self._account.say(f"brooq-worker migrate: {migrate(self._engine).message}")
        models.Base.metadata.create_all(self._engine)
        with Session(self._engine) as session, session.begin():
            session.add_all(
                models.Product(id=number, name=article.name, price=article.price, stock=ON_THE_SHELF)
                for number, article in enumerate(ARTICLES, 1)
            )
        self._account.say(f"The shop's own tables stand beside it, with {len(ARTICLES)} products in stock.")
        self._account.ask(self._engine, "SELECT name, price, stock FROM product ORDER BY id LIMIT 3")

    def _orders_without_workers(self) -> None:
        self._account.scene("2. Orders, and the jobs that belong to them")
        self._account.note("An order and its jobs are one transaction of the shop's:")
        self._account.code(
            """
            with Session(engine) as session, session.begin():
                session.add(Order(number=1001, customer="Ada Brandt", ...))
                session.add(brooq.Job("ledger.post", {"order": 1001},
                                      idempotency_key="form-1001"))
                charge(card)     # raises PaymentRefused: none of it happened
            """
        )
        forms = self._forms.take(12, refused=2, sent_twice=2)
        self._take(forms)
        self._ask("SELECT topic, state, count(*) FROM job GROUP BY 1, 2 ORDER BY 1, 2")
        refused = _numbers(form for form in forms if form.is_refused)
        self._account.note("Of the orders that were rolled back there is no job:")
        self._ask(f"SELECT count(*) FROM job WHERE payload->>'order' IN ({refused})")
        twice = _keys(form for form in forms if form.is_sent_twice)
        self._account.note("Of the forms that came in twice, at the same moment, there is one job of each kind:")
        self._ask(
            f"""
            SELECT idempotency_key, topic, count(*) FROM job
            WHERE idempotency_key IN ({twice}) GROUP BY 1, 2 ORDER BY 1, 2
            """
        )

    def _two_workers(self) -> None:
        self._account.scene("3. Two workers")
        self._account.say("Starting two worker processes ...")
        self._introduce(self._crew.start("worker A", "worker B"))
        self._until_quiet()
        self._account.note(
            "Each finished invoice has chained the mail to the customer: that job exists since the invoice is done."
        )
        self._ask("SELECT topic, state, count(*) FROM job GROUP BY 1, 2 ORDER BY 1, 2")
        self._account.note("Who did what is in the jobs' own rows:")
        self._ask(
            """
            SELECT split_part(locked_by, ':', 2) AS worker_pid, state, count(*)
            FROM job GROUP BY 1, 2 ORDER BY 1, 2
            """
        )

    def _bad_mood(self) -> None:
        self._account.scene("4. A mail server in a bad mood")
        self._account.note(
            "The workers are running now. The mail server is busy at times, or hangs up; and the mailbox of one "
            "customer doesn't exist any more."
        )
        forms = self._forms.take(17, refused=3, sent_twice=2)
        forms += self._forms.take(1, customers=[UNREACHABLE])
        self._take(forms)
        self._until_quiet()
        self._account.note("Failed attempts were tried again, each later than the one before, until they ran out:")
        self._ask(
            """
            SELECT payload->>'order' AS "order", state, attempts AS tries, last_error
            FROM job WHERE last_error IS NOT NULL
            ORDER BY attempts DESC, 1 LIMIT 6
            """
        )

    def _called_off(self) -> None:
        self._account.scene("5. A job is called off while it runs")
        with Session(self._engine) as session, session.begin():
            job = brooq.enqueue(session, brooq.Job("stock.count")).id
        self._account.say("Somebody counts the stock, shelf by shelf, which takes ten seconds ...")
        self._until(lambda: self._scalar("SELECT count(*) FROM stock_note") >= SLOTS)
        with Session(self._engine) as session, session.begin():
            answer = brooq.cancel(session, job)
        self._account.say(f"brooq.cancel(session, job_id) -> {answer}")
        self._until(lambda: self._scalar("SELECT count(*) FROM stock_note WHERE note LIKE 'put%'") > 0)
        self._account.note("The handler was told at its next claim.wait(), and wrote down when:")
        self._ask(
            """
            SELECT job.state, attempts, note,
                   round(extract(epoch FROM noted_at - updated_at) * 1000) AS ms_later
            FROM job JOIN stock_note ON job_id = job.id
            WHERE topic = 'stock.count' ORDER BY stock_note.id DESC LIMIT 1
            """
        )

    def _a_worker_is_killed(self) -> None:
        self._account.scene("6. A worker is killed")
        self._account.note(
            f"Some orders now whose jobs take {PAUSE:.0f} seconds longer: the mail is out, the ledger entry is "
            "written but not committed, and then ..."
        )
        victim = self._catch()
        if victim is None:
            self._account.say("No worker could be caught at work: there is nothing to kill.")
            return
        victim.kill()
        self._account.say(f"kill -9 {victim.pid}: {victim.label} is gone, in the middle of its work.")
        self._introduce(self._crew.start("worker C"))
        self._look_at_what_it_held(victim)
        self._until(
            lambda: self._scalar(_count_held(victim)) == 0,
            lambda: f"{self._scalar(_count_held(victim))} of them still under the lease of the dead",
        )
        self._account.say(f"The leases of {LEASE.seconds} s have run out; what a living worker logged about it:")
        self._account.note(f'"{self._crew.said("JobRequeued") or ""}"')
        self._until_quiet()
        self._after_the_kill()

    def _the_report(self) -> None:
        self._account.scene("7. A job that keeps its result")
        with Session(self._engine) as session, session.begin():
            session.add(brooq.Job("report.day", idempotency_key="today", priority=2))
        self._until_quiet()
        self._ask(
            """
            SELECT state, result->>'orders' AS orders, result->>'turnover' AS turnover,
                   result->>'best seller' AS best_seller
            FROM job WHERE topic = 'report.day'
            """
        )

    def _closing_time(self) -> None:
        self._account.scene("8. Closing time")
        self._account.say("SIGTERM to the workers ...")
        codes = self._crew.stop()
        self._notes.unclean = sum(code != 0 for code in codes)
        self._account.say(f"{len(codes)} workers ended, with the exit codes {', '.join(map(str, codes))}.")
        self._ask("SELECT topic, state, count(*), sum(attempts) AS attempts FROM job GROUP BY 1, 2 ORDER BY 1, 2")

    def _summary(self) -> bool:
        self._account.scene("Summary: what was promised, and what the tables say")
        kept = tally.promises(tally.count(self._engine, self._notes), self._notes)
        self._account.verdict(
            ("what", "found", "promised", ""),
            [(_row(promise), promise.is_kept) for promise in kept],
        )
        broken = sum(not promise.is_kept for promise in kept)
        self._account.say(
            f"{broken} of {len(kept)} promises were broken." if broken else f"All {len(kept)} promises were kept."
        )
        return not broken

    # -- parts of scenes

    def _take(self, forms: Sequence[Form]) -> None:
        takings = self._till.takings
        before = len(takings.placed), len(takings.refused), len(takings.repeated)
        for form in forms:
            self._interrupts.check()
            self._till.take(form)
        placed, refused, repeated = (
            len(forms) - count
            for forms, count in zip((takings.placed, takings.refused, takings.repeated), before, strict=True)
        )
        words = [f"{placed} orders placed"]
        if refused:
            words.append(f"{refused} payments refused and rolled back")
        if repeated:
            words.append(f"{repeated} forms that were sent twice, taken once")
        self._account.say(f"{len(forms)} order forms: {', '.join(words)}.")

    def _introduce(self, workers: Iterable[WorkerProcess]) -> None:
        for worker in workers:
            self._account.say(f"{worker.label} is up, pid {worker.pid}, with {SLOTS} slots.")

    def _catch(self) -> WorkerProcess | None:
        """
        Place slow orders until some worker has sent a mail and is in the middle of a ledger entry, and return it.
        """
        for _ in range(WAVES):
            self._take(self._forms.take(4, pause=PAUSE))
            found: list[Any] = []
            self._until(lambda: found.extend(self._column(_CAUGHT)) or found, patience=PAUSE)  # noqa: B023 - called at once
            if found:
                return self._crew.by_identity(found[0])
        return None

    def _look_at_what_it_held(self, victim: WorkerProcess) -> None:
        self._notes.killed = victim.identity
        self._notes.held = self._column(f"SELECT id {_HELD_BY} '{victim.identity}'")
        self._notes.twice_at_the_kill = self._scalar(
            f"SELECT count(DISTINCT job.id) FROM job JOIN sent_mail ON job_id = job.id"
            f" WHERE state = 'processing' AND locked_by = '{victim.identity}'"
        )
        self._account.note("Its jobs are still its own, until the leases run out that nobody renews any more:")
        self._ask(
            f"""
            SELECT topic, payload->>'order' AS "order", state,
                   extract(epoch FROM locked_until - now())::numeric(4, 1) AS lease_left
            FROM job WHERE state = 'processing'
                AND split_part(locked_by, ':', 2) = '{victim.pid}' ORDER BY 1, 2
            """
        )

    def _after_the_kill(self) -> None:
        self._account.note("They came back, and others finished them:")
        self._ask(
            """
            SELECT topic, payload->>'order' AS "order", state, attempts, requeues,
                   split_part(locked_by, ':', 2) AS done_by
            FROM job WHERE requeues > 0 ORDER BY 1, 2
            """
        )
        self._account.note(
            "An entry of the ledger commits together with its job's outcome: what the dead worker had begun was "
            "rolled back with it. So there is no order with two of them:"
        )
        self._ask("SELECT order_number, count(*) FROM ledger_entry GROUP BY 1 HAVING count(*) > 1")
        self._account.note("A mail that is out can't be called back: the world outside sees a job at least once.")
        self._ask("SELECT order_number, count(*) FROM sent_mail GROUP BY 1 HAVING count(*) > 1 ORDER BY 1")

    # -- waiting

    def _until_quiet(self) -> None:
        """
        Wait until every job is over.
        """
        unfinished = "SELECT count(*) FROM job WHERE state IN ('pending', 'processing', 'failed')"
        self._until(
            lambda: self._scalar(unfinished) == 0,
            lambda: f"{self._scalar(unfinished)} of {self._scalar('SELECT count(*) FROM job')} jobs aren't over yet",
        )

    def _until(
        self, is_so: Callable[[], Any], progress: Callable[[], str] | None = None, patience: float = PATIENCE
    ) -> None:
        """
        Wait until *is_so*, and tell of the *progress* each second. In vain it is noted; the summary will show it.
        """
        began = told = time.monotonic()
        while not is_so():
            self._interrupts.check()
            self._crew.check()
            now = time.monotonic()
            if now - began > patience or self._account.elapsed > TIME_LIMIT:
                if progress is not None:
                    self._account.say(f"Not waiting any longer: {progress()}.")
                return
            if progress is not None and now - told > _TELL:
                self._account.say(f"... {progress()}")
                told = now
            time.sleep(_LOOK)

    # -- asking

    def _ask(self, statement: str) -> None:
        self._account.ask(self._engine, statement)

    def _scalar(self, statement: str) -> Any:
        with self._engine.connect() as connection:
            return connection.scalar(text(statement))

    def _column(self, statement: str) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.scalars(text(statement)))


_HELD_BY: Final = "FROM job WHERE state = 'processing' AND locked_by ="
#: Workers that have sent a mail whose job isn't settled, and have a ledger entry under way.
_CAUGHT: Final = """
    SELECT locked_by FROM job LEFT JOIN sent_mail ON job_id = job.id
    WHERE state = 'processing' GROUP BY locked_by
    HAVING count(job_id) > 0 AND count(*) FILTER (WHERE topic = 'ledger.post') > 0
"""


def _count_held(worker: WorkerProcess) -> str:
    return f"SELECT count(*) {_HELD_BY} '{worker.identity}'"


def _numbers(forms: Iterable[Form]) -> str:
    return ", ".join(f"'{form.number}'" for form in forms)


def _keys(forms: Iterable[Form]) -> str:
    return ", ".join(f"'{form.key}'" for form in forms)


def _row(promise: tally.Promise) -> tuple[str, int, str, str]:
    wanted = f"{'>= ' if promise.at_least else ''}{promise.wanted}"
    return promise.what, promise.found, wanted.rjust(8), "ok" if promise.is_kept else "BROKEN"
