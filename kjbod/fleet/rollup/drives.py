"""Drives: ``gold.drive_day``, ``gold.exposure_day`` and ``gold.drive_life``.

A drive that failed is not exposed to failure again until it is *well*: until there was an hour in which each sample of
it was online. A dead disk gets a new verdict from each agent that starts on it, and that agent may think well of it for
seconds; an hour tells the difference. A day ends *well* or not, or says nothing of it, and then it ends as it began; it
began as the last day before it that says something ended. A drive that is taken away is simply not seen any more: its
exposure ends without a failure.

A drive whose serial number nobody could read on a day (a dead one often tells none) is known by what its directory id
had before, and in its life also by what it had later. A serial number that is on several hosts of a cluster on one day
is that of a virtual disk or of a RAID volume, and no drive's: such drives are known by host and directory on that day,
and in the same directory from then on.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.lake.state import ALL_DATES
from kjbod.fleet.rollup.drive_past import days_after
from kjbod.fleet.rollup.merge import joined, shaped
from kjbod.fleet.schema import DirectoryState
from kjbod.fleet.tables import DRIVE_DAY, DRIVE_LIFE, EXPOSURE_DAY, SMART_GROWING, SMART_LEVELS

SOURCE = "kjbod"
YEAR_H = 8_766
_DRIVE = DRIVE_DAY.key
_DISK = ("host", "path", "dir_id")
_DEAD = (DirectoryState.FAILED, DirectoryState.UNREADABLE)


def drive_day(days: DataFrame, before: DataFrame) -> DataFrame:
    """Rows of ``gold.drive_day`` of the rows of ``gold.dir_day`` of one date, and of all days of drives before it, as
    rows like those of ``gold.drive_past``."""
    rows = joined(_by_drive(_named(days, before)), _ends(before), _DRIVE)
    rows = rows.withColumn("_began_well", F.coalesce("_was_well", F.lit(1)))
    is_failure = (F.col("failures") > 0) & (
        (F.col("_began_well") == 1) | F.coalesce(F.col("failed_last_ts") > F.col("online_first_ts"), F.lit(False))
    )
    exposed = is_failure | (F.col("hours_online") > 0) | ((F.col("_began_well") == 1) & (F.col("_living") > 0))
    # Of one that was well before it, the first; of one that failed, was well for hours and failed again: the last.
    failed_ts = F.when(F.col("_began_well") == 1, F.col("failed_first_ts")).otherwise(F.col("failed_last_ts"))
    return shaped(
        rows.where(exposed).withColumns(
            {
                "failed": F.when(is_failure, 1).otherwise(0),
                "failed_ts": F.when(is_failure, failed_ts),
                "cause": F.when(is_failure, F.col("_cause")),
                "well": F.coalesce("_says_well", "_began_well"),
            }
        ),
        DRIVE_DAY.columns,
    )


def _named(days: DataFrame, before: DataFrame) -> DataFrame:
    """Rows of ``gold.dir_day`` with ``drive``. What later days say of a serial number is left to the drive's life: a
    day does not depend on what comes after it."""
    that_day = F.max("serial").over(Window.partitionBy(*_DISK))  # by another agent of the host
    known = F.when(F.col("dir_id").isNotNull(), F.coalesce(that_day, "_known"))
    rows = joined(days, _names(before), _DISK).withColumn("_name", F.coalesce("serial", known))
    place = F.concat_ws(":", "host", "path")
    same = Window.partitionBy("fleet", F.coalesce("_name", place))
    is_shared = F.coalesce((F.col("_name") == place) | (F.col("_known") == place), F.lit(False)) | (
        F.col("_name").isNotNull() & (F.min("host").over(same) != F.max("host").over(same))
    )
    drive = F.when(is_shared, place).otherwise(F.coalesce("_name", "dir_id"))
    return rows.withColumn("drive", drive).drop("_known", "_name")


def _names(past: DataFrame) -> DataFrame:
    """Serial numbers of directories, the newest of each, of rows like those of ``gold.drive_past``."""
    newest = F.max(F.struct("last_date", "drive")).alias("_newest")
    known = past.where("drive <> dir_id").groupBy(*_DISK).agg(newest)
    return known.select(*_DISK, F.col("_newest.drive").alias("_known"))


def _by_drive(days: DataFrame) -> DataFrame:
    """A row for each drive at each place and date. What was seen of it under two directory ids (it was formatted anew)
    is taken together; labels and levels are those of the later one."""
    smart = {name: name for name in SMART_LEVELS} | {"smart_temp_c": "smart_temp_c_max"}
    smart |= {name: f"{name}_last" for name in SMART_GROWING}
    dead = sum((F.coalesce(F.col("states").getItem(str(state)), F.lit(0)) for state in _DEAD), F.lit(0))
    seen = days.withColumns(
        {
            "source": F.lit(SOURCE),
            "site": F.col("rack"),
            "_living": F.col("samples") - dead,
            **{name: F.col(there) for name, there in smart.items()},
        }
    ).where("drive IS NOT NULL")
    labels = ("site", "dir_id", "model", "firmware", "capacity_bytes", *smart)
    order = F.struct(F.coalesce("last_ts", F.lit(0)), F.coalesce("dir_id", F.lit("")))
    rows = (
        seen.groupBy(*_DRIVE, "date")
        .agg(
            F.max_by(F.struct(*labels), order).alias("_row"),
            *(F.sum(name).alias(name) for name in ("samples", "failures", "hours_online", "_living")),
            *(F.min(name).alias(name) for name in ("failed_first_ts", "online_first_ts")),
            *(F.max(name).alias(name) for name in ("failed_last_ts", "online_last_ts", "last_ts")),
            F.max("failure_cause").alias("_cause"),
        )
        .where("samples > 0 OR failures > 0")
    )
    last_well, last_failed = F.col("online_last_ts"), F.col("failed_last_ts")
    says_well = F.when(last_well > F.coalesce(last_failed, F.lit(0)), 1).when(last_failed.isNotNull(), 0)
    return rows.select("*", "_row.*").drop("_row").withColumn("_says_well", says_well)


def _ends(past: DataFrame) -> DataFrame:
    """Ends of the last day of each drive, of rows like those of ``gold.drive_past``."""
    return past.groupBy(*_DRIVE).agg(F.max_by("well", F.unix_date(F.to_date("last_date"))).alias("_was_well"))


def exposure_day(drives: DataFrame) -> DataFrame:
    """Rows of ``gold.exposure_day`` of rows of ``gold.drive_day``. A drive with several directories is one."""
    names = ("site", "model", "firmware")
    whole = drives.groupBy("source", "fleet", "drive", "date").agg(
        *(F.max(name).alias(name) for name in names),
        F.max("smart_poh").alias("smart_poh"),
        F.max("failed").alias("failed"),
    )
    age = F.floor(F.col("smart_poh") / YEAR_H).cast("bigint")
    grouped = whole.groupBy("source", "fleet", *names, age.alias("age_years"), "date").agg(
        F.count(F.lit(1)).alias("drive_days"), F.sum("failed").alias("failures")
    )
    return shaped(grouped, EXPOSURE_DAY.columns)


def drive_life(past: DataFrame) -> DataFrame:
    """Rows of ``gold.drive_life`` of rows like those of ``gold.drive_past``, of all dates."""
    key = ("source", "fleet", "drive")
    past = _with_serials(past)
    at = F.struct("last_date", "last_ts", "host", "path")
    places = past.groupBy(*key, "host", "path").agg(F.max(at).alias("_last"))
    blocks = past.groupBy(*key, "block").agg(
        *(F.bit_or(name).alias(name) for name in ("seen", "failed")),
        *(F.min(name).alias(name) for name in ("first_date", "failed_date", "first_poh")),
        F.max("last_poh").alias("last_poh"),
        F.max(F.when(F.col("model").isNotNull(), F.struct("model_date", "model"))).alias("_model"),
        F.max(at).alias("_last"),
    )
    first_failed = F.min("failed_date").over(Window.partitionBy(*key))
    whole = (
        blocks.withColumn("failed_date", first_failed)
        .withColumn("_after", days_after(F.col("seen"), F.col("block"), F.unix_date(F.to_date("failed_date"))))
        .groupBy(*key)
        .agg(
            F.max("_model").model.alias("model"),
            F.max("_last").alias("_last"),
            F.min("first_date").alias("first_date"),
            F.sum(F.bit_count("seen")).alias("days"),
            F.min("first_poh").alias("first_poh"),
            F.max("last_poh").alias("last_poh"),
            F.min("failed_date").alias("failed_date"),
            F.sum(F.bit_count("failed")).alias("failures"),
            F.sum("_after").alias("days_after_failure"),
        )
    )
    told = whole.select("*", "_last.last_date", "_last.host", "_last.path").withColumn("date", F.lit(ALL_DATES))
    return shaped(joined(told, _successors(places), (*key, "host", "path")), DRIVE_LIFE.columns)


def _with_serials(past: DataFrame) -> DataFrame:
    """The rows of drives that are known by their directory ids alone, under the serial numbers of other days."""
    nameless = past.where("drive = dir_id").select(*_DISK).distinct()
    names = _names(past.join(nameless, list(_DISK), "left_semi"))
    named = F.when(F.col("drive") == F.col("dir_id"), F.col("_known"))
    return joined(past, names, _DISK).withColumn("drive", F.coalesce(named, "drive")).drop("_known")


def _successors(places: DataFrame) -> DataFrame:
    """Of each drive the one that was there next when it was not seen any more at its place: two may have been there on
    one day, and one may be put back."""
    there = Window.partitionBy("source", "fleet", "host", "path").orderBy("_last", "drive")
    return places.select(
        *("source", "fleet", "drive", "host", "path"), F.lead("drive").over(there).alias("replaced_by")
    )


def remembered(past: DataFrame) -> DataFrame:
    """All that rows of later days are made of, besides those days, of rows like those of ``gold.drive_past``: the
    drives that had failed when they were last seen, and the serial numbers of directories."""
    dead = _ends(past).where("_was_well = 0").select(*_DRIVE)
    return dead.unionByName(_names(past).withColumnRenamed("_known", "drive"), allowMissingColumns=True)
