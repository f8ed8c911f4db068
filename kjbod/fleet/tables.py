"""The tables of a lake: what each row stands for, its columns, its key. The one place that knows them.

A lake has four layers. *silver* is what the agents wrote, each good line of each trusted file, typed: ``samples`` and
``events``. *audit* is the account of it: a row for each file, and each line that was set aside. *gold* is computed from
silver, hour by hour and day by day, and can be made again at any time: the same silver gives the same bytes. *imported*
is the history of other people's drives.

Rules of all gold tables, which is why they add up without a window over all samples and why any order of the inputs
gives the same bytes: sums are integers (a sum of doubles depends on its order), histograms are counts by
:func:`kjbod.fleet.schema.latency_bucket`, "last" is the last value that was known, that of the newest ``(ts, mono_ns,
seq)`` and, of equals, the greatest, and rows are sorted by their key. Times are wall ms since 1970 UTC, sizes bytes,
unless a name has a unit. ``date`` is ``yyyy-MM-dd`` and ``hour`` is ``HH``, of ``ts``, in UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kjbod.fleet.schema import EVENT_KEY, EVENTS, SAMPLE_KEY, SAMPLES, Event, Sample, columns

LAKE_VERSION = 1
"""Format of a lake: the layout of its files, of its state and of these tables. Greater ones are not touched."""

SILVER, AUDIT, GOLD, IMPORTED = "silver", "audit", "gold", "imported"
LAYERS = (SILVER, AUDIT, GOLD, IMPORTED)

COUNTERS = ("io_errors", "reads", "read_bytes", "writes", "write_bytes", "busy_ms")
"""Counters of a disk, which begin at zero at ``counters_since``."""
SMART_GROWING = (
    "smart_realloc",
    "smart_pending",
    "smart_uncorrect",
    "smart_reported_uncorrect",
    "smart_command_timeout",
    "smart_media_errors",
)
"""Health counters of a disk of which it is the growth that tells: SMART 5, 197, 198, 187, 188, and media errors."""
SMART_LEVELS = (
    "smart_passed",
    "smart_poh",
    "smart_temp_c",
    "smart_wear_pct",
    "smart_spare_pct",
    "smart_critical_warning",
)
HISTOGRAM = "MAP<STRING,BIGINT>"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the lake."""

    layer: str
    name: str
    grain: str
    """What a row is, for people."""
    columns: Mapping[str, str]
    """Column to Spark SQL type, in order, ``date`` (and ``hour``) included."""
    key: tuple[str, ...]
    """No two rows have the same values of these, null taken as a value; rows are sorted by them."""
    hourly: bool = False
    """Whether it is kept by date and hour; else by date."""

    @property
    def full_name(self) -> str:
        """As in a lake's state and in queries: ``gold.dir_hour``."""
        return f"{self.layer}.{self.name}"

    @property
    def ddl(self) -> str:
        """All columns as a Spark DDL string."""
        return ", ".join(f"`{name}` {spark_type}" for name, spark_type in self.columns.items())


_AT: Mapping[str, str] = {"date": "STRING", "hour": "STRING"}
_ORIGIN: Mapping[str, str] = {
    "_file": "STRING",  # base name of the file that it came in
    "_line": "BIGINT",  # CRC-32 of the line: of two rows with one key that differ the smaller one counts
    "_skewed": "BOOLEAN",  # ts is more than two hours outside of the hour in the file's name
    # Columns that this version does not know, as a JSON object; null where there are none. Of a line that is no strict
    # JSON: the line.
    "_more": "STRING",
}
_DIRECTORY: Mapping[str, str] = {
    "fleet": "STRING",
    "rack": "STRING",
    "host": "STRING",
    "broker_id": "BIGINT",
    "path": "STRING",
}
_DISK: Mapping[str, str] = {
    "dir_id": "STRING",
    "device": "STRING",
    "model": "STRING",
    "serial": "STRING",
    "firmware": "STRING",
    "capacity_bytes": "BIGINT",
}
_DIRECTORY_KEY = ("fleet", "host", "broker_id", "path", "dir_id")

