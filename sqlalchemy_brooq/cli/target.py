"""
Finds the queue that ``MODULE:QUEUE`` names.

The program's own code runs here, and may do anything: whatever it raises is the program's failure, told in
one line, with its traceback on demand.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

from sqlalchemy_brooq.cli.endings import Refused, first_line, masked
from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.queue import Queue

_RULE: Final = "MODULE:QUEUE names a Queue, or a function without arguments that returns one"

app_dir_option: Final = click.option(
    "--app-dir",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=".",
    help="The first place where MODULE and the .env file are looked for; by default the current folder.",
)


def load_queue(target: str, folder: Path, *, show_traceback: bool | None = None) -> Queue:
    """
    Import the module and return its queue.

    Args:
        target: ``MODULE:QUEUE``.
        folder: Where modules are looked for first.
        show_traceback: Print the traceback of what the program raises; ``None``: there is no option for that.

    Raises:
        Refused: It leads to no queue.
    """
    module_name, path = _parts(target)
    try:
        folder = folder.absolute()
    except FileNotFoundError:
        raise Refused("the current folder is gone: change into one that is there") from None
    sys.path.insert(0, str(folder))
    with _program_code(target, folder, show_traceback):
        module = _imported(module_name, folder)
        found = _attribute(module, path)
        if not isinstance(found, Queue):
            _check_factory(target, found)
            found = found()
    if isinstance(found, Queue):
        return found
    if inspect.iscoroutine(found):
        found.close()
        raise Refused(f"{target} is an async def function, and this is no event loop: {_RULE}")
    raise Refused(f"{target} returned {_kind(found)}: {_RULE}")


def _parts(target: str) -> tuple[str, str]:
    module, _, path = target.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *path.split(".")]):
        raise Refused(f"{target!r} is not MODULE:QUEUE: write it like shop.jobs:queue, the module as import names it")
    return module, path


def _imported(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            raise Refused(
                f"there is no module {missing!r} in {folder.absolute()} or on Python's path:"
                " check the name, or --app-dir"
            ) from None
        raise  # something that the module itself imports


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        if not hasattr(found, name):
            queues = [key for key, value in vars(module).items() if isinstance(value, Queue)]
            hint = f"; its queues are called {', '.join(queues)}" if queues else ""
            raise Refused(f"the module {module.__name__!r} has no {path!r}{hint}")
        found = getattr(found, name)
    return found


def _check_factory(target: str, found: Any) -> None:
    if not callable(found):
        raise Refused(f"{target} is {_kind(found)}: {_RULE}")
    try:
        inspect.signature(found).bind()
    except ValueError:  # a builtin without a signature: the call will tell
        return
    except TypeError as error:
        raise Refused(f"{target} can't be called without arguments ({error}): {_RULE}") from None


def _kind(value: object) -> str:
    return "None" if value is None else f"an object of the type {type(value).__name__}"


@contextlib.contextmanager
def _program_code(target: str, folder: Path, show_traceback: bool | None) -> Iterator[None]:
    try:
        yield
    except (Refused, KeyboardInterrupt):
        raise
    except ConfigError as error:
        _trace(error, show_traceback)
        raise Refused(*error.problems) from None
    except BaseException as error:  # noqa: BLE001 - also the SystemExit of a module that is a script
        _trace(error, show_traceback)
        hint = "; --log-level debug shows the traceback" if show_traceback is False else ""
        raise Refused(f"{target} can't be loaded: {_described(error)}{_place(error, folder)}{hint}") from None


def _trace(error: BaseException, show_traceback: bool | None) -> None:
    if show_traceback:
        click.echo(masked("".join(traceback.format_exception(error))), err=True, nl=False)


def _described(error: BaseException) -> str:
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"


def _place(error: BaseException, folder: Path) -> str:
    """
    Return the line of the program that it came from: the last one below its folder, if there is any.
    """
    if isinstance(error, SyntaxError):  # its text has the place
        return ""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(folder.absolute())
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
