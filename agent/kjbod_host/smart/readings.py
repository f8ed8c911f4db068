"""Health data of one disk, and of a directory on several disks. Pure."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import fields, replace

RAW_BYTES_MAX: Final = 16 << 10
"""Maximum size of the raw attributes of a directory's disks, as JSON."""


class Smart(Struct, frozen=True, kw_only=True):
    """Health of a disk, as the disk reports it; None: not known.

    Attributes:
        at_ms: wall clock of the read.
        model: of the disk.
        serial: of the disk.
        firmware: its revision.
        unit: identifier of the logical unit, the same on each path to it, as the kernel has it (``wwid``).
        capacity_bytes: of the disk.
        passed: overall assessment by the disk itself.
        power_on_hours: hours that the disk was powered on.
        temp_c: present temperature.
        wear_pct: used part of its rated writes, in percent; may exceed 100.
        spare_pct: spare blocks left, in percent.
        media_errors: reads and writes that it could not complete (NVMe media errors, SCSI uncorrected errors).
        critical_warning: bits of NVMe's critical warning.
        realloc: sectors reallocated (attribute 5), SCSI: grown defects.
        pending: sectors that wait for a reallocation (197), SCSI: pending defects.
        uncorrect: sectors that an offline scan could not read (198).
        reported_uncorrect: errors that it reported to the host (187).
        command_timeout: commands that it gave up (188).
        recovery_ms: how long the disk tries to read or write a bad sector at most (ATA SCT ERC); 0: no limit is set.
        raw: raw attributes: of a disk by attribute, of a directory by disk.
    """

    at_ms: int | None = None
    model: str | None = None
    serial: str | None = None
    firmware: str | None = None
    unit: str | None = None
    capacity_bytes: int | None = None
    passed: bool | None = None
    power_on_hours: int | None = None
    temp_c: int | None = None
    wear_pct: int | None = None
    spare_pct: int | None = None
    media_errors: int | None = None
    critical_warning: int | None = None
    realloc: int | None = None
    pending: int | None = None
    uncorrect: int | None = None
    reported_uncorrect: int | None = None
    command_timeout: int | None = None
    recovery_ms: int | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_failing(self) -> bool:
        """Whether the disk itself says that it fails."""
        return self.passed is False or bool(self.critical_warning)


def over(facts: Smart, read: Smart | None) -> Smart:
    """Return the values that were read, completed with values from ``facts``."""
    if read is None:
        return facts
    missing = {one.name: getattr(facts, one.name) for one in fields(Smart) if getattr(read, one.name) in (None, {})}
    return replace(read, **missing)


def of_directory(disks: Mapping[str, Smart]) -> Smart | None:
    """Return the health of a directory on these disks, by kernel name: the worst of each value, the sum of the
    capacities, and all texts. A disk with several paths counts once. None: no disk was read."""
    if not disks:
        return None
    each = list(disks.values())
    verdicts = [one.passed for one in each if one.passed is not None]
    warnings = [one.critical_warning for one in each if one.critical_warning is not None]
    worst: dict[str, Callable[[Sequence[int]], int]] = {
        "at_ms": min,
        "power_on_hours": max,
        "temp_c": max,
        "wear_pct": max,
        "spare_pct": min,
        "media_errors": max,
        "realloc": max,
        "pending": max,
        "uncorrect": max,
        "reported_uncorrect": max,
        "command_timeout": max,
        "recovery_ms": longest_ms,
    }
    return Smart(
        model=_texts(one.model for one in each),
        serial=_texts(one.serial for one in each),
        firmware=_texts(one.firmware for one in each),
        unit=None,
        capacity_bytes=_of_known(sum, _capacities(disks)),
        passed=all(verdicts) if verdicts else None,
        critical_warning=_all_bits(warnings) if warnings else None,
        raw={name: dict(one.raw) for name, one in disks.items() if one.raw},
        **{name: _of_known(take, [getattr(one, name) for one in each]) for name, take in worst.items()},
    )


def _capacities(disks: Mapping[str, Smart]) -> list[int | None]:
    """Return the capacity of each disk in bytes. A disk with several paths (dm-multipath) counts once. Two units with
    the same serial number (actuators, namespaces) count as two."""
    found: dict[tuple[str | None, ...], int | None] = {}
    for name, one in disks.items():
        key = (one.unit,) if one.unit else (one.model, one.serial) if one.serial else (name,)
        found[key] = one.capacity_bytes if found.get(key) is None else found[key]
    return list(found.values())


def longest_ms(limits: Sequence[int]) -> int:
    """Return the longest of time limits in milliseconds; 0 is no limit."""
    return 0 if 0 in limits else max(limits)


def _texts(texts: Iterable[str | None]) -> str | None:
    return " ".join(dict.fromkeys(text for text in texts if text)) or None


def _all_bits(masks: Sequence[int]) -> int:
    together = 0
    for mask in masks:
        together |= mask
    return together


def _of_known(take: Callable[[Sequence[int]], int], values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return take(known) if known else None


def raw_json(raw: Mapping[str, Any]) -> str | None:
    """Return the raw attributes of a directory as compact JSON of at most :data:`RAW_BYTES_MAX`. ``left_out`` counts
    disks that do not fit. None: no attributes."""
    if not raw:
        return None
    kept, left_out = dict(raw), 0
    while True:
        told = kept | ({"left_out": left_out} if left_out else {})
        text = json.dumps(told, separators=(",", ":"))
        if len(text) <= RAW_BYTES_MAX:
            return text
        kept.popitem()
        left_out += 1


def columns(smart: Smart | None, *, raw: bool) -> dict[str, Any]:
    """Return the columns of :class:`kjbod.fleet.schema.Sample`; with ``raw`` also the raw attributes."""
    if smart is None:
        return {}
    return {
        "firmware": smart.firmware,
        "capacity_bytes": smart.capacity_bytes,
        "smart_ts": smart.at_ms,
        "smart_passed": None if smart.passed is None else int(smart.passed),
        "smart_poh": smart.power_on_hours,
        "smart_temp_c": smart.temp_c,
        "smart_wear_pct": smart.wear_pct,
        "smart_spare_pct": smart.spare_pct,
        "smart_media_errors": smart.media_errors,
        "smart_critical_warning": smart.critical_warning,
        "smart_realloc": smart.realloc,
        "smart_pending": smart.pending,
        "smart_uncorrect": smart.uncorrect,
        "smart_reported_uncorrect": smart.reported_uncorrect,
        "smart_command_timeout": smart.command_timeout,
        "smart_raw": raw_json(smart.raw) if raw else None,
    }
