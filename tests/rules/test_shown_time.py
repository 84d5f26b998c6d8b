"""What time people and models are shown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from ondol import InvalidInput, clock

NOW = datetime(2026, 11, 29, 15, 30, tzinfo=UTC)


def test_a_time_is_shown_with_weekday_offset_and_zone():
    assert clock.shown(NOW, "Asia/Seoul") == "Monday, 2026-11-30 00:30 +09:00 (Asia/Seoul)"
    assert clock.shown(NOW, "America/Montevideo") == "Sunday, 2026-11-29 12:30 -03:00 (America/Montevideo)"


def test_without_a_zone_utc_is_shown_with_its_offset():
    assert clock.shown(NOW, None) == "Sunday, 2026-11-29 15:30 +00:00 (UTC)"


def test_a_zone_that_this_machine_does_not_know_is_shown_as_utc_and_not_as_itself():
    assert clock.shown(NOW, "Mars/Olympus") == clock.shown(NOW, None)


NOT_ZONES = ["localtime", "posixrules", "right/Asia/Seoul", "posix/Asia/Seoul", "Factory"]  # which lie beside them


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", *NOT_ZONES])
def test_a_zone_that_does_not_exist_is_refused_by_name(name):
    with pytest.raises(InvalidInput, match="time zone"):
        clock.zone(name)


def test_stored_times_are_exact_to_the_microsecond():
    at = datetime(2026, 11, 29, 15, 30, 1, 123457, tzinfo=UTC)
    assert clock.from_micros(clock.to_micros(at)) == at