_MEASURES: Mapping[str, str] = {
    "samples": "BIGINT",
    "boots": "BIGINT",  # runs of the agent that were seen (in a day: the largest number of any hour)
    "skewed": "BIGINT",  # of the samples
    "first_ts": "BIGINT",
    "last_ts": "BIGINT",
    "interval_ms": "BIGINT",  # mean time between two samples of an hour with one run (in a day: the least)
    # state: what the newest sample or event says; samples by state; changes of state and failures are those of events
    "state": "STRING",
    "state_since": "BIGINT",
    "states": HISTOGRAM,
    "transitions": "BIGINT",  # from online to anything else
    "failures": "BIGINT",
    "failed_first_ts": "BIGINT",  # of the first and of the last of the failures
    "failed_last_ts": "BIGINT",
    "failure_cause": "STRING",  # of the first
    # room: the last, the extremes, and the sums for a straight line through bytes_used over time. x is in seconds since
    # the beginning of the hour (of a day's row: of the day), y in bytes; exact, so that lines of hours and days add up.
    "bytes_total": "BIGINT",
    "used_first": "BIGINT",
    "used_last": "BIGINT",
    "used_min": "BIGINT",
    "used_max": "BIGINT",
    "line_n": "BIGINT",
    "line_x": "DECIMAL(38,0)",
    "line_y": "DECIMAL(38,0)",
    "line_xy": "DECIMAL(38,0)",
    "line_xx": "DECIMAL(38,0)",
    "partitions": "BIGINT",
    "leaders": "BIGINT",
    "leaders_max": "BIGINT",
    # counters: of the first and the last sample, and what was added meanwhile, resets left out. A day has what was
    # added between its hours as well.
    "counters_since_first": "BIGINT",  # of the first sample
    "counters_since": "BIGINT",  # of the last sample
    "resets": "BIGINT",
    **{f"{name}_{part}": "BIGINT" for name in COUNTERS for part in ("first", "last", "added")},
    # probes
    "probes": "BIGINT",
    "probe_failures": "BIGINT",
    "probe_histogram": HISTOGRAM,
    "probe_us_max": "BIGINT",
    **{f"probe_{part}_us_sum": "BIGINT" for part in ("write", "sync", "read")},
    "probe_n": "BIGINT",  # samples that have probe_write_us
    # what the disk says of itself
    **{f"{name}_{part}": "BIGINT" for name in SMART_GROWING for part in ("first", "last")},
    "smart_passed": "BIGINT",  # the least
    "smart_poh": "BIGINT",  # the last, as wear and spare
    "smart_temp_c_max": "BIGINT",
    "smart_wear_pct": "BIGINT",
    "smart_spare_pct": "BIGINT",
    "smart_critical_warning": "BIGINT",  # all bits that were seen
}

SILVER_SAMPLES = Table(
    SILVER, SAMPLES, "a log directory at one moment", {**columns(Sample), **_ORIGIN, **_AT}, SAMPLE_KEY, hourly=True
)
SILVER_EVENTS = Table(
    SILVER, EVENTS, "something that happened", {**columns(Event), **_ORIGIN, **_AT}, EVENT_KEY, hourly=True
)

