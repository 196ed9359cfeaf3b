"""Sizes, times and counts as text, and back."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.support.errors import InputError
from streamrf.support.units import format_bytes, format_count, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GB", 2_000_000_000),
        ("2 gb", 2_000_000_000),
        ("512MiB", 512 * 2**20),
        ("1.5g", 1_500_000_000),
        ("1.1GB", 1_100_000_000),  # 1.1 * 10**9 in floats is not a whole number
        (".5k", 500),
        ("3.TiB", 3 * 2**40),
        ("1000", 1000),
        (" 7 b ", 7),
        ("0", 0),
        (12345, 12345),
        (np.int64(5), 5),
    ],
)
def test_bytes_are_read(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GB",
        "2XB",
        "-1",
        "1e9",
        "1.2.3",
        "2 GB extra",
        "nan",
        "1,000",
        "9" * 5000,
        "9999999999P",
        -1,
        1.5,
        True,
        None,
    ],
)
def test_what_is_not_a_size_is_refused_with_examples(text):
    with pytest.raises(InputError, match=r"2GB, 512MiB"):
        parse_bytes(text)


@given(st.integers(0, 10**9), st.sampled_from([("kB", 10**3), ("MB", 10**6), ("KiB", 2**10), ("GiB", 2**30)]))
def test_a_whole_number_of_units_is_exact(count, unit):
    assert parse_bytes(f"{count}{unit[0]}") == count * unit[1]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1_500_000_000, "1.50 GB"),
        (512_000_000, "512 MB"),
        (99_960, "100 kB"),
        (999_999, "1.00 MB"),
        (2 * 10**15, "2.00 PB"),
        (5 * 10**18, "5,000 PB"),
        (-2_000, "-2.00 kB"),
    ],
)
def test_bytes_are_written(size, expected):
    assert format_bytes(size) == expected


@given(st.integers(0, 2**60))
def test_written_bytes_read_back_to_three_digits(size):
    text = format_bytes(size).replace(",", "")
    assert math.isclose(parse_bytes(text), size, rel_tol=0.0051, abs_tol=0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5min", 300),
        ("30s", 30),
        ("1h30m", 5400),
        ("1h 30min 5s", 5405),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2d", 172800),
        ("2 days", 172800),
        ("90", 90),
        ("0", 0),
        (2.5, 2.5),
        (7, 7),
    ],
)
def test_times_are_read(text, expected):
    assert parse_seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "min", "5 parsecs", "30m1h", "5s5s", "1h30", "-3", "1e3", "inf", math.inf, math.nan, -1, True, None]
)
def test_what_is_not_a_time_is_refused_with_examples(text):
    with pytest.raises(InputError, match=r"30s, 5min, 1h30m"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 ms"),
        (0.12, "120 ms"),
        (0.9999, "1.0 s"),
        (12.34, "12.3 s"),
        (59.97, "1 min 00 s"),
        (119.9, "2 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (3840, "1 h 04 min"),
        (86399, "1 d 00 h"),
        (2 * 86400 + 3 * 3600, "2 d 03 h"),
        (-12.34, "-12.3 s"),
        (math.inf, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_times_are_written(seconds, expected):
    assert format_seconds(seconds) == expected


def test_counts_are_written():
    assert format_count(12345678) == "12,345,678"
    assert format_count(np.int64(7)) == "7"
