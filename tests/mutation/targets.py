"""
Which modules are changed, and which tests are to notice it.
"""

from __future__ import annotations

from typing import Final

_ENGINE: Final = ("test_worker_outcomes", "test_leases test_worker_claims test_turns test_chain")
_DOORS: Final = (
    "test_producer test_unit_of_work test_bulk test_queue_doors",
    "test_flush_listeners test_commits test_rollbacks test_delay test_refused_jobs test_own_row test_aio",
    "test_producer_races test_protection test_names test_tracing test_chain",
)
_OPERATORS: Final = ("test_browse test_operations test_cancel_replay", "test_cli_jobs test_cli_operate")

#: module -> files of tests, in turns: what the first ones don't notice is left to the next
TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "vocabulary": ("test_vocabulary test_policy test_statements", "test_producer test_worker_outcomes test_commits"),
    "policy": ("test_policy", "test_worker_outcomes"),
    "statements/fence": ("test_statements test_statement_rows test_browse", *_ENGINE, *_OPERATORS),
    "statements/shapes": ("test_statements test_statement_rows test_browse", *_ENGINE, *_OPERATORS),
    "statements/exchange": ("test_statements test_statement_rows", *_ENGINE, "test_testing_table"),
    "statements/upkeep": ("test_statement_rows test_statements", *_ENGINE, "test_poison test_lost_loop test_overlap"),
    "statements/retention": ("test_retention",),
    "statements/producing": ("test_producer test_delay test_cancel_replay test_queue_doors", *_DOORS),
    "statements/operating": _OPERATORS,
    "statements/browsing": _OPERATORS,
    "statements/waiting": ("test_own_row test_transactional",),
    "statements/watching": ("test_sampler", "test_metrics test_retention test_service"),
    "statements/schema": ("test_schema_catalog", "test_migrations_drift test_doctor"),
    "statements/checking": ("test_doctor",),
    "statements/testing": ("test_testing_table", "test_testing test_testing_assertions"),
    "producer": ("test_producer test_cancel_replay test_queue_doors", *_DOORS, *_OPERATORS),
    "bulk": ("test_bulk", *_DOORS),
    "unit_of_work": ("test_unit_of_work test_flush_listeners", *_DOORS),
    "book": ("test_unit_of_work test_rollbacks", *_DOORS),
    "intake": ("test_producer test_bulk", *_DOORS),
    "commits": ("test_commits", *_DOORS, "test_wakeups"),
    "adoption": ("test_unit_of_work test_flush_listeners", *_DOORS),
}
