"""What drawings are made of: marks, ticks, and words with units."""

from itertools import pairwise

import pytest

from kjbod.fleet.page.timeline import MARK_PX, Mark, spread
from kjbod.fleet.svg import clean, distinct_tails, duration, fit, nice_ticks, size, text_width, time_ticks

T0 = 1_793_534_400_000


def test_marks_never_cover_each_other_and_stay_inside() -> None:
    marks = [(x, Mark(0, "registered", "")) for x in (5.0, 6.0, 6.0, 300.0, 395.0, 396.0)]
    placed = [x for x, _ in spread(marks, 400)]
    assert all(b - a >= MARK_PX - 0.01 for a, b in pairwise(placed))
    assert max(placed) <= 400


def test_what_turns_text_is_shown_and_turns_nothing() -> None:
    turning = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c"
    assert clean(f"h\u202e1<{turning}\x1b") == "h\\u202e1&lt;" + turning.encode("unicode_escape").decode() + " "
    assert clean("host-ä-主机-مضيف") == "host-ä-主机-مضيف"


def test_short_names_still_tell_directories_apart() -> None:
    assert distinct_tails(["/mnt/a/kafka", "/mnt/b/kafka"]) == {"/mnt/a/kafka": "a/kafka", "/mnt/b/kafka": "b/kafka"}
    assert distinct_tails(["/mnt/d1", "/mnt/d2"]) == {"/mnt/d1": "d1", "/mnt/d2": "d2"}
    assert distinct_tails(["/"]) == {"/": "/"}


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "–"), (0, "0 ms"), (2, "2.0 ms"), (31, "31 ms"), (999.6, "1 s"), (4020, "4.02 s"), (150_000, "2 min")],
)
def test_durations_have_units(ms: float | None, text: str) -> None:
    assert duration(ms) == text


def test_sizes_have_binary_units() -> None:
    assert [size(n) for n in (None, 0, 1023, 1024, 1536, 100 << 30, 4 << 40)] == [
        *("–", "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "100 GiB", "4.0 TiB")
    ]


def test_ticks_are_round_and_cover_the_data() -> None:
    assert nice_ticks(1, 4) == [0, 0.5, 1.0]
    assert nice_ticks(37, 5) == [0, 10, 20, 30, 40]
    assert nice_ticks(0, 5) == [0, 1]
    assert [text for _, text in time_ticks(T0 + 1, T0 + 30_000, 3)] == ["12:00:10", "12:00:20", "12:00:30"]
    assert len(time_ticks(T0, T0 + 400 * 86_400_000, 6)) <= 6


def test_a_label_that_is_too_long_keeps_its_head_and_its_end() -> None:
    short = fit("/srv/kafka/some/very/long/path/d17", 120)
    assert short.endswith("d17")
    assert "…" in short
    assert text_width(short) <= 120


def test_a_small_line_has_no_points_in_the_middle_of_what_is_level() -> None:
    from kjbod.fleet.page.charts import spark_line

    drawn = str(spark_line([(0, 5), (1, 5), (2, 5), (3, 5), (4, 9), (5, 9)], 6, "errors"))
    assert drawn.count("L") == 3, "four points: where it begins, where it turns twice, where it ends"
    assert 'd="M3 13.7L107.4 13.7L142.2 3L177 3"' in drawn
