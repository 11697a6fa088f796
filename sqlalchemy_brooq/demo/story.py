"""
The story: one day at the shop, scene by scene.

Decides what happens and what is shown of it. The other modules know how: `till` places orders, `crew` starts and
kills workers, `account` writes it down, `tally` compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy.orm import Session

import sqlalchemy_brooq as brooq
from sqlalchemy_brooq.demo import models, tally
from sqlalchemy_brooq.demo.catalogue import ARTICLES, ON_THE_SHELF, UNREACHABLE, Form, Forms
from sqlalchemy_brooq.demo.crew import WorkerProcess
from sqlalchemy_brooq.demo.handlers import LEASE, SLOTS
from sqlalchemy_brooq.demo.stage import Stage
from sqlalchemy_brooq.demo.till import Till
from sqlalchemy_brooq.migrations import migrate

WAVES: Final = 3
"""How often a worker is tried to be caught in the middle of both kinds of work."""
PAUSE: Final = 3.0
"""Seconds that jobs take longer in the scene where a worker is killed."""

#: Workers that have sent a mail whose job isn't settled, and have a ledger entry under way.
_CAUGHT: Final = """
    SELECT locked_by FROM job LEFT JOIN sent_mail ON job_id = job.id
    WHERE state = 'processing' GROUP BY locked_by
    HAVING count(job_id) > 0 AND count(*) FILTER (WHERE topic = 'ledger.post') > 0
