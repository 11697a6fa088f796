"""
`Config` in code: its defaults, those that derive from another setting, and its copies.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from datetime import timedelta
from typing import assert_type

import pytest

from sqlalchemy_brooq.config import Config
from sqlalchemy_brooq.errors import ConfigError
from tests.refusals import SECOND, config

TOKEN = "s3cr3t-t0k3n"  # noqa: S105 - a secret to look for


# -- what it holds


def test_a_config_of_nothing_holds_the_defaults() -> None:
    plain = Config()

    assert (plain.workers, plain.max_attempts, plain.max_requeues, plain.api_token) == (2, 5, None, None)
    assert (plain.lease, plain.reaper_period, plain.watchdog_grace) == (120 * SECOND, 30 * SECOND, 120 * SECOND)
    assert plain.retention_ttl_dead == plain.retention_ttl == timedelta(days=30)
    assert plain.retention_period == timedelta(hours=1)


def test_durations_are_given_as_text_or_timedelta_and_read_as_timedelta() -> None:
    given_both_ways = Config(lease="30s", shutdown_grace=timedelta(seconds=3), retention_ttl=0)

    assert_type(given_both_ways.lease, timedelta)
    assert given_both_ways.lease == 30 * SECOND
    assert given_both_ways.shutdown_grace == 3 * SECOND
    assert given_both_ways.retention_ttl == timedelta(0)


def test_a_setting_can_not_be_assigned() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().workers = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        ("127.0.0.1:8090", ("127.0.0.1", 8090)),
        ("127.8.8.8:0", ("127.8.8.8", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("[::1]:8090", ("::1", 8090)),
        ("off", None),
    ],
)
def test_a_loopback_address_is_listened_on(address: str, listen: tuple[str, int] | None) -> None:
    assert Config(listen_address=address).listen == listen


def test_the_token_is_not_shown() -> None:
    shown = repr(Config(api_token=TOKEN, lease="90s", workers=3))

    assert TOKEN not in shown
    assert shown.startswith("Config(workers=3, prefetch=0, poll_interval='1s', ")
    assert "lease='1m30s'" in shown
    assert shown.endswith("allow_public=False, api_token='***')")


def test_an_empty_token_is_none() -> None:
    assert Config(api_token="").api_token is None


def test_equal_settings_are_equal_and_hash_alike() -> None:
    assert {Config(lease="60s"), Config(lease="1m"), Config(lease="1m", reaper_period="15s")} == {Config(lease="1m")}


# -- derived defaults


def test_the_reaper_goes_by_the_lease() -> None:
    assert Config(lease="30s").reaper_period == timedelta(seconds=7.5)
    assert Config(lease="4s").reaper_period == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("settings", "period"),
    [
        ({"retention_ttl": "1d"}, timedelta(minutes=14, seconds=24)),
        ({"retention_ttl": "5m"}, timedelta(minutes=1)),
        ({"retention_ttl": "365d"}, timedelta(hours=1)),
        ({"retention_ttl": "0"}, timedelta(minutes=1)),
        ({"retention_ttl_done": "10h"}, timedelta(minutes=6)),
        ({"retention_ttl_done": "0"}, timedelta(hours=1)),
        ({"retention_ttl": "0", "retention_ttl_dead": "10h"}, timedelta(minutes=6)),
        ({"retention_ttl": "1d", "retention_period": "0"}, timedelta(minutes=14, seconds=24)),
        ({"retention_period": "3s"}, 3 * SECOND),
    ],
)
def test_retention_goes_by_the_shortest_ttl_in_force(settings: dict[str, object], period: timedelta) -> None:
    assert config(**settings).retention_period == period


def test_a_state_may_have_a_ttl_of_its_own() -> None:
    own = Config(retention_ttl="1d", retention_ttl_done="0", retention_ttl_dead="90d")

    assert own.retention_ttl_done == timedelta(0)
    assert own.retention_ttl_dead == timedelta(days=90)
    assert own.retention_ttl_canceled == timedelta(days=1)


# -- copies


def test_replace_keeps_what_it_is_not_told_to_change() -> None:
    before = Config(lease="30s", api_token=TOKEN, retention_ttl_done="1d")

    after = dataclasses.replace(before, workers=3)

    assert after == Config(workers=3, lease="30s", api_token=TOKEN, retention_ttl_done="1d")


def test_replace_derives_anew_what_was_never_given() -> None:
    after = dataclasses.replace(
        dataclasses.replace(Config(watchdog_grace="9s"), workers=3),
        lease=timedelta(minutes=1),
        retention_ttl=timedelta(days=1),
    )

    assert after == Config(workers=3, watchdog_grace="9s", lease="1m", retention_ttl="1d")
    assert after.reaper_period == timedelta(seconds=15)


def test_replace_can_pin_a_value_that_was_derived() -> None:
    before = Config(lease="2m")

    after = dataclasses.replace(before, lease=timedelta(hours=1), watchdog_grace=before.watchdog_grace)
    later = dataclasses.replace(after, lease=timedelta(minutes=3))

    assert after.watchdog_grace == later.watchdog_grace == timedelta(minutes=2)
    assert later.reaper_period == timedelta(seconds=45)


def test_replace_can_let_a_pinned_value_go() -> None:
    after = dataclasses.replace(Config(lease="1m", retention_period="9s"), retention_period=timedelta(0))

    assert after == Config(lease="1m")


def test_replace_validates() -> None:
    with pytest.raises(ConfigError, match="workers: 0 is refused"):
        dataclasses.replace(Config(), workers=0)


def test_a_copy_still_knows_what_was_derived() -> None:
    for twin in (copy.deepcopy(Config(lease="1m")), pickle.loads(pickle.dumps(Config(lease="1m")))):  # noqa: S301 - our own
        assert twin == Config(lease="1m")
        assert dataclasses.replace(twin, lease=timedelta(minutes=4)).reaper_period == timedelta(minutes=1)
