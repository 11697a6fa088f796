"""
How sphinx builds these pages: from markdown and docstrings, with nothing fetched from the network.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

# The modules beside this one; and the docstrings of this checkout, also where another version is installed.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

import inventories

from sqlalchemy_brooq import __version__
from sqlalchemy_brooq.settings import OPTIONS, SETTINGS

project = "sqlalchemy-brooq"
author = "the sqlalchemy-brooq authors"
copyright = author  # noqa: A001 - sphinx's name
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.intersphinx", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "changes"]

myst_heading_anchors = 3
#: Names in docstrings stand in single backquotes: links where there is something to link to, and code everywhere else.
default_role = "py:obj"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
#: Unwrapped, a signature of many arguments is one long line.
maximum_signature_line_length = 80

#: A name that leads nowhere is a warning, and so an error: a class of SQLAlchemy's in a signature is a link.
nitpicky = True
nitpick_ignore_regex = [
    # What type checkers read, and people don't need a page for: the signature says the rest.
    ("py:class", r"sqlalchemy_brooq\.(config\.\w+Keywords|decorating\.\w+|queue\.Function|service\.Served)"),
    ("py:class", r"sqlalchemy_brooq\.(migrations\.revising\.Op|testing\.crashing\.Outside)"),
    ("py:class", r"sqlalchemy_brooq\.worker\.signals\.StopSignals"),
    # The names of events, which are texts for everybody else.
    ("py:class", r"(sqlalchemy_brooq\.vocabulary\.)?Event"),
    # Of an extra, and of a project whose documentation isn't sphinx's.
    ("py:class", r"TracerProvider|prometheus_client\.registry\.CollectorRegistry"),
]

html_theme = "furo"
html_title = f"sqlalchemy-brooq {release}"


def link_elsewhere(app: Sphinx, config: Config) -> None:
    """
    Let intersphinx read inventories that are made here, before it looks at where they are.
    """
    config.intersphinx_mapping = inventories.write(Path(app.doctreedir) / "inventories")


def short_name(app: Sphinx, env: BuildEnvironment, node: pending_xref, contents: Element) -> Element | None:
    """
    Find what docstrings call `Job`, or `brooq.cancel`, from whichever module they say it.
    """
    name = node.get("reftarget", "").removeprefix("brooq.")
    found = {qualified for qualified, *_ in env.domains.python_domain.get_objects()}
    full = f"sqlalchemy_brooq.{name}"
    if node.get("refdomain") != "py" or full not in found:
        return None
    return env.domains.python_domain.resolve_xref(env, node["refdoc"], app.builder, "obj", full, node, contents)


def list_settings(_app: Sphinx, what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
    """
    Let the two classes that take settings list them, from the table that the code has.
    """
    rows = {"sqlalchemy_brooq.Config": SETTINGS, "sqlalchemy_brooq.HandlerOptions": OPTIONS}.get(name, {})
    if what == "class":
        for row in rows.values():
            rule = f", {row.rule.text}" if row.rule.text else ""
            lines.append(f":param {row.name}: {row.help} ({row.kind.name}{rule}; default ``{row.default_text}``)")


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", list_settings, priority=600)
    app.connect("missing-reference", short_name)
    app.connect("config-inited", link_elsewhere, priority=400)
    keep_napoleon_from_attributes(app)


def keep_napoleon_from_attributes(app: Sphinx) -> None:
    """
    Else it would take what stands before a colon for a type.
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
