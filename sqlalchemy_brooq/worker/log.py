"""
The engine's logger. What a program's own log handlers raise stays out of the engine.

An outcome that was written, and a claim that was made, must be dealt with to the end whatever becomes of their lines.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any, Final


class Unbreakable(logging.LoggerAdapter[logging.Logger]):
    """
    A logger that never raises: it prints what a log handler or a filter raised, as `logging` does for its own.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """
        Log; all other methods come down to this one.
        """
        if not self.logger.isEnabledFor(level):
            return
        try:
            self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
        except Exception:  # noqa: BLE001 - the program's, and no reason to drop a job
            if logging.raiseExceptions:
                traceback.print_exc()


log: Final = Unbreakable(logging.getLogger("sqlalchemy_brooq.worker"))
