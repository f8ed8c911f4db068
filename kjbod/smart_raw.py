"""Unpack raw values of ATA attributes in which vendors store several numbers. Pure.

A raw value has six bytes. Seagate stores three 16-bit counts in attribute 188: all timeouts in the lowest word, those
longer than 5 s and 7.5 s above it. Others store temperatures or minutes above the value itself. smartctl prints some of
them separately; files of drive histories have the whole number.

Source: smartmontools' default formats of attributes (raw16(raw16), tempminmax, msec24hour32), smartctl(8) ``-v``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Packing:
    """Packing of a raw value.

    Attributes:
        above: greatest possible count of the attribute; a greater raw value has other numbers above the count.
        mask: bits of the count.
    """

    above: int
    mask: int


_BYTES: Final = Packing(0xFF, 0xFF)
_WORDS: Final = Packing(0xFFFF, 0xFFFF)
_THREE_WORDS: Final = Packing(0xFFFFFFFF, 0xFFFF)
"""For counts of errors and sectors: no disk reaches 4 billion."""
_MILLISECONDS_ABOVE: Final = Packing(0xFFFFFFFF, 0xFFFFFFFF)
PACKED: Final[Mapping[int, Packing]] = {
    5: _WORDS,
    9: _MILLISECONDS_ABOVE,
    183: _THREE_WORDS,
    184: _THREE_WORDS,
    187: _THREE_WORDS,
    188: _WORDS,
    190: _BYTES,
    194: _BYTES,
    196: _WORDS,
    197: _THREE_WORDS,
    198: _THREE_WORDS,
    199: _THREE_WORDS,
}
"""Attributes with a packed raw value on disks in use; other attributes are one number."""


def unpacked(number: int, raw: int) -> int:
    """Return the count in the raw value of an attribute."""
    known = PACKED.get(number)
    return raw if known is None or raw <= known.above else raw & known.mask
