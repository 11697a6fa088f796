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


def main() -> int:
    """
    Run the demo, and return its exit code; what a user can cause is one line.
    """
    urls = sys.argv[1:]
    if len(urls) > 1 or any(url.startswith("-") for url in urls):
        return _failed(f"usage: {USAGE}", 2)
    try:
        return run_demo(*urls)
    except ConfigError as error:
        return _failed(str(error), 2)
    except BrooqError as error:
        return _failed(str(error), 1)
    except SQLAlchemyError as error:
        return _failed(f"the database answered: {plain_text(error)}", 1)
    except ImportError as error:
        return _failed(f"{plain_text(error)}; pip install 'sqlalchemy-brooq[demo]'", 1)
    except BrokenPipeError:  # nobody reads the account any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _failed(problem: str, code: int) -> int:
    print("Error:", " ".join(problem.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
