"""
Checks a release before it is one: ``tox run -e release``, or ``python -m tests.release`` in a checkout.

Builds both archives, looks into them, and installs each into an empty environment in a folder of its own. There it runs
the demo, and a consumer that uses public names only. Needs a package index; leaves the archives in ``dist/``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from sqlalchemy_brooq.demo.postgres import LocalPostgres
from tests.release.contents import PACKAGE, names_in, problems_of_sdist, problems_of_wheel, tracked
from tests.servers import ROOT

DIST: Final = ROOT / "dist"
CONSUMER: Final = Path(__file__).parent / "consumer.py"


def main() -> None:
    archives = built()
    done("twine", [sys.executable, "-m", "twine", "check", "--strict", *map(str, archives)])
    looked_into(archives)
    for archive in archives:
        with tempfile.TemporaryDirectory(prefix="brooq-release-") as folder:
            used(archive, Path(folder))
    say("all is well: " + ", ".join(archive.name for archive in archives))


def built() -> list[Path]:
    """
    Build the source archive, and the wheel from that; return both.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    done("build", [sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)])
    archives = sorted(DIST.iterdir())
    if [archive.suffix for archive in archives] != [".whl", ".gz"]:
        sys.exit(f"expected a wheel and a source archive in {DIST}, and found {[file.name for file in archives]}")
    return archives


def looked_into(archives: list[Path]) -> None:
    wheel, source = archives
    problems = [
        *problems_of_wheel(names_in(wheel), tracked(PACKAGE)),
        *problems_of_sdist(names_in(source), tracked()),
    ]
    if problems:
        sys.exit("\n".join(problems))
    say(f"contents: {len(names_in(wheel))} files in the wheel, {len(names_in(source))} in the source archive")


def used(archive: Path, folder: Path) -> None:
    """
    Install *archive* into an empty environment, and run in *folder* what a stranger would.
    """
    python, program = folder / "venv/bin/python", folder / "venv/bin/brooq-worker"
    done(f"{archive.name}: environment", [sys.executable, "-m", "venv", str(folder / "venv")], folder)
    done(f"{archive.name}: install", [str(python), "-m", "pip", "install", "-q", f"{archive}[demo]"], folder)
    done(f"{archive.name}: version", [str(program), "--version"], folder)
    shutil.copy(CONSUMER, folder)
    with LocalPostgres(durable=False) as server:
        url = server.url().render_as_string(hide_password=False)
        said = done(f"{archive.name}: consumer", [str(python), CONSUMER.name], folder, DATABASE_URL=url)
    if f" in {folder}/venv/" not in said:
        sys.exit(f"the consumer imported another copy than the one that was installed:\n{said}")
    done(f"{archive.name}: demo", [str(program), "demo"], folder)


def done(step: str, command: list[str], folder: Path = ROOT, **variables: str) -> str:
    """
    Run *command* in *folder*; return what it printed, or end with it where it fails.
    """
    began = time.monotonic()
    # Nothing of this checkout, or of the environment that we run in, is to be found by what was installed.
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**clean, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        sys.exit(f"{step} failed with exit code {ran.returncode}:\n{ran.stdout}")
    last = ran.stdout.strip().splitlines()[-1:] or ["no output"]
    say(f"{step}: {time.monotonic() - began:.0f} s, {last[0].strip()}")
    return ran.stdout


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
