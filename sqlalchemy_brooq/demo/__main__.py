"""
``python -m sqlalchemy_brooq.demo [URL]``: the same as ``brooq-worker demo``, without its options.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from sqlalchemy_brooq.demo.schema_keeper import plain_text
from sqlalchemy_brooq.demo.shop import run_demo
from sqlalchemy_brooq.errors import BrooqError, ConfigError

USAGE: Final = "python -m sqlalchemy_brooq.demo [DATABASE_URL]"
FAILED: Final = 1
REFUSED: Final = 2


def main() -> int:
    """
    Run the demo, and return its exit code; what a user can cause is one line.
    """
    urls = sys.argv[1:]
    if len(urls) > 1 or any(url.startswith("-") for url in urls):
        return _failed(f"usage: {USAGE}", REFUSED)
    try:
        return run_demo(*urls)
    except BrokenPipeError:  # nobody reads the account any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except ConfigError as error:
        return _failed(str(error), REFUSED)
    except (BrooqError, SQLAlchemyError, ImportError) as error:
        return _failed(plain_text(error), FAILED)


def _failed(problem: str, code: int) -> int:
    print("Error:", " ".join(problem.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