"""
_HELD: Final = "SELECT id FROM job WHERE state = 'processing' AND locked_by = :worker"
_MAILED: Final = "SELECT count(DISTINCT job_id) FROM sent_mail WHERE job_id = ANY(:jobs)"


class Story:
    """
    Tells the day on *stage*; the same *seed* is the same day.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._account = stage.account
        self._engine = stage.engine
        self._forms = Forms(seed)
        self._till = Till(stage.engine)
        self._notes = tally.Notes()

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
        self._account.say(f"brooq-worker migrate: {migrate(self._engine).message}.")
        models.Base.metadata.create_all(self._engine)
        with Session(self._engine) as session, session.begin():
            session.add_all(
                models.Product(id=number, name=article.name, price=article.price, stock=ON_THE_SHELF)
                for number, article in enumerate(ARTICLES, 1)
            )
        self._account.say(f"The shop's own tables stand beside it, with {len(ARTICLES)} products in stock.")
        self._stage.show("SELECT name, price, stock FROM product ORDER BY id LIMIT 3")

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
        forms = self._take(self._forms.take(12, refused=2, sent_twice=2))
        self._stage.show("SELECT topic, state, count(*) FROM job GROUP BY 1, 2 ORDER BY 1, 2")
        self._account.note("Of the orders that were rolled back there is no job:")
        refused = _quoted(str(form.number) for form in forms if form.is_refused)
        self._stage.show(f"SELECT count(*) FROM job\nWHERE payload->>'order' IN ({refused})")
        self._account.note("Of the forms that came in twice, at the same moment, there is one job of each kind:")
        twice = _quoted(form.key for form in forms if form.is_sent_twice)
        self._stage.show(
            f"""
            SELECT idempotency_key, topic, count(*) FROM job
            WHERE idempotency_key IN ({twice})
            GROUP BY 1, 2 ORDER BY 1, 2
            """
        )

    def _two_workers(self) -> None:
        self._account.scene("3. Two workers")
        self._account.say("Starting two worker processes ...")
        self._introduce(self._stage.crew.start("worker A", "worker B"))
        self._stage.until_quiet()
        self._account.note(
            "Each finished invoice has chained the mail to the customer: that job exists since the invoice is done."
        )
        self._stage.show("SELECT topic, state, count(*) FROM job GROUP BY 1, 2 ORDER BY 1, 2")
        self._account.note("Who did what is in the jobs' own rows:")
        self._stage.show(
            """
            SELECT split_part(locked_by, ':', 2) AS worker_pid, state, count(*)
            FROM job GROUP BY 1, 2 ORDER BY 1, 2
            """
        )

    def _bad_mood(self) -> None:
        self._account.scene("4. A mail server in a bad mood")
        self._account.note(
            "More orders, while the workers run. The mail server is busy at times, or hangs up; and the mailbox of "
            "one customer doesn't exist any more."
        )
        forms = self._forms.take(17, refused=3, sent_twice=2)
        self._take([*forms, *self._forms.take(1, customers=[UNREACHABLE])])
        self._stage.until_quiet()
        self._account.note(
            "What failed was tried again after a while, a longer one each time, until it went well or there were no "
            "attempts left:"
        )
        self._stage.show(
            """
            SELECT payload->>'order' AS "order", state, attempts, last_error
            FROM job WHERE last_error IS NOT NULL
            ORDER BY attempts DESC, 1 LIMIT 6
            """
        )

    def _called_off(self) -> None:
        self._account.scene("5. A job is called off while it runs")
        with Session(self._engine) as session, session.begin():
            job = brooq.enqueue(session, brooq.Job("stock.count")).id
        self._account.say("Somebody counts the stock, shelf by shelf, which takes ten seconds ...")
        self._stage.until(lambda: self._stage.scalar("SELECT count(*) > 3 FROM stock_note"))
        with Session(self._engine) as session, session.begin():
            answer = brooq.cancel(session, job)
        self._account.say(f"brooq.cancel(session, job_id) -> {answer}")
        self._stage.until(lambda: self._stage.scalar("SELECT bool_or(note LIKE 'put %') FROM stock_note"))
        self._account.note("The handler was in claim.wait(), which told it. It wrote down what and when:")
        self._stage.show(
            """
            SELECT job.state, note, round(1000 *
                   extract(epoch FROM noted_at - updated_at)) AS ms_later
            FROM job JOIN stock_note ON job_id = job.id
            ORDER BY stock_note.id DESC LIMIT 1
            """
        )

    def _a_worker_is_killed(self) -> None:
        self._account.scene("6. A worker is killed")
        self._account.note(
            f"Some orders whose jobs take {PAUSE:.0f} seconds longer: the mail is out, the entry in the ledger is "
            "written but not committed, and then ..."
        )
        victim = self._catch()
        if victim is None:
            self._account.say("No worker could be caught in the middle of that: none is killed.")
            return
        victim.kill()
        self._account.say(f"kill -9 {victim.pid}: {victim.label} is gone, in the middle of its work.")
        self._look_at_what_it_held(victim)
        self._introduce(self._stage.crew.start("worker C"))
        self._stage.until(
            lambda: not self._stage.column(_HELD, worker=victim.identity),
            lambda: f"{len(self._stage.column(_HELD, worker=victim.identity))} jobs are still the dead worker's",
        )
        self._account.say(f"The leases, {LEASE.seconds} s long, have run out. What a living worker logged about it:")
        self._account.note(f"{self._stage.crew.said('JobRequeued') or 'nothing'}")
        self._stage.until_quiet()
        self._after_the_kill()

    def _after_the_kill(self) -> None:
        self._account.note("They came back, and others finished them:")
        self._stage.show(
            """
            SELECT topic, payload->>'order' AS "order", state, attempts,
                   requeues, split_part(locked_by, ':', 2) AS worker_pid
            FROM job WHERE requeues > 0 ORDER BY 1, 2
            """
        )
        self._account.note(
            "An entry in the ledger commits together with its job's outcome: what the dead worker had begun was "
            "rolled back with it. So no order has two of them:"
        )
        self._stage.show("SELECT order_number, count(*) FROM ledger_entry\nGROUP BY 1 HAVING count(*) > 1")
        self._account.note("A mail that is out can't be called back. The world outside sees a job at least once:")
        self._stage.show("SELECT order_number, count(*) FROM sent_mail\nGROUP BY 1 HAVING count(*) > 1 ORDER BY 1")

    def _the_report(self) -> None:
        self._account.scene("7. A job that keeps its result")
        with Session(self._engine) as session, session.begin():
            session.add(brooq.Job("report.day", idempotency_key="today", priority=2))
        self._account.say("The report of the day is on its way ...")
        self._stage.until_quiet()
        self._stage.show(
            """
            SELECT state, result->>'orders' AS orders,
                   result->>'turnover' AS turnover,
                   result->>'best seller' AS best_seller
            FROM job WHERE topic = 'report.day'
            """
        )

    def _closing_time(self) -> None:
        self._account.scene("8. Closing time")
        self._account.say("SIGTERM to the workers ...")
        codes = self._stage.crew.stop()
        self._notes.unclean = sum(code != 0 for code in codes)
        self._account.say(f"{len(codes)} workers ended, with the exit codes {', '.join(map(str, codes))}.")
        self._stage.show(
            """
            SELECT topic, state, count(*), sum(attempts) AS attempts,
                   sum(requeues) AS requeues
            FROM job GROUP BY 1, 2 ORDER BY 1, 2
            """
        )

    def _summary(self) -> bool:
        self._account.scene("Summary: what was promised, and what the tables say")
        promises = tally.promises(tally.count(self._engine, self._notes), self._notes)
        self._account.verdict(
            ("what", "found", "promised", ""),
            [(_row(promise), promise.is_kept) for promise in promises],
        )
        broken = sum(not promise.is_kept for promise in promises)
        total = len(promises)
        self._account.say(f"{broken} of {total} promises BROKEN." if broken else f"All {total} promises were kept.")
        return not broken

    # -- parts of scenes

    def _take(self, forms: Sequence[Form]) -> Sequence[Form]:
        """
        Hand *forms* in at the till.
        """
        before = self._till.takings
        for form in forms:
            self._stage.interrupts.check()
            self._till.take(form)
        self._notes.forms += forms
        self._notes.takings = self._till.takings
        placed, refused, repeated = (now - then for now, then in zip(self._till.takings, before, strict=True))
        words = [f"{placed} orders placed"]
        if refused:
            words.append(f"{refused} payments refused and rolled back")
        if repeated:
            words.append(f"{repeated} forms that came in twice taken once")
        self._account.say(f"{len(forms)} order forms: {', '.join(words)}.")
        return forms

    def _introduce(self, workers: Iterable[WorkerProcess]) -> None:
        for worker in workers:
            self._account.say(f"{worker.label} is up, pid {worker.pid}, with {SLOTS} slots.")

    def _catch(self) -> WorkerProcess | None:
        """
        Place slow orders until some worker has sent a mail and is in the middle of a ledger entry, and return it.
        """
        for _ in range(WAVES):
            self._take(self._forms.take(4, pause=PAUSE))
            if caught := self._stage.until(lambda: self._stage.column(_CAUGHT), patience=PAUSE):
                return self._stage.crew.by_identity(caught[0])
        return None

    def _look_at_what_it_held(self, victim: WorkerProcess) -> None:
        # Until the server has noticed, it may still be busy with the victim's last statement.
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name"
        self._stage.until(lambda: self._stage.scalar(sessions, name=victim.application) == 0)
        held = self._stage.column(_HELD, worker=victim.identity)
        self._notes.killed, self._notes.held = victim.identity, held
        self._notes.mailed_before_the_kill = self._stage.scalar(_MAILED, jobs=held)
        self._account.note("Its jobs are still its own, until the leases run out that nobody renews any more:")
        self._stage.show(
            f"""
            SELECT topic, payload->>'order' AS "order", state,
                   round(extract(epoch FROM locked_until - now()), 1) AS lease
            FROM job WHERE split_part(locked_by, ':', 2) = '{victim.pid}'
            AND state = 'processing' ORDER BY 1, 2
            """
        )


def _quoted(values: Iterable[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _row(promise: tally.Promise) -> tuple[str, int, str, str]:
    wanted = f"{'>= ' if promise.at_least else ''}{promise.wanted}"
    return promise.what, promise.found, wanted.rjust(8), "ok" if promise.is_kept else "BROKEN"
