"""Syntax of ``java.util.Properties``, as in Kafka's files.

Files are read as ISO-8859-1: each byte is a character, and other characters are written ``\\uXXXX``. So every byte
sequence is valid text, and only an escape can be malformed.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from kjbod.bare_import import import_alone

_reading = import_alone("javaproperties", "reading")
_writing = import_alone("javaproperties", "writing")

_TRIMMED = "".join(map(chr, range(0x21)))


def parse_properties(text: bytes) -> dict[str, str]:
    """Return the keys and values of a properties file; of a repeated key the last value counts (``Properties.load``).

    Raises:
        ValueError: a malformed ``\\uXXXX``.
    """
    try:
        return dict(_reading.loads(text))
    except _reading.InvalidUEscapeError as error:
        raise ValueError(f"Malformed \\uxxxx encoding: {error.escape}") from None


def render_properties(properties: Mapping[str, str], comments: Iterable[str] = ()) -> bytes:
    """Return a properties file: ``comments`` first, then ``key=value`` lines in the given order, LF line ends;
    ASCII."""
    lines = [_writing.to_comment(comment, ensure_ascii=True) for comment in comments]
    lines += [_writing.join_key_value(key, value) for key, value in properties.items()]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def java_timestamp(moment: datetime) -> str:
    """Return ``Date.toString()`` of a moment with a time zone: ``Mon Sep 02 14:00:54 UTC 2024``."""
    return str(_writing.java_timestamp(moment))


def trim(value: str) -> str:
    """Return a value without surrounding spaces and control characters, like Java's ``String.trim`` in
    ``ConfigDef.parseType``. Python's ``strip`` removes other blanks too, which may be part of a secret."""
    return value.strip(_TRIMMED)
