"""
The program of ``docs/how-to/tenants.md`` that serves several schemas in one process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from sqlalchemy import URL, Engine, text

from sqlalchemy_brooq.migrations import migrate
from tests.commands import environment, shown
from tests.pages import blocks
from tests.servers import ROOT
from tests.waiting import eventually

PAGE = ROOT / "docs/how-to/tenants.md"
FILES = ("shop.py", "orders.py", "serve.py")


def test_one_process_serves_the_queues_of_several_schemas_and_ends_when_told(
    engine: Engine, database_url: URL, tmp_path: Path
) -> None:
    sources = {block.text.splitlines()[0].removeprefix("# "): block.text for block in blocks(PAGE)}
    for file in FILES:
        (tmp_path / file).write_text(sources[file])
    for tenant in ("tea", "books"):
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {tenant}"))
        migrate(engine.execution_options(schema_translate_map={None: tenant}))
    variables = environment({"DATABASE_URL": shown(database_url)})
    subprocess.run([sys.executable, "orders.py"], cwd=tmp_path, env=variables, timeout=60, check=True)

    def states() -> list[str]:
        with engine.connect() as connection:
            query = "SELECT state FROM tea.job UNION ALL SELECT state FROM books.job UNION ALL SELECT state FROM job"
            return list(connection.scalars(text(query)))

    assert states() == ["pending", "pending"]
    with subprocess.Popen(
        [sys.executable, "serve.py"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            eventually(lambda: states() == ["done", "done"])
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()

    assert (process.returncode, sorted(out.splitlines())) == (0, ["packed 1 for books", "packed 1 for tea"])
