"""The wear of an SSD, by the attributes that ATA disks have for it. Pure.

The number of an attribute says nothing: 231 is the life that is left on some disks and a temperature on others. The
name that smartmontools' drive database gives it does, so the rule is made of words: a name has a word for the life of
the disk, and one for *left* or *used*.

An attribute has a normalized value, 1 to 253, and a raw one. Which of them counts differs:

==================================  ===================================================================================
normalized value                    wear in percent
==================================  ===================================================================================
1 to 99                             100 less the normalized value
100, and a raw percentage           by the raw value: the firmware does not maintain the normalized one
0, or none, and a raw percentage    by the raw value: the attribute has no normalized one
0, and a raw value of 100 or more   the raw value: what is used, by a firmware that normalizes to 100 less the raw value
                                    and to 0 at least
100, and no raw percentage          0
==================================  ===================================================================================

A name for *used* has that in its raw value always. A raw value that smartctl prints in hexadecimal or in parts is no
percentage.

Source: names and formats of smartmontools' drive database; ACS-3, "SMART READ DATA", for the range of the normalized
value.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

USED_MAX: Final = 255
"""Maximum percentage of its rated life that a disk can report as used: one byte in NVMe and in ATA statistics."""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|0\.01%")
_LIFE: Final = frozenset({"life", "lifetime", "endurance"})
_LEFT: Final = frozenset({"left", "remain", "remaining"})
_USED: Final = frozenset({"used"})
_OF_SOMETHING_ELSE: Final = frozenset(
    {"battery", "block", "blocks", "cap", "capacitor", "energy", "spare", "spares", "supercap"}
)
_HUNDREDTHS: Final = "0.01%"
_INDICATOR: Final = re.compile(r"media_wearout_indicator", re.I)
_LEVELING: Final = re.compile(r"wear_level+ing(_count|_ct)?|(ave|avg|average)_block-erase_(count|ct)", re.I)
_THREE_WORDS: Final = 0xFFFFFFFF


def wear_of(attributes: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the part of its rated life that a disk has used, in percent; None: no attribute tells.

    An attribute that is named after the life of the disk goes before one that is named after erasures; of several of a
    kind the worst counts.

    Args:
        attributes: of ATA, as smartctl's JSON has them.
    """
    rows = list(attributes)
    for rule in (_life, _wearing):
        told = [used for row in rows if (used := rule(row)) is not None]
        if told:
            return max(told)
    return None


def _life(row: Mapping[str, Any]) -> int | None:
    words = set(_words(row))
    if not words & _LIFE or words & _OF_SOMETHING_ELSE or not words & (_LEFT | _USED):
        return None
    normalized, raw = _normalized(row), _percentage(row, 100 if _HUNDREDTHS in words else 1)
    return _by_left(normalized, raw) if words & _LEFT else _by_used(normalized, raw)


def _by_left(normalized: int | None, raw: float | None) -> int | None:
    if normalized is not None and 0 < normalized < 100:
        return 100 - normalized
    if normalized == 0 and raw is not None and raw >= 100:
        return int(raw)
    if raw is not None and 0 < raw <= 100:
        return int(100 - raw)
    return None if normalized is None else 100 - normalized


def _by_used(normalized: int | None, raw: float | None) -> int | None:
    if raw:
        return int(raw)
    if normalized:
        return 100 - normalized
    return None if raw is None else int(raw)


def _wearing(row: Mapping[str, Any]) -> int | None:
    name, normalized = row.get("name"), _normalized(row)
    if not isinstance(name, str):
        return None
    if _INDICATOR.fullmatch(name) and (raw := _raw(row)) is not None and raw > _THREE_WORDS:
        # SanDisk and WD: three words, the worst of them below; its upper byte is what is used in percent.
        return raw >> 8 & 0xFF
    named = _INDICATOR.fullmatch(name) or _LEVELING.fullmatch(name)
    return 100 - normalized if named and normalized else None


def _words(row: Mapping[str, Any]) -> list[str]:
    """Return the words of an attribute's name, in lower case: ``DriveLife_Remaining%`` has "drive", "life" and
    "remaining"."""
    name = row.get("name")
    return [word.lower() for word in _WORD.findall(name)] if isinstance(name, str) else []


def _normalized(row: Mapping[str, Any]) -> int | None:
    """Return the normalized value of an attribute, 0 to 100; None: it has none."""
    value = row.get("value")
    return value if type(value) is int and 0 <= value <= 100 else None


def _raw(row: Mapping[str, Any]) -> int | None:
    raw = row.get("raw")
    value = raw.get("value") if isinstance(raw, Mapping) else None
    return value if type(value) is int and value >= 0 else None


def _percentage(row: Mapping[str, Any], unit: int) -> float | None:
    """Return the raw value in percent; None: it is no percentage."""
    value = _raw(row)
    if value is None or value > USED_MAX * unit or row["raw"].get("string", str(value)) != str(value):
        return None
    return value / unit
