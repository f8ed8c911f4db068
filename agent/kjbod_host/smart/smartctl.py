"""Parser for the output of ``smartctl --json`` (smartmontools 7.0 and later). Pure.

Source: smartctl(8), "EXIT STATUS" and ``--json``; ATA attributes as its drive database names them; NVM Express base
specification, "SMART / Health Information"; SCSI log pages as smartctl prints them. A document is what a disk and its
firmware say, so nothing in it is relied on: what is absent, of another type or out of range is not known.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kjbod.smart_raw import unpacked
from kjbod_host.smart.readings import Smart, longest_ms, over
from kjbod_host.smart.wear import wear_of

EXIT_BITS: Final = (
    "the command line was not understood",
    "the device could not be opened or identified, or is in standby",
    "a command to the disk failed, or a checksum in its answer was wrong",
    "the disk says that it is failing",
    "attributes are below their thresholds",
    "attributes have been below their thresholds",
    "the error log has entries",
    "the self-test log has failures",
)
"""Bits of the exit status, from bit 0 on. With the first two nothing was read; the others are about the disk."""
UNREAD_BITS: Final = 0b11
JSON_SINCE: Final = 7
"""Major version of the first smartmontools with ``--json``."""
_OLD_VERSION: Final = re.compile(r"smartctl (?:version )?(?:pre-)?(([0-9]{1,4})\.[0-9]{1,4})")
TEXT_MAX: Final = 128
"""Maximum number of characters of a model, a serial number and similar texts."""
ENTRIES_MAX: Final = 64
"""Maximum number of attributes of a disk; ATA has 30 at most."""
_LONG_MAX: Final = 2**63 - 1
_TEMPERATURES: Final = range(-60, 201)
_REALLOC, _REPORTED, _TIMEOUT, _PENDING, _UNCORRECT = 5, 187, 188, 197, 198
_HOURS, _TEMPERATURE, _AIRFLOW, _RESERVED = 9, 194, 190, 232
_ENDURANCE: Final = "Percentage Used Endurance Indicator"


def parse_smartctl(document: object) -> Smart | None:
    """Return the health of the disk in a document; None: the document has no data about a disk.

    Args:
        document: the parsed JSON, whatever it is.
    """
    if not isinstance(document, Mapping):
        return None
    common = Smart(
        model=_text(document, "model_name") or _text(document, "scsi_model_name"),
        serial=_text(document, "serial_number"),
        firmware=_first_text(document, "firmware_version", "scsi_revision", "revision"),
        capacity_bytes=_first_count(document, ("user_capacity", "bytes"), ("nvme_total_capacity",)),
        passed=_flag(document, "smart_status", "passed"),
        power_on_hours=_count(document, "power_on_time", "hours"),
        temp_c=_temperature(_at(document, "temperature", "current")),
        wear_pct=_wear(document),
        spare_pct=_count(document, "spare_available", "current_percent"),
    )
    for kind in (_nvme, _ata, _scsi):
        common = over(kind(document), common)
    return None if common == Smart() else common


def exit_status(document: object) -> int | None:
    """Return the exit status in a document; None: it is no document of smartctl."""
    return _count(document, "smartctl", "exit_status")


def explain(status: int) -> str:
    """Return an exit status in words; empty for 0."""
    return "; ".join(text for bit, text in enumerate(EXIT_BITS) if status >> bit & 1)


def why_unread(document: object) -> str | None:
    """Return why smartctl could not read the disk, in one line; None: it could.

    Args:
        document: the parsed JSON, or the text that is none.
    """
    status = exit_status(document)
    if status is None:
        return why_no_json(document) or "no document of smartctl's"
    if not status & UNREAD_BITS:
        return None
    messages = _at(document, "smartctl", "messages")
    said = [_text(one, "string") for one in messages[:1]] if isinstance(messages, list) else []
    return f"exit status {status}: " + (next((text for text in said if text), None) or explain(status & UNREAD_BITS))


def why_no_json(text: object) -> str | None:
    """Return a line about a smartctl that is too old for JSON; None: the output does not show that."""
    found = _OLD_VERSION.match(text) if isinstance(text, str) else None
    if found is None or int(found[2]) >= JSON_SINCE:
        return None
    return f"smartctl {found[1]} knows no JSON: smartmontools {JSON_SINCE}.0 or later is needed"


def parse_facts(document: object) -> Smart:
    """Return the facts of sysfs about a disk, from the answer of :mod:`.asker`."""
    return Smart(
        model=_text(document, "model"),
        serial=_text(document, "serial"),
        firmware=_text(document, "firmware"),
        unit=_text(document, "wwid"),
        capacity_bytes=_count(document, "capacity_bytes"),
        temp_c=_temperature(_at(document, "temp_c")),
    )


# --------------------------------------------------------------------------------------------------- kinds of disks


def _nvme(document: object) -> Smart:
    log = _at(document, "nvme_smart_health_information_log")
    return Smart(
        temp_c=_temperature(_at(log, "temperature")),
        power_on_hours=_count(log, "power_on_hours"),
        wear_pct=_count(log, "percentage_used"),
        spare_pct=_count(log, "available_spare"),
        media_errors=_count(log, "media_errors"),
        critical_warning=_count(log, "critical_warning"),
        raw=dict(_numbers(log)),
    )


def _ata(document: object) -> Smart:
    table = _attributes(document)
    return Smart(
        realloc=_raw(table, _REALLOC),
        pending=_raw(table, _PENDING),
        uncorrect=_raw(table, _UNCORRECT),
        reported_uncorrect=_raw(table, _REPORTED),
        command_timeout=_raw(table, _TIMEOUT),
        recovery_ms=_recovery_ms(_at(document, "ata_sct_erc")),
        power_on_hours=_raw(table, _HOURS),
        temp_c=_packed_temperature(table, _TEMPERATURE) or _packed_temperature(table, _AIRFLOW),
        spare_pct=_spare(table.get(_RESERVED)),
        raw={str(number): _row(attribute) for number, attribute in table.items()},
    )


def _recovery_ms(limits: object) -> int | None:
    """Return the longer limit of reads and writes; 0 without a limit; None where the disk does not tell."""
    found = []
    for kind in ("read", "write"):
        enabled, deciseconds = _flag(limits, kind, "enabled"), _count(limits, kind, "deciseconds")
        if enabled is not None:
            found.append(100 * (deciseconds or 0) if enabled else 0)
    return longest_ms(found) if found else None


def _scsi(document: object) -> Smart:
    errors = _at(document, "scsi_error_counter_log")
    uncorrected = [_count(errors, kind, "total_uncorrected_errors") for kind in ("read", "write", "verify")]
    known = [count for count in uncorrected if count is not None]
    defects = _count(document, "scsi_grown_defect_list")
    pending = _count(document, "scsi_pending_defects", "count")
    facts = {"grown_defects": defects, "pending_defects": pending}
    raw = {name: value for name, value in facts.items() if value is not None}
    if isinstance(errors, Mapping):
        for kind in ("read", "write", "verify"):
            raw |= {f"{kind}.{name}": value for name, value in _numbers(errors.get(kind))}
    return Smart(
        realloc=defects,
        pending=pending,
        media_errors=min(sum(known), _LONG_MAX) if known else None,
        wear_pct=_count(document, "scsi_percentage_used_endurance_indicator"),
        raw=raw,
    )


# ------------------------------------------------------------------------------------------------------ ATA attributes


def _attributes(document: object) -> dict[int, Mapping[str, Any]]:
    table = _at(document, "ata_smart_attributes", "table")
    rows = [row for row in table[:ENTRIES_MAX] if isinstance(row, Mapping)] if isinstance(table, list) else []
    numbered = [(_count(row, "id"), row) for row in rows]
    return {number: row for number, row in numbered if number is not None and 0 < number < 256}


def _row(attribute: Mapping[str, Any]) -> list[int | None]:
    """Return normalized value, worst value, threshold and raw value of an attribute."""
    return [*(_count(attribute, name) for name in ("value", "worst", "thresh")), _count(attribute, "raw", "value")]


def _raw(table: Mapping[int, Mapping[str, Any]], number: int) -> int | None:
    """Return the count in a raw value. If smartctl splits a packed value, its text begins with the count, as in ``8 (0
    12)`` or ``31427h+04m``; three words, ``1 2 3``, begin with the highest word."""
    text = _at(table.get(number), "raw", "string")
    if isinstance(text, str) and (first := re.match(r"([0-9]{1,18})(?: \(|[^0-9x ])", text)) is not None:
        return int(first[1])
    value = _count(table.get(number), "raw", "value")
    return None if value is None else unpacked(number, value)


def _packed_temperature(table: Mapping[int, Mapping[str, Any]], number: int) -> int | None:
    value = _count(table.get(number), "raw", "value")
    return None if value is None else _temperature(unpacked(number, value))


def _wear(document: object) -> int | None:
    """Return the wear in percent: from the standard statistics, else from attributes, else smartctl's guess from a
    normalized value."""
    for entry in _statistics(document):
        if _at(entry, "name") == _ENDURANCE and (used := _count(entry, "value")) is not None:
            return used
    used = wear_of(_attributes(document).values())
    return _count(document, "endurance_used", "current_percent") if used is None else used


def _statistics(document: object) -> Iterator[object]:
    pages = _at(document, "ata_device_statistics", "pages")
    for page in pages[:ENTRIES_MAX] if isinstance(pages, list) else []:
        table = _at(page, "table")
        yield from table[:ENTRIES_MAX] if isinstance(table, list) else []


def _spare(attribute: Mapping[str, Any] | None) -> int | None:
    left = _count(attribute, "value")
    named = _at(attribute, "name") in ("Available_Reservd_Space", "Available_Reserved_Space")
    return left if named and left is not None and left <= 100 else None


# ------------------------------------------------------------------------------------------------------------- values


def _at(document: object, *path: str) -> Any:
    for name in path:
        if not isinstance(document, Mapping):
            return None
        document = document.get(name)
    return document


def _count(document: object, *path: str) -> int | None:
    value = _at(document, *path)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(value, _LONG_MAX) if is_count else None


def _first_count(document: object, *paths: tuple[str, ...]) -> int | None:
    return next((value for path in paths if (value := _count(document, *path)) is not None), None)


def _flag(document: object, *path: str) -> bool | None:
    value = _at(document, *path)
    return value if isinstance(value, bool) else None


def _text(document: object, *path: str) -> str | None:
    value = _at(document, *path)
    if not isinstance(value, str):
        return None
    return " ".join("".join(sign if sign.isprintable() else " " for sign in value[:TEXT_MAX]).split()) or None


def _first_text(document: object, *names: str) -> str | None:
    return next((text for name in names if (text := _text(document, name))), None)


def _temperature(value: object) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and value in _TEMPERATURES else None  # type: ignore[return-value]


def _numbers(mapping: object) -> Iterator[tuple[str, int]]:
    """Yield the counts of a log, by name."""
    for name, _ in list(mapping.items())[:ENTRIES_MAX] if isinstance(mapping, Mapping) else []:
        if isinstance(name, str) and len(name) <= TEXT_MAX and (value := _count(mapping, name)) is not None:
            yield name, value
