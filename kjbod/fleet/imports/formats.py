"""The published CSV formats: Backblaze's Drive Stats and Alibaba's SSD failure tickets. No Spark here.

Both have grown and changed columns over the years; each file says in its first line which ones it has.
"""

import csv
from collections.abc import Mapping, Sequence

from kjbod.fleet.fleet_error import FleetError

BACKBLAZE, ALIBABA = "backblaze", "alibaba"
REQUIRED: Mapping[str, tuple[str, ...]] = {
    BACKBLAZE: ("date", "serial_number", "model", "capacity_bytes", "failure"),
    ALIBABA: ("model", "failure_time", "disk_id", "node_id", "rack_id"),
}
BACKBLAZE_SMART: Mapping[str, str] = {
    "smart_realloc": "smart_5_raw",
    "smart_pending": "smart_197_raw",
    "smart_uncorrect": "smart_198_raw",
    "smart_reported_uncorrect": "smart_187_raw",
    "smart_command_timeout": "smart_188_raw",
    "smart_poh": "smart_9_raw",
    "smart_temp_c": "smart_194_raw",
}
"""Column of ``drive_day`` to the published one; what a file lacks is null."""
POH_MAX = 12 * 8766
"""Power-on hours of twelve years: no drive of these was that old; what says more counts something else."""
TEXT_MAX = 200
"""Characters of a serial number or a model's name that are believed."""


def header(source: str, line: str, where: str) -> tuple[str, ...]:
    """Columns that the first line of a file names, in lower case.

    Raises:
        FleetError: one that is needed is not among them, or one is there twice.
    """
    names = tuple(name.strip().lower() for name in next(csv.reader([line.lstrip("\ufeff").rstrip("\r\n")]), []))
    missing = [name for name in REQUIRED[source] if name not in names]
    if missing:
        raise FleetError(
            f"{where} is not a CSV file of {source}: its first line has no column"
            f" {', '.join(missing)}: give the files as they were published"
        )
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise FleetError(f"{where}: its first line has the column {twice[0]!r} twice: give the files as published")
    return names


def unnamed(names: Sequence[str]) -> tuple[str, ...]:
    """Names that Spark can tell apart: those of the file, and a number where it has none."""
    return tuple(name or f"_column_{number}" for number, name in enumerate(names))
