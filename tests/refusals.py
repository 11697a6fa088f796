"""
Values that settings refuse, and what is said about them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

import pytest

from sqlalchemy_brooq.config import Config, ConfigKeywords
from sqlalchemy_brooq.errors import ConfigError
from sqlalchemy_brooq.kinds import DURATION, INTEGER, MAX_DURATION, MAX_INTEGER
from sqlalchemy_brooq.settings import SETTINGS

SECOND = timedelta(seconds=1)
DURATIONS = [name for name, row in SETTINGS.items() if row.kind is DURATION]
INTEGERS = [name for name, row in SETTINGS.items() if row.kind is INTEGER]

#: name of a setting -> values that are refused in code
BAD: dict[str, list[object]] = {
    **{name: [True, "4", 2.0, -1, MAX_INTEGER + 1] for name in INTEGERS},
    **{name: [30, 1.5, True, "30", "-1s", "", "1h1h", -SECOND, MAX_DURATION + SECOND] for name in DURATIONS},
    "wakeup": ["notify", "LISTEN", "", 1, None],
    "listen_address": ["8090", "127.0.0.1", ":8090", "127.0.0.1:65536", "::1:8090", "0.0.0.0:8090", 8090, None],
    "allow_public": [1, "yes", None],
    "api_token": [1, b"bytes", "line\nbreak", " space", "\udcff", "x" * 5_000],
}


def config(**settings: object) -> Config:
    """
    Build a `Config` of what type checkers would refuse.
    """
    return Config(**cast("ConfigKeywords", settings))


def problems_of(**settings: object) -> tuple[str, ...]:
    """
    Return the problems with *settings*; fail if there are none.
    """
    with pytest.raises(ConfigError) as refusal:
        config(**settings)
    return refusal.value.problems
