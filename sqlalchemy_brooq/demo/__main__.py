"""
``python -m sqlalchemy_brooq.demo``: the same as ``brooq-worker demo``, and needs no command line library.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from sqlalchemy_brooq.demo.schema_keeper import plain_text
from sqlalchemy_brooq.demo.shop import SEED, run_demo
from sqlalchemy_brooq.errors import BrooqError, ConfigError

FAILED: Final = 1
REFUSED: Final = 2


def main() -> int:
    """
    Run the demo, and return its exit code; what a user can cause is one line.
    """
    parser = argparse.ArgumentParser(prog="python -m sqlalchemy_brooq.demo", description="Watch a small shop at work.")
    parser.add_argument("--database-url", metavar="URL", help="a PostgreSQL to use, in a schema of its own")
    parser.add_argument(
        "--seed", type=int, metavar="N", default=SEED, help="picks what is ordered (default: %(default)s)"
    )
    given = parser.parse_args()
    try:
        return run_demo(given.database_url, seed=given.seed)
    except BrokenPipeError:  # nobody reads the account any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ConfigError as error:
        return _failed(error, REFUSED)
    except (BrooqError, SQLAlchemyError, ImportError) as error:
        return _failed(error, FAILED)


def _failed(error: BaseException, code: int) -> int:
    print("Error:", plain_text(error), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
