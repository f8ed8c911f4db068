"""Raw values of ATA attributes into which vendors pack more than one number. Pure.

A raw value has six bytes. Seagate puts three counts of 16 bits into that of attribute 188: all timeouts in the lowest
word, those that took more than 5 s and more than 7.5 s above it. Others keep the lowest and the highest temperature, or
minutes, above the value itself. smartctl prints some of them apart, and files of drive histories have the whole number.

Source: smartmontools' default formats of attributes (raw16(raw16), tempminmax, msec24hour32), smartctl(8) ``-v``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Packing:
    """Packing of a raw value.

    Attributes:
        above: greatest number that the attribute can count; a greater raw value has other numbers above the count.
        mask: bits of the count.
    """

    above: int
    mask: int


_BYTES: Final = Packing(0xFF, 0xFF)
_WORDS: Final = Packing(0xFFFF, 0xFFFF)
_THREE_WORDS: Final = Packing(0xFFFFFFFF, 0xFFFF)
"""For counts of errors and sectors: no disk has 4 billion of them."""
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
"""Attributes whose raw value is packed on disks that are in use; any other is one number."""


def unpacked(number: int, raw: int) -> int:
    """Return the count in the raw value of an attribute."""
    known = PACKED.get(number)
    return raw if known is None or raw <= known.above else raw & known.mask
