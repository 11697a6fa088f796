"""
Other queues in Python: ``peers:pgqueuer-asyncpg`` and so on, each in an environment of its own.

What a peer is made of, how it is set up and why; `tests.benchmark.peers` has what runs in its environment. Settings are
the best that its documentation leads to, for the measurement at hand: default ones where a worker is idle, and those
for throughput where a backlog is run. All of them log warnings only, and none has a plugin that isn't on by default.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from tests.benchmark.contestants import Contestant, Gate, Kind, Rates, Stock
from tests.benchmark.environments import Environment
from tests.benchmark.marks import Marks
from tests.benchmark.orders import Bulk, Prepare, Single, Work

if TYPE_CHECKING:
    from tests.benchmark.peers import Half

PGQUEUER_BATCHES: Final[Mapping[str, int]] = {"asyncpg": 500, "psycopg": 200}
PROCRASTINATE_CONCURRENCY: Final = 20
CHANCY_CONCURRENCY: Final = 2_000
BEANQUEUE_BATCH: Final = 100
OBAN_LIMIT: Final = 100
OBAN_CONNECTIONS: Final = 10

PSYCOPG: Final = "psycopg[binary,pool]==3.3.9"


@dataclass(frozen=True)
class Setup:
    """
    How a peer takes part.

    Args:
        label: As it stands in the tables.
        module: Its half in `tests.benchmark.peers`, and what that is given.
        environment: What it is installed into.
        shown: The packages whose versions are told; the first is itself.
        unsettled: SQL whose answer is a row while any job isn't over.
        settings: What is set for a drain, and why.
        rates: Jobs per second, about.
        kind: Whether it takes part in everything that peers do.
    """

    label: str
    module: tuple[str, str]
    environment: Environment
    shown: tuple[str, ...]
    unsettled: str
    settings: str
    rates: Rates
    kind: Kind = "peer"


_PGQUEUER: Final = Environment("pgqueuer", ("pgqueuer[asyncpg,psycopg]==1.6.0", "asyncpg==0.32.0", PSYCOPG))

SETUPS: Final[Mapping[str, Setup]] = {
    "pgqueuer-asyncpg": Setup(
        "pgqueuer, asyncpg",
        ("pgqueuer", "asyncpg"),
        _PGQUEUER,
        ("pgqueuer", "asyncpg", "uvloop"),
        "SELECT 1 FROM pgqueuer LIMIT 1",
        "`batch_size=500` (more rows a statement; beyond that it gains nothing), `uvloop` (its own command runs on "
        "it), no limit of concurrency (the default)",
        Rates(90_000, 3_600, 27_000),
    ),
    "pgqueuer-psycopg": Setup(
        "pgqueuer, psycopg",
        ("pgqueuer", "psycopg"),
        _PGQUEUER,
        ("pgqueuer", "psycopg", "uvloop"),
        "SELECT 1 FROM pgqueuer LIMIT 1",
        "`batch_size=200` (with psycopg larger ones are slower), else as above",
        Rates(65_000, 3_000, 17_000),
    ),
    "procrastinate": Setup(
        "procrastinate",
        ("procrastinate", ""),
        Environment("procrastinate", ("procrastinate==3.10.0", PSYCOPG)),
        ("procrastinate", "psycopg"),
        "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1",
        "`concurrency=20` (its statements wait for each other's locks beyond that), a connection for each and four "
        "more",
        Rates(24_000, 1_700, 1_000),
    ),
    "chancy": Setup(
        "chancy",
        ("chancy", ""),
        Environment("chancy", ("chancy==0.26.0", PSYCOPG)),
        ("chancy", "psycopg"),
        "SELECT 1 FROM chancy_jobs WHERE state IN ('pending', 'retrying', 'running') LIMIT 1",
        "the async executor (the cheapest one), `concurrency=2000` and `eager_polling` (it claims again as soon as "
        "slots are free, and outcomes are written once a second: many slots keep it busy in between)",
        Rates(7_700, 1_800, 6_000),
    ),
    "beanqueue": Setup(
        "beanqueue",
        ("beanqueue", ""),
        Environment("beanqueue", ("beanqueue==1.2.0", "psycopg2-binary==2.9.13", "SQLAlchemy==2.1.9")),
        ("beanqueue", "psycopg2-binary", "SQLAlchemy"),
        "SELECT 1 FROM bq_tasks WHERE state IN ('PENDING', 'PROCESSING') LIMIT 1",
        "`BATCH_SIZE=100` (a transaction for a hundred jobs instead of each), one thread (the default: threads settle "
        "each job by itself)",
        Rates(6_600, 1_300, 1_300),
    ),
    "oban": Setup(
        "oban",
        ("oban", ""),
        Environment("oban", ("oban==0.7.0", PSYCOPG), least=(3, 12)),
        ("oban", "psycopg", "uvloop"),
        "SELECT 1 FROM oban_jobs WHERE state IN ('available', 'executing', 'scheduled', 'retryable') LIMIT 1",
        "a queue's limit of 100 (it settles one by one, and more wait for each other), ten connections, `uvloop` (its "
        "own command runs on it)",
        Rates(7_500, 1_900, 2_000),
    ),
    "awa": Setup(
        "awa",
        ("awa", ""),
        Environment("awa", ("awa-pg==0.6.9",)),
        ("awa-pg",),
        "",
        "`enqueue_many_copy`, 5,000 jobs a call (its documentation's way for many jobs)",
        Rates(100_000, 0, 0),
        "producer",
    ),
}


class Peer:
    """
    A queue of others.
    """

    spec = ""

    def __init__(self, variant: str) -> None:
        setup = SETUPS[variant]
        self.name = setup.label
        self.kind: Kind = setup.kind
        self.tables = f"peer {setup.module[0]}"
        self.rates = setup.rates
        self.unsettled = setup.unsettled
        self.setup = setup

    @property
    def python(self) -> str:
        """
        The Python of its environment, which is made where there is none yet.
        """
        return self.setup.environment.python()

    def versions(self) -> Mapping[str, str]:
        self.setup.environment.python()
        found = self.setup.environment.versions()
        own, *others = [f"{name} {found.get(name.lower(), '?')}" for name in (*self.setup.shown, "Python")]
        name, _, version = own.rpartition(" ")
        return {name: version, f"beside {self.name}": ", ".join(others)}

    # -- in the parent

    def set_up(self, url: str) -> None:
        from tests.benchmark.children import carry_out

        carry_out(cast(Contestant, self), Prepare(url))

    def fill(self, url: str, kind: Stock, count: int) -> None:
        from tests.benchmark.children import carry_out

        if kind != "ready":
            raise ValueError(
                f"{self.name} can't be given {kind} jobs: peers take ready ones, by their own bulk enqueue"
            )
        carry_out(cast(Contestant, self), Bulk(url, count))

    def stock(self, kind: Stock, count: int) -> str:
        raise NotImplementedError(f"{self.name} has tables of its own: {kind} jobs are put in by its own bulk enqueue")

    # -- in a process of its own

    def prepare(self, url: str) -> None:
        self._half().prepare(url)

    def work(self, order: Work, marks: Marks, gate: Gate) -> None:
        self._half().work(order, marks.stamp if order.timed else marks.mark, _LastGate(gate))

    def single(self, order: Single, marks: Marks | None, gate: Gate) -> dict[str, float]:
        return self._half().single(order, marks, gate)

    def bulk(self, order: Bulk, gate: Gate) -> dict[str, float]:
        if order.keyed:
            raise NotImplementedError(f"{self.name} is measured without keys only")
        return self._half().bulk(order, gate)

    def _half(self) -> Half:
        module, variant = self.setup.module
        half = cast("Half", import_module(f"tests.benchmark.peers.{module}").make(variant))
        gc.collect()  # as is done for ours, once all is imported
        gc.freeze()
        return half


class _LastGate:
    """
    A gate that ends the process when the measurement is over: how long a peer takes to stop is not measured.
    """

    def __init__(self, gate: Gate) -> None:
        self.ended = gate.ended
        self._gate = gate

    def wait(self) -> None:
        self._gate.wait()
        threading.Thread(target=self._leave, daemon=True).start()

    def _leave(self) -> None:
        self.ended.wait()
        os._exit(0)


def make(variant: str) -> Contestant:
    """
    Return the peer that *variant* names.
    """
    if variant not in SETUPS:
        raise ValueError(f"peers:{variant} is no contestant: there are {', '.join(f'peers:{name}' for name in SETUPS)}")
    return cast(Contestant, Peer(variant))
