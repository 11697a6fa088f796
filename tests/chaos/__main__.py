"""
Make a chaos run and print its figures: ``python -m tests.chaos [--jobs N] [--kills N] [--logs FOLDER]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from tests.chaos.crew import KINDS
from tests.chaos.run import Figures, Plan, run
from tests.chaos.workload import LEASE, SLOTS


def main() -> int:
    """
    Print the figures; 1 if a promise was broken.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Count what survives the faults.")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--seconds", type=float, help="how long a handler takes on average")
    parser.add_argument("--kills", type=int, help="how many workers are killed at most")
    parser.add_argument("--seed", type=int, help="picks the victims")
    parser.add_argument("--logs", type=Path, help="keep the workers' logs in this folder")
    parser.set_defaults(**asdict(Plan()))
    given = parser.parse_args()
    plan = Plan(**{field.name: getattr(given, field.name) for field in fields(Plan)})
    with tempfile.TemporaryDirectory() as folder:
        if given.logs:
            given.logs.mkdir(parents=True, exist_ok=True)
        figures = run(plan, given.logs or Path(folder))
    sys.stdout.write("\n".join(lines(figures)) + "\n")
    return 1 if figures.broken_promises else 0


def lines(figures: Figures) -> Iterator[str]:
    """
    Return the figures as text, one fact a line.
    """
    plan, faults, outcome = figures.plan, figures.faults, figures.outcome
    yield f"load     {outcome.jobs} jobs and {outcome.follow_ups} follow-ups in {figures.took:.0f} s"
    yield f"         {len(KINDS)} workers x {SLOTS} slots, a lease of {LEASE:g} s, {plan.seconds:g} s a job"
    yield f"faults   {faults.kills} workers killed, {faults.kills_in_hand} of them with jobs in hand"
    yield f"         {faults.freezes} workers frozen, {faults.freezes_outlived} of them until they had lost all leases"
    yield f"         {faults.seized} leases taken away from workers that lived"
    yield f"         {faults.server_kills} kill -9 and {faults.server_stops} immediate stop of the server"
    yield f"         {figures.stopped_in_hand} jobs in hand when all workers were asked to stop"
    yield f"so       {outcome.requeued} jobs were taken from their workers"
    yield f"         {outcome.failed} attempts failed and were tried again"
    yield f"         {outcome.repeated_outside} jobs repeated an effect that is made at least once"
    yield f"         {figures.broken} transactions of the producer's were sent again"
    yield f"         {figures.refused} workers found no server when they started"
    yield f"lost     {figures.lost}"
    yield f"doubled  {outcome.doubled}"
    others = {name: count for name, count in figures.broken_promises.items() if name not in {"lost", "doubled"}}
    yield from (f"broken   {count} {name}" for name, count in others.items())
    yield from figures.collapsed


if __name__ == "__main__":
    sys.exit(main())
