"""Backblaze's Drive Stats to rows of ``drive_day``.

What is not believed: a capacity below zero and more than twelve years of power-on hours become null, and are counted. A
row without a date, a serial number or a failure of 0 or 1 says nothing about a drive-day and is set aside.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.imports.formats import BACKBLAZE, BACKBLAZE_SMART, POH_MAX, REQUIRED, TEXT_MAX
from kjbod.fleet.imports.packed import count_of
from kjbod.fleet.imports.sources import Lines, rows_of
from kjbod.fleet.tables import IMPORTED_DRIVE_DAY

PLACES = ("datacenter", "cluster_id", "vault_id", "pod_id", "pod_slot_num")
"""Columns of later years."""


def parsed(groups: list[Lines]) -> DataFrame:
    """Rows of ``imported.drive_day`` of all files, with ``wrong`` (why they are set aside, null: not), ``said``
    (the value that is wrong), ``file``, and ``no_capacity`` and ``no_poh`` where one was not believed."""
    wanted = (*REQUIRED[BACKBLAZE], *BACKBLAZE_SMART.values(), *PLACES)
    rows = reduce(DataFrame.unionByName, (rows_of(lines, wanted) for lines in groups))
    day = F.when(F.col("date").rlike(r"^\d{4}-\d{2}-\d{2}$"), F.try_to_date("date", "yyyy-MM-dd"))
    failed, capacity = _whole("failure"), _whole("capacity_bytes")
    numbers = {name: count_of(published, _whole(published)) for name, published in BACKBLAZE_SMART.items()}
    poh = numbers["smart_poh"]
    too_long = (poh < 0) | (poh > POH_MAX)
    pod = F.concat_ws("/", *(F.col(name) for name in ("cluster_id", "vault_id", "pod_id")))
    known = {
        "source": F.lit(BACKBLAZE),
        "site": _text("datacenter"),
        "host": F.when(F.col("pod_id").isNotNull(), pod),
        "path": _text("pod_slot_num"),
        "drive": _text("serial_number"),
        "model": _text("model"),
        "capacity_bytes": F.when(capacity >= 0, capacity),
        "failed": failed,
        **numbers,
        "smart_poh": F.when(~too_long, poh),
        "date": F.date_format(day, "yyyy-MM-dd"),
    }
    nothing = F.lit(None)
    columns = [
        known.get(name, nothing).cast(kind.lower()).alias(name) for name, kind in IMPORTED_DRIVE_DAY.columns.items()
    ]
    checks: dict[str, tuple[Column, Column]] = {
        "date": (day.isNull(), F.col("date")),
        "serial_number": (known["drive"].isNull(), F.col("serial_number")),
        "failure": (failed.isNull() | ~failed.isin(0, 1), F.col("failure")),
    }
    wrong, said = F.lit(None).cast("string"), F.lit(None).cast("string")
    for name, (is_wrong, value) in reversed(checks.items()):
        wrong = F.when(is_wrong, F.lit(name)).otherwise(wrong)
        said = F.when(is_wrong, F.coalesce(value, F.lit(""))).otherwise(said)
    return rows.select(
        *columns,
        *(wrong.alias("wrong"), said.alias("said"), F.col("file")),
        F.coalesce(capacity < 0, F.lit(False)).alias("no_capacity"),
        F.coalesce(too_long, F.lit(False)).alias("no_poh"),
    )


def each_once(rows: DataFrame) -> DataFrame:
    """A drive's row of a day, once: of several that differ a failure counts before none, then the greater one."""
    table = IMPORTED_DRIVE_DAY
    key = ("source", "drive", "date")
    rest = [name for name in table.columns if name not in (*key, "failed")]
    return (
        rows.groupBy(*key)
        .agg(F.max(F.struct("failed", *rest)).alias("_row"))
        .select(*key, "_row.*")
        .select(*table.columns)
    )


def _whole(name: str) -> Column:
    """A whole number; some files have ``12.0`` for 12."""
    return F.coalesce(F.col(name).try_cast("bigint"), F.col(name).try_cast("double").try_cast("bigint"))


def _text(name: str) -> Column:
    return F.nullif(F.substring(F.trim(name), 1, TEXT_MAX), F.lit(""))
