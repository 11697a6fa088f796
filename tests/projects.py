"""
Consumers of the library with alembic projects of their own: made with ``alembic init``, changed as a user changes
them, and run by command.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import pytest
from sqlalchemy import URL

from tests.commands import Answer, environment, shown
from tests.servers import ROOT

Template = Literal["generic", "async", "pyproject", "pyproject_async"]

OURS: Final = "sqlalchemy_brooq:migrations/versions"
THEIRS: Final = "%(here)s/alembic/versions"
#: From 1.18 on. With an older alembic a consumer has to name our filter.
HAS_PLUGINS: Final = find_spec("alembic.runtime.plugins") is not None
FILTER: Final = "include_object=__import__('sqlalchemy_brooq').include_object"
BOTH: Final = "[brooq.metadata, Base.metadata]"

MODELS: Final = """\
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
"""
#: An environment often takes its address from a variable.
ENVIRONMENT: Final = """\
config = context.config
config.set_main_option("sqlalchemy.url", os.environ["DATABASE_URL"].replace("%", "%%"))
"""


class Project:
    """
    A folder with an alembic project in it.

    Args:
        folder: Where it is.
        database: What ``DATABASE_URL`` is for its commands.
        path: Where Python finds the library, and what pip would have installed beside it.
    """

    def __init__(self, folder: Path, database: URL, path: tuple[Path, ...]) -> None:
        self.folder = folder
        self.database = database
        self.path = path

    def init(self, template: Template = "generic", targets: str = BOTH) -> Project:
        """
        Make the project with a model in it, and list our revisions.
        """
        self.alembic("init", "--template", template, "alembic")
        self.write("models.py", MODELS)
        self.change("alembic/env.py", "from alembic import context\n", "import os\n\nfrom alembic import context\n")
        self.change("alembic/env.py", "config = context.config\n", ENVIRONMENT)
        self.target(targets)
        if not HAS_PLUGINS:
            self.substitute("alembic/env.py", r"(target_metadata=target_metadata)", f"\\1, {FILTER}")
        self.locate(THEIRS, OURS)
        return self

    def target(self, targets: str) -> None:
        """
        Make *targets* the ``target_metadata``.
        """
        imports = "import sqlalchemy_brooq as brooq\n" if "brooq" in targets else ""
        imports += "from models import Base\n"
        self.substitute(
            "alembic/env.py",
            r"^(import sqlalchemy_brooq as brooq\n)?(from models import Base\n)?target_metadata = .*\n",
            f"{imports}target_metadata = {targets}\n",
        )

    def locate(self, *locations: str) -> None:
        """
        Make *locations* the ``version_locations``.
        """
        if self._has_toml:
            self.option("version_locations", str(list(locations)), quoted=False)
        else:
            self.option("path_separator", "newline")
            self.option("version_locations", "".join(f"\n    {location}" for location in locations))

    def option(self, name: str, value: str, *, quoted: bool = True) -> None:
        """
        Set an option of alembic's, in the file that this project has them in.
        """
        file = "pyproject.toml" if self._has_toml else "alembic.ini"
        line = f"{name} = '{value}'" if self._has_toml and quoted else f"{name} = {value}"
        self.substitute(file, rf"^{name} =.*\n(?:    .*\n)*", "", at_least=0)
        self.substitute(file, r"^(script_location = .*\n)", rf"\g<1>{line}\n")

    def alembic(self, *arguments: str, code: int = 0) -> Answer:
        """
        Run the command, and expect it to end with *code*.
        """
        answer = self.run("-m", "alembic", *arguments)
        assert answer.code == code, f"alembic {' '.join(arguments)}: {answer}"
        assert "Traceback" not in answer.err, answer.err
        return answer

    def refused(self, *arguments: str) -> str:
        """
        Run the command, expect it to fail, and return the one line that says why.
        """
        answer = self.alembic(*arguments, code=255)
        lines = [line for line in (answer.out + answer.err).splitlines() if not line.startswith("INFO ")]
        *_, last = lines
        return last

    def brooq_worker(self, *arguments: str) -> Answer:
        """
        Run ``brooq-worker`` in the folder, and expect it to succeed.
        """
        answer = self.run("-m", "sqlalchemy_brooq", *arguments)
        assert answer.code == 0, answer
        return answer

    def run(self, *arguments: str) -> Answer:
        """
        Run Python in the folder.
        """
        given = {"DATABASE_URL": shown(self.database), "PYTHONPATH": ":".join(map(str, self.path))}
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            cwd=self.folder,
            env=environment(given),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def revise(self, message: str) -> Path:
        """
        Let autogenerate write a revision of the project's, and return its file.
        """
        before = self.revisions
        self.alembic("revision", "--autogenerate", "-m", message)
        (path,) = self.revisions - before
        return path

    @property
    def revisions(self) -> set[Path]:
        """
        The files of the project's own revisions.
        """
        return set((self.folder / "alembic/versions").glob("*.py"))

    @property
    def _has_toml(self) -> bool:
        return (self.folder / "pyproject.toml").exists()

    def write(self, file: str, text: str) -> None:
        (self.folder / file).write_text(text)

    def append(self, file: str, text: str) -> None:
        self.write(file, (self.folder / file).read_text() + text)

    def change(self, file: str, old: str, new: str) -> None:
        """
        Replace *old*, which a file has once.
        """
        text = (self.folder / file).read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        self.write(file, text.replace(old, new))

    def substitute(self, file: str, pattern: str, replacement: str, at_least: int = 1) -> None:
        text = (self.folder / file).read_text()
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count >= at_least, f"{file} has no {pattern}"
        self.write(file, text)


MakeProject = Callable[..., Project]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    What pip writes beside the package, so that a checkout's entry points are found as well.
    """
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    folder = tmp_path_factory.mktemp("installed")
    about = folder / "sqlalchemy_brooq-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlalchemy-brooq\nVersion: 0\n")
    groups = ("\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in names.items())]) for group, names in declared.items())
    (about / "entry_points.txt").write_text("\n".join(groups))
    return folder


@pytest.fixture
def make_project(tmp_path: Path, empty_database_url: URL, installed: Path) -> MakeProject:
    """
    Return a function that makes an empty folder for a project on the test's own database, which has nothing in it.
    """

    def make(name: str = "shop", *, database: URL = empty_database_url, library: Path = ROOT) -> Project:
        folder = tmp_path / name
        folder.mkdir()
        return Project(folder, database, (installed, library))

    return make
