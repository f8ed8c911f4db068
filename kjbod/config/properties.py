"""The syntax of ``java.util.Properties``, as the files of Kafka use it.

Files are read as ISO-8859-1: each byte is a character, and anything else is written ``\\uXXXX``. So every byte sequence
is text, and the only thing that can be malformed is an escape.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from kjbod.bare_import import import_alone

_reading = import_alone("javaproperties", "reading")
_writing = import_alone("javaproperties", "writing")

_TRIMMED = "".join(map(chr, range(0x21)))


def parse_properties(text: bytes) -> dict[str, str]:
    """The keys and values of a properties file; of a key that is there twice the last one (``Properties.load``).

    Raises:
        ValueError: a malformed ``\\uXXXX``.
    """
    try:
        return dict(_reading.loads(text))
    except _reading.InvalidUEscapeError as error:
        raise ValueError(f"Malformed \\uxxxx encoding: {error.escape}") from None


def render_properties(properties: Mapping[str, str], comments: Iterable[str] = ()) -> bytes:
    """A properties file with ``comments`` first, then ``key=value`` lines in the order given, LF line ends; ASCII."""
    lines = [_writing.to_comment(comment, ensure_ascii=True) for comment in comments]
    lines += [_writing.join_key_value(key, value) for key, value in properties.items()]
    return "".join(f"{line}\n" for line in lines).encode("ascii")


def java_timestamp(moment: datetime) -> str:
    """``Date.toString()`` of a moment with a time zone: ``Mon Sep 02 14:00:54 UTC 2024``."""
    return str(_writing.java_timestamp(moment))


def trim(value: str) -> str:
    """A value without the blanks and control characters around it, as by Java's ``String.trim``, with which Kafka reads
    each (``ConfigDef.parseType``). Python's ``strip`` takes other blanks too: a secret may end with one."""
    return value.strip(_TRIMMED)
