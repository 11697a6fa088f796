"""
How a command ends when it can't go on: what it says, in one line a problem, and its exit code.

No line shows a password: texts of others pass through `masked` before they are printed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import IO, Any, ClassVar, Final

import click
from sqlalchemy.exc import SQLAlchemyError

from sqlalchemy_brooq.errors import BrooqError, ConfigError

FAILED: Final = 1
REFUSED: Final = 2

#: A password before the host of an address, also of a misspelt one without "//" or with "@" in the password.
_USERINFO: Final = re.compile(r":(//[^\s:@]*:)?\S*@")
_SHORTEST: Final = 6
"""Characters of a secret; replacing fewer would garble the text and protect nothing."""
_PARAMETER: Final = re.compile(r"\b((?:ssl)?password|passwd)=('[^']*'|[^\s&]+)", re.IGNORECASE)


class Failed(click.ClickException):
    """
    The command tried and failed.

    Args:
        problems: Each becomes a line of its own.
    """

    exit_code: ClassVar[int] = FAILED

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems

    def show(self, file: IO[Any] | None = None) -> None:
        """
        Print the problems to stderr.
        """
        for problem in self.problems:
            click.echo(f"Error: {masked(_in_one_line(problem))}", file=file, err=file is None)


class Refused(Failed):
    """
    The command was called in a wrong way, or with wrong settings.
    """

    exit_code: ClassVar[int] = REFUSED


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """
    Turn what the library and the database raise at their users into `Failed` and `Refused`.
    """
    try:
        yield
    except ConfigError as error:
        raise Refused(*error.problems) from None
    except BrooqError as error:
        raise Failed(str(error)) from None
    except SQLAlchemyError as error:
        raise Failed(f"database error: {said_by_database(error)}") from None
    except ImportError as error:
        # psycopg's own text tells that its libpq is missing, but not what to do about it in one line.
        raise Failed(f"the driver can't be imported ({first_line(error)}): install 'psycopg[binary]'") from None


def said_by_database(error: SQLAlchemyError) -> str:
    """
    Return what the server or the driver said, without the statement and the values that SQLAlchemy's text quotes.
    """
    original = getattr(error, "orig", None) or error
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    return str(primary or original)


def first_line(error: BaseException) -> str:
    """
    Return the first line of *error*'s own text, or its type where it has none.
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def masked(text: str) -> str:
    """
    Return *text* without the passwords of the addresses in it, nor the whole of ``DATABASE_URL``.
    """
    for name in ("DATABASE_URL", "QUEUE_API_TOKEN"):
        secret = os.environ.get(name, "").strip()
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, f"<{name}>")
    return _PARAMETER.sub(r"\1=***", _USERINFO.sub(r":\1***@", text))


def _in_one_line(text: str) -> str:
    return " ".join(text.split())