AUDIT_FILES = Table(
    AUDIT,
    "files",
    "a report file as it was taken in; date is that of the hour in its name (of its lines where it has none)",
    {
        "stream": "STRING",
        "file": "STRING",  # base name
        "uri": "STRING",
        "inbox": "STRING",
        "host": "STRING",
        "file_hour": "STRING",  # yyyymmddhh of its name; null where it has none
        "bytes": "BIGINT",
        "lines": "BIGINT",  # without the trailer
        "good_lines": "BIGINT",
        "bad_lines": "BIGINT",
        "status": "STRING",  # the table on top of kjbod.fleet.read, and "repeated": kept before, under this name
        "kept": "BOOLEAN",
        "trailer_rows": "BIGINT",
        "trailer_crc": "BIGINT",
        "crc": "BIGINT",  # of its lines, as a trailer has it
        "first_ts": "BIGINT",
        "last_ts": "BIGINT",
        "ingested_ts": "BIGINT",
        "run": "STRING",
        "batch": "BIGINT",
        "date": "STRING",
    },
    ("stream", "file", "uri", "run", "batch"),
)
AUDIT_QUARANTINE = Table(
    AUDIT,
    "quarantine",
    "a line that was set aside",
    {
        "stream": "STRING",
        "file": "STRING",
        "uri": "STRING",
        "reason": "STRING",
        "line": "STRING",
        "run": "STRING",
        "batch": "BIGINT",
        "date": "STRING",
    },
    ("stream", "file", "line"),
)

