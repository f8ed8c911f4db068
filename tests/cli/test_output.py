"""What commands print: columns that line up, figures for people, and nothing that a terminal would obey."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.output import cells, cut, duration, moment, percent, plural, safe, size, table


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_any_name_is_one_printable_line_and_two_names_never_look_the_same(text: str) -> None:
    shown = safe(text)
    assert shown.isprintable()
    shown.encode()  # no half a character, whatever the terminal takes
    assert safe(text + "\n") != safe(text + "\\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/mnt/d 1", "/mnt/d 1"),
        ("/mnt/\u00fc", "/mnt/\u00fc"),
        ("a\nb", "a\\nb"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\udcff", "\\udcff"),
        ("a\\nb", "a\\\\nb"),
        ("\u202ecba", "\\u202ecba"),
    ],
)
def test_what_a_terminal_would_obey_is_an_escape(text: str, shown: str) -> None:
    assert safe(text) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "?"),
        (-1, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10 * 1024 - 1, "10 KiB"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (123456789, "118 MiB"),
        (2**40 * 3.64, "3.6 TiB"),
        (2**63 - 1, "8.0 EiB"),
    ],
)
def test_sizes(count: float | None, shown: str) -> None:
    assert size(count) == shown


@given(st.integers(0, 2**64))
def test_a_size_is_never_longer_than_eight_columns(count: int) -> None:
    assert len(size(count)) <= 8


def test_shares_never_say_all_before_it_is_all() -> None:
    assert percent(999, 1000) == "99 %"
    assert percent(1000, 1000) == "100 %"
    assert percent(5, 0) == "?"
    assert percent(7, 5) == "100 %"


def test_moments_are_in_utc_and_durations_have_two_units() -> None:
    assert moment(1763744232999) == "2025-11-21 16:57:12Z"
    assert moment(None) == "?"
    assert [duration(s) for s in (0.9, 59, 61, 3600, 7500, 273_600)] == [
        *("0 s", "59 s", "1 min 1 s", "1 h 0 min", "2 h 5 min", "3 d 4 h"),
    ]
    assert plural(1, "stray") == "1 stray"
    assert plural(2, "stray") == "2 strays"


def test_columns_line_up_also_with_wide_and_combining_characters() -> None:
    lines = table(
        (">SIZE", "NAME", "PATH"),
        [("1 B", "\u6f22\u5b57", "/a"), ("10 B", "e\u0301t", "/b"), ("100 B", "plain", "/c")],
    )
    assert lines == [
        " SIZE  NAME   PATH",
        "  1 B  \u6f22\u5b57   /a",
        " 10 B  e\u0301t     /b",
        "100 B  plain  /c",
    ]
    assert len({cells(line) for line in lines[1:]}) == 1


def test_a_text_is_cut_to_its_columns() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abc..."
    assert cut("\u6f22\u5b57\u6f22\u5b57", 6) == "\u6f22..."
    assert cut("abc", None) == "abc"


def python(code: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, **environment}, check=False
    )


@pytest.mark.usefixtures("world")
def test_a_locale_without_the_character_is_no_crash() -> None:
    result = python("from kjbod.output import Printer; Printer()('/mnt/\u6f22')", PYTHONIOENCODING="latin-1")
    assert result.returncode == 0
    assert result.stdout == b"/mnt/\\u6f22\n"


@pytest.mark.usefixtures("world")
def test_a_reader_that_goes_away_ends_the_output_in_silence() -> None:
    code = "import os; from kjbod.output import Printer; p = Printer(); [p('x' * 9000) for _ in range(99)]"
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.usefixtures("world")
def test_an_output_without_room_is_one_line() -> None:
    full = "from kjbod.output import Printer, OutputError\ntry:\n Printer()('x' * 9000)\nexcept OutputError as e:\n"
    with open("/dev/full", "wb") as sink:
        result = subprocess.run(
            [sys.executable, "-c", full + " raise SystemExit(e.message)"],
            stdout=sink,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert result.stderr == b"the output is not complete: standard output: No space left on device\n"
