"""
``python -m sqlalchemy_brooq``: the same as ``brooq-worker``.
"""

from __future__ import annotations

from sqlalchemy_brooq.cli import main

if __name__ == "__main__":
    main(prog_name="brooq-worker")