DIR_HOUR = Table(
    GOLD,
    "dir_hour",
    "a log directory in an hour; a disk that took the place of another in it has a row of its own",
    # The runs of the first and the last sample: where counters_since is not known, counters grow in a run.
    {**_DIRECTORY, **_DISK, **_MEASURES, "boot_first": "STRING", "boot_last": "STRING", **_AT},
    _DIRECTORY_KEY,
    hourly=True,
)
DIR_DAY = Table(
    GOLD,
    "dir_day",
    "the same in a day, of its hours; line_x counts from the beginning of the day",
    {
        **_DIRECTORY,
        **_DISK,
        "hours": "BIGINT",
        "hours_online": "BIGINT",  # of them, those in which each sample was online: it was well
        "online_first_ts": "BIGINT",  # the first and the last sample of those
        "online_last_ts": "BIGINT",
        **_MEASURES,
        # Of the last hour that has samples: what the hours after it go on from, without those before it.
        "counters_end": "STRUCT<counters_since: BIGINT, boot_last: STRING, "
        + ", ".join(f"{name}_last: BIGINT" for name in COUNTERS)
        + ">",
        "date": "STRING",
    },
    _DIRECTORY_KEY,
)
_GROUP: Mapping[str, str] = {
    "directories": "BIGINT",
    "samples": "BIGINT",
    "not_online": "BIGINT",  # samples in any other state
    "failures": "BIGINT",
    "bytes_total": "BIGINT",  # of the last samples of each directory, as the next ones
    "used_last": "BIGINT",
    "leaders": "BIGINT",
    **{f"{name}_added": "BIGINT" for name in COUNTERS},
    "probes": "BIGINT",
    "probe_failures": "BIGINT",
    "probe_histogram": HISTOGRAM,
}
HOST_DAY = Table(
    GOLD,
    "host_day",
    "a broker's directories in a day",
    {
        **{name: kind for name, kind in _DIRECTORY.items() if name != "path"},
        **_GROUP,
        "used_ratio_min": "DOUBLE",
        "used_ratio_max": "DOUBLE",
        "busy_ms_max": "BIGINT",  # of its busiest directory
        "date": "STRING",
    },
    ("fleet", "host", "broker_id"),
)
RACK_MODEL_HOUR = Table(
    GOLD,
    "rack_model_hour",
    "the directories of one model in one rack in an hour",
    {"fleet": "STRING", "rack": "STRING", "model": "STRING", **_GROUP, **_AT},
    ("fleet", "rack", "model"),
    hourly=True,
)
AGENT_DAY = Table(
    GOLD,
    "agent_day",
    "an agent or guard in a day, as its events and samples have it",
    {
        "fleet": "STRING",
        "rack": "STRING",
        "host": "STRING",
        "broker_id": "BIGINT",
        "status": "STRING",  # the last of unfenced | fenced | started | stopped; null where no event of the day says
        "reason": "STRING",
        "exit_code": "STRING",
        "role": "STRING",  # of the last agent_started of the day, as mode and version
        "mode": "STRING",
        "version": "STRING",
        "boots": "BIGINT",
        "first_ts": "BIGINT",
        "last_ts": "BIGINT",
        "interval_ms": "BIGINT",  # between two samples of one directory in one run, the least mean
        "would": "BIGINT",
        "acts": "BIGINT",
        "failed_acts": "BIGINT",
        "refusals": "BIGINT",
        "skewed": "BIGINT",  # lines whose clock was hours from that of their file's name
        "date": "STRING",
    },
    ("fleet", "host", "broker_id"),
)
INCIDENT = Table(
    GOLD,
    "incident",
    "a verdict on one directory in one run of an agent; date is that of the verdict. Seen to the end of the next day",
    {
        "incident": "STRING",  # the disk's in this run: of several verdicts on it the same
        "ts": "BIGINT",
        "fleet": "STRING",
        "rack": "STRING",
        "host": "STRING",
        "broker_id": "BIGINT",
        "boot_id": "STRING",
        "path": "STRING",
        "dir_id": "STRING",
        "device": "STRING",
        "model": "STRING",
        "serial": "STRING",
        "cause": "STRING",
        "evidence": "STRING",
        "errno": "STRING",
        "call": "STRING",
        "role": "STRING",
        "version": "STRING",
        "partitions": "BIGINT",
        "leaders": "BIGINT",
        "outcome": "STRING",  # acknowledged | timeout shutdown | agent stopped | open
        "stop_reason": "STRING",
        "exit_code": "STRING",
        **{
            f"{name}_ms": "DOUBLE"
            for name in ("detect", "send", "acknowledge", "move", "give_up", "total")  # see rollup.happenings
        },
        "deeds": "ARRAY<STRUCT<after_ms: DOUBLE, means: STRING, outcome: STRING, reason: STRING, took_ms: BIGINT,"
        " count: BIGINT>>",
        "date": "STRING",
    },
    ("fleet", "host", "broker_id", "path", "boot_id", "ts"),
)
TIMELINE = Table(
    GOLD,
    "timeline",
    "an event; of replica_created and assignments_acknowledged one row for each directory and second, with their count",
    {
        "ts": "BIGINT",
        "mono_ns": "BIGINT",
        "fleet": "STRING",
        "host": "STRING",
        "broker_id": "BIGINT",
        "boot_id": "STRING",
        "path": "STRING",
        "dir_id": "STRING",
        "kind": "STRING",
        "count": "BIGINT",
        "partitions": "BIGINT",
        "leaders": "BIGINT",
        "attrs": "MAP<STRING,STRING>",
        "date": "STRING",
    },
    ("ts", "host", "broker_id", "boot_id", "mono_ns", "path", "kind", "dir_id"),
)
DRIVE_DAY = Table(
    GOLD,
    "drive_day",
    "a drive that was seen on a day: a day of exposure. Drives without a serial number are known by their dir_id",
    {
        "source": "STRING",  # kjbod; imported.drive_day has backblaze
        "fleet": "STRING",
        "site": "STRING",  # the rack
        "host": "STRING",
        "path": "STRING",
        "dir_id": "STRING",
        "drive": "STRING",  # the serial number, host:path where several hosts have that number, or the dir_id
        "model": "STRING",
        "firmware": "STRING",
        "capacity_bytes": "BIGINT",
        "failed": "BIGINT",  # 1 on the day of its first failure; it is exposed no more after it, until it was replaced
        "failed_ts": "BIGINT",
        "cause": "STRING",
        "hours_online": "BIGINT",  # in which each sample was online
        "well": "BIGINT",  # 0: at the end of the day it had failed, and was not online for an hour since
        "last_ts": "BIGINT",  # when it was seen last on the day
        **dict.fromkeys((*SMART_GROWING, *SMART_LEVELS), "BIGINT"),  # the last of the day
        "date": "STRING",
    },
    ("source", "fleet", "drive", "host", "path"),
)
EXPOSURE_DAY = Table(
    GOLD,
    "exposure_day",
    "drive-days and failures of a day, by what a failure rate is asked for",
    {
        "source": "STRING",
        "fleet": "STRING",
        "site": "STRING",
        "model": "STRING",
        "firmware": "STRING",
        "age_years": "BIGINT",  # floor of power-on hours / 8766; null where it is not known
        "drive_days": "BIGINT",
        "failures": "BIGINT",
        "date": "STRING",
    },
    ("source", "fleet", "site", "model", "firmware", "age_years"),
)
DRIVE_LIFE = Table(
    GOLD,
    "drive_life",
    "all that was seen of a drive, over all dates; kept as one piece, under the date ``all``",
    {
        "source": "STRING",
        "fleet": "STRING",
        "drive": "STRING",
        "model": "STRING",
        "host": "STRING",  # where it was last
        "path": "STRING",
        "first_date": "STRING",
        "last_date": "STRING",
        "days": "BIGINT",
        "first_poh": "BIGINT",
        "last_poh": "BIGINT",
        "failed_date": "STRING",
        "failures": "BIGINT",
        "days_after_failure": "BIGINT",  # on which it was online again after a day on which it had failed: resurrected
        "replaced_by": "STRING",  # the next one that was there when it was not seen any more at its place
        "date": "STRING",
    },
    ("source", "fleet", "drive"),
)
DRIVE_PAST = Table(
    GOLD,
    "drive_past",
    "drive_day of all dates but the newest ones, summed up in blocks of 60 days; of it and the rest is drive_life made",
    {
        "source": "STRING",
        "fleet": "STRING",
        "drive": "STRING",
        "host": "STRING",
        "path": "STRING",
        "dir_id": "STRING",
        "block": "BIGINT",  # days since 1970-01-01 / 60
        "seen": "BIGINT",  # a bit for each day of the block on which it was seen, the first day the lowest
        "failed": "BIGINT",  # and on which it failed
        "first_date": "STRING",
        "last_date": "STRING",
        "failed_date": "STRING",  # the first one
        "well": "BIGINT",  # at the end of last_date
        "last_ts": "BIGINT",
        "model": "STRING",  # of model_date
        "model_date": "STRING",
        "first_poh": "BIGINT",
        "last_poh": "BIGINT",
        "date": "STRING",
    },
    ("source", "fleet", "drive", "host", "path", "dir_id", "block"),
)
IMPORTED_DRIVE_DAY = Table(
    IMPORTED,
    "drive_day",
    DRIVE_DAY.grain,
    {name: kind for name, kind in DRIVE_DAY.columns.items() if name != "last_ts"},
    DRIVE_DAY.key,
)
IMPORTED_TICKET = Table(
    IMPORTED,
    "ticket",
    "a failure ticket of somebody's drive, without the drives that did not fail",
    {
        "source": "STRING",  # alibaba
        "ts": "BIGINT",
        "model": "STRING",
        "drive": "STRING",
        "host": "STRING",
        "rack": "STRING",
        "site": "STRING",
        "app": "STRING",
        "smart": "MAP<STRING,BIGINT>",  # raw values by the published column name
        "date": "STRING",
    },
    ("source", "drive", "ts"),
)

TABLES: Mapping[str, Table] = {
    table.full_name: table
    for table in (
        *(SILVER_SAMPLES, SILVER_EVENTS, AUDIT_FILES, AUDIT_QUARANTINE),
        *(DIR_HOUR, DIR_DAY, HOST_DAY, RACK_MODEL_HOUR, AGENT_DAY, INCIDENT, TIMELINE),
        *(DRIVE_DAY, EXPOSURE_DAY, DRIVE_LIFE, DRIVE_PAST, IMPORTED_DRIVE_DAY, IMPORTED_TICKET),
    )
}
