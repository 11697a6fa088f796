"""
Makes sphinx inventories of the lists in ``inventories/``, so that links to other projects need no network.

The form is sphinx's own, version 2: four lines that are read as they are, then a line for each object, compressed.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parent / "inventories"


class Inventory(NamedTuple):
    """
    What is known of another project's documentation.
    """

    name: str
    address: str
    objects: dict[str, tuple[str, str]]
    """Kind and place of each, by its name."""

    def packed(self) -> bytes:
        """
        Return it as sphinx reads it.
        """
        head = f"# Sphinx inventory version 2\n# Project: {self.name}\n# Version: \n# Compressed with zlib.\n"
        lines = "".join(f"{name} py:{kind} 1 {place} -\n" for name, (kind, place) in self.objects.items())
        return head.encode() + zlib.compress(lines.encode())


def inventory(file: Path) -> Inventory:
    """
    Return what *file* says: a heading with name and address, remarks, and three words a line.
    """
    lines = file.read_text().splitlines()
    name, address = lines[0].removeprefix("# ").split()
    words = (line.split() for line in lines if line and not line.startswith("#"))
    return Inventory(name, address, {name: (kind, place) for name, kind, place in words})


def write(folder: Path) -> dict[str, tuple[str, str]]:
    """
    Write them all into *folder*, and return what ``intersphinx_mapping`` says of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for file in sorted(FOLDER.glob("*.txt")):
        found, packed = inventory(file), folder / f"{file.stem}.inv"
        packed.write_bytes(found.packed())
        mapping[file.stem] = (found.address, str(packed))
    return mapping
