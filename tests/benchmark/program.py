"""
The program that ``brooq-worker run`` is given in a measurement: ``tests.benchmark.program:queue``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import sqlalchemy_brooq as brooq
from tests.benchmark.contestants.ours import ORDER_VARIABLE, make_queue
from tests.benchmark.marks import Marks
from tests.benchmark.orders import Work


def queue() -> brooq.Queue:
    """
    Return the queue of the order that the environment holds.
    """
    order = Work(**json.loads(os.environ[ORDER_VARIABLE]))
    return make_queue(order, Marks(Path(order.marks), order.count))
