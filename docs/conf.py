"""
How sphinx builds these pages: from markdown and docstrings, with nothing fetched from the network.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

# The docstrings of this checkout, also where another version is installed.
sys.path.insert(0, str(Path(__file__).parent.parent))

from sqlalchemy_brooq import __version__

project = "sqlalchemy-brooq"
author = "the sqlalchemy-brooq authors"
copyright = author  # noqa: A001 - sphinx's name
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

myst_heading_anchors = 3
#: Names in docstrings stand in single backquotes: links where there is something to link to, and code everywhere else.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
#: Unwrapped, a signature of many arguments is one long line.
maximum_signature_line_length = 80

html_theme = "furo"
html_title = f"sqlalchemy-brooq {release}"


def setup(app: Sphinx) -> None:
    """
    Keep napoleon away from attributes: it would take what stands before a colon for a type.
    """
    kept: dict[str, list[str]] = {}

    def keep(_app: Sphinx, what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
        if what in {"attribute", "property"}:
            kept[name] = list(lines)

    def restore(_app: Sphinx, _what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
        lines[:] = kept.pop(name, lines)

    napoleons = 500  # sphinx's default
    app.connect("autodoc-process-docstring", keep, priority=napoleons - 1)
    app.connect("autodoc-process-docstring", restore, priority=napoleons + 1)
