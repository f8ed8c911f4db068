"""The syntax of java.util.Properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.config.properties import parse_properties, render_properties, trim

# A surrogate alone is no text in Java's files either.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.dictionaries(TEXT.filter(bool), TEXT), st.lists(TEXT, max_size=2))
def test_what_is_written_is_read_again(properties: dict[str, str], comments: list[str]) -> None:
    data = render_properties(properties, comments)
    assert data.isascii()
    assert parse_properties(data) == properties


@given(st.binary(max_size=300))
def test_any_bytes_are_properties_or_a_malformed_escape(data: bytes) -> None:
    try:
        parse_properties(data)
    except ValueError as error:
        assert str(error).startswith("Malformed \\uxxxx encoding")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a=1\nb:2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        (b"# no\n! no\n  a = 1 \n", {"a": "1 "}),
        (b"a=1,\\\n   2\n", {"a": "1,2"}),
        (b"a=1\na=2\n", {"a": "2"}),
        (b"a=\\u00e9\\t\\:\\=\\#\n", {"a": "é\t:=#"}),
        (b"a=\xe9\n", {"a": "é"}),
        (b"a=1\r\nb=2\r", {"a": "1", "b": "2"}),
        (b"a\n", {"a": ""}),
        (b"", {}),
    ],
)
def test_java_syntax(text: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(" \t k\x1f\x00", "k"), ("\x01k\x01", "k"), ("k\u00a0", "k\u00a0"), ("\u2003k\u0085", "\u2003k\u0085")],
)
def test_values_are_trimmed_as_by_java_so_that_a_secret_is_the_same_on_both_ends(value: str, expected: str) -> None:
    assert trim(value) == expected
