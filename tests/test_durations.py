from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlalchemy_brooq.durations import format_duration, parse_duration, shown

UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds", "ms": "milliseconds"}
NO_UNIT = st.one_of(st.integers().filter(bool), st.floats(), st.booleans(), st.integers(min_value=1).map(str))


class Subclass(timedelta):
    """
    As pandas has one.
    """


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("2m", timedelta(minutes=2)),
        ("90m", timedelta(minutes=90)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("30d", timedelta(days=30)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("1.5s", timedelta(seconds=1.5)),
        ("0.25h10s", timedelta(minutes=15, seconds=10)),
        ("0.001ms", timedelta(microseconds=1)),
        ("1.0000000s", timedelta(seconds=1)),
        (" 30s\n", timedelta(seconds=30)),
        ("999999999d", timedelta(days=999_999_999)),
    ],
)
def test_text_with_units_is_read_exactly(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


def test_the_number_zero_needs_no_unit() -> None:
    assert parse_duration(0) == timedelta(0)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (30, "30 has no unit"),
        (1.5, "1.5 has no unit"),
        (0.0, "0.0 has no unit"),
        (float("nan"), "nan has no unit"),
        (float("inf"), "inf has no unit"),
        pytest.param(10**5000, "int too long to show has no unit", id="huge"),
        ("30", "'30' has a number with no unit"),
        ("1.5", "'1.5' has a number with no unit"),
        ("00", "'00' has a number with no unit"),
        ("1h30", "'1h30' has a number with no unit"),
        (True, "True is not a duration"),
        (False, "False is not a duration"),
        (None, "None is not a duration"),
        (b"30s", "b'30s' is not a duration"),
        ("nan", "'nan' is not a duration"),
        ("h", "'h' is not a duration"),
        (".5s", "'.5s' is not a duration"),
        ("5.s", "'5.s' is not a duration"),
        ("1,5s", "'1,5s' is not a duration"),
        ("1h 30m", "'1h 30m' is not a duration"),
        ("+5s", "'+5s' is not a duration"),
        ("٣s", "'٣s' is not a duration"),
        ("--5s", "'--5s' is not a duration"),
        ("1" * 101 + "s", "is not a duration, it has 102 characters"),
    ],
)
def test_a_value_that_is_no_duration_is_refused_with_an_example(value: object, fault: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_duration(cast("Any", value))

    assert fault in str(refusal.value)
    assert "'30s'" in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "an empty text is not a duration"),
        ("  ", "an empty text is not a duration"),
        ("-5s", "'-5s' is negative"),
        ("-5", "'-5' is negative"),
        (timedelta(seconds=-90), "-1m30s is negative"),
        (timedelta.min, "-999999999d is negative"),
        ("5x", "'5x' has the unknown unit 'x': the units are d, h, m, s, ms"),
        ("5us", "'5us' has the unknown unit 'us'"),
        ("5S", "'5S' has the unknown unit 'S'"),
        ("1h1h", "'1h1h' names h twice"),
        ("1h2m1h", "'1h2m1h' names h twice"),
        ("30m1h", "'30m1h' names m before h"),
        ("5ms1s", "'5ms1s' names ms before s"),
        ("0.0001ms", "'0.0001ms' is finer than a microsecond"),
        ("1000000000d", "'1000000000d' is too long: at most 999999999d"),
        ("9" * 90 + "d", "is too long: at most 999999999d"),
    ],
)
def test_every_other_fault_has_a_message_of_its_own(value: timedelta | str, message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_duration(value)

    assert message in str(refusal.value)


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_formatted_duration_is_read_back_to_the_microsecond(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_timedelta_is_taken_as_it_is(duration: timedelta) -> None:
    assert parse_duration(duration) == duration


@given(st.lists(st.integers(0, 10**6), min_size=len(UNITS), max_size=len(UNITS)))
def test_the_parts_of_a_text_add_up(counts: list[int]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in zip(counts, UNITS, strict=True))

    assert parse_duration(text) == timedelta(**dict(zip(UNITS.values(), counts, strict=True)))


@given(st.text())
def test_any_text_is_a_duration_or_gets_one_clear_refusal(text: str) -> None:
    try:
        duration = parse_duration(text)
    except ValueError as refusal:
        assert text.strip() == "" or shown(text.strip()) in str(refusal)  # noqa: PT017 - most texts are refused, not all
    else:
        assert duration >= timedelta(0)


@given(NO_UNIT)
def test_a_bare_number_is_never_a_duration(value: object) -> None:
    with pytest.raises(ValueError, match=r"has no unit|with no unit|not a duration"):
        parse_duration(cast("Any", value))


def test_a_subclass_of_timedelta_becomes_a_plain_one() -> None:
    assert type(parse_duration(Subclass(seconds=3))) is timedelta


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(seconds=7.5), "7s500ms"),
        (timedelta(microseconds=250), "0.25ms"),
        (timedelta(microseconds=1_000_001), "1s0.001ms"),
        (timedelta(days=36_500), "36500d"),
        (timedelta(seconds=-1), "-1s"),
    ],
)
def test_a_duration_is_shown_in_the_units_that_it_has(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


def test_a_long_value_is_cut_where_it_is_shown() -> None:
    assert len(shown("x" * 1_000)) == 80
