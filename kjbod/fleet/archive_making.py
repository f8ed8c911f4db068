"""The making of the archive of Spark's classes, by ``kjbod fleet doctor --fix`` (:mod:`.archive`)."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kjbod.fleet.archive import archive_path, seal, stamp
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.java import Java
from kjbod.fleet.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TEMPORARY = ".making-"


def make_archive(java: Java, environ: Mapping[str, str]) -> Path:
    """Run a small job, and keep the classes it needed. Returns the archive, in its place as a whole or not at all.

    Raises:
        FleetError: no Spark; it does not start; nothing was written; somebody else is making it.
    """
    path = archive_path(java, environ)
    if path is None:
        raise FleetError("no archive without Spark's jars: run scripts/setup --fleet in a clone of kjbod")
    with _making(path.parent) as folder:
        made = folder / path.name
        _train(made)
        if not made.is_file():
            raise FleetError(
                f"{path}: Java wrote no archive: all works without it, only slower to start; a directory of settings"
                " that has files (SPARK_CONF_DIR, HADOOP_CONF_DIR) is one reason"
            )
        try:
            made.chmod(0o600)
            seal(path).write_text(stamp(made), encoding="ascii")
            seal(path).chmod(0o600)  # whatever the umask: what others may write is not believed
            made.replace(path)
            for old in path.parent.glob(f"{path.name.split('-')[0]}-*"):
                if old not in (path, seal(path)):  # of the same Java and Spark before they were updated
                    old.unlink(missing_ok=True)
        except OSError as error:
            raise FleetError(f"{path}: {error.strerror}") from None
    return path


@contextlib.contextmanager
def _making(cache: Path) -> Iterator[Path]:
    """A directory to make an archive in, for one at a time; what others left that were killed is removed."""
    with contextlib.ExitStack() as stack:
        try:
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(cache, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in cache.glob(f"{_TEMPORARY}*/*"):
                left.unlink()
            for left in cache.glob(f"{_TEMPORARY}*"):
                left.rmdir()
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=cache)))
        except BlockingIOError:
            raise FleetError(f"{cache}: another kjbod fleet doctor --fix makes it just now: wait for it") from None
        except OSError as error:
            raise FleetError(f"{cache}: {error.strerror}: set KJBOD_CACHE to a directory to write to") from None
        yield folder


def _train(archive: Path) -> None:
    with _said_nowhere(), spark_session("local[2]", archive=archive) as spark:
        small_job(spark)


@contextlib.contextmanager
def _said_nowhere() -> Iterator[None]:
    """Java 25 tells of each step past all switches, with the whole class path: pages of it."""
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
        for descriptor in (*kept, nowhere):
            os.close(descriptor)


def small_job(spark: "SparkSession") -> None:
    """Do as the fleet's jobs do, with a few rows: parse lines, aggregate, rank, join, write and read tables."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    scratch = spark.conf.get("spark.local.dir")
    lines = spark.createDataFrame(
        [(f'{{"host":"h{n % 3}","at":{n},"us":{n * 7 % 11}}}',) for n in range(50)], ["value"]
    )
    rows = lines.select(fn.from_json("value", "host STRING, at LONG, us LONG").alias("row")).select("row.*")
    rows = rows.withColumn("date", fn.date_format(fn.timestamp_seconds("at"), "yyyy-MM-dd")).persist()
    rows.write.mode("overwrite").partitionBy("date").parquet(f"{scratch}/small-job")
    read = spark.read.schema("host STRING, at LONG, us LONG, date STRING").parquet(f"{scratch}/small-job")
    newest = Window.partitionBy("host").orderBy(fn.desc("at"))
    last = read.withColumn("rank", fn.row_number().over(newest)).where("rank = 1").select("host", "us")
    groups = read.groupBy("host").agg(
        fn.count("*"),
        fn.percentile("us", 0.9),
        fn.max_by("us", "at"),
        fn.collect_list("us"),
    )
    groups.join(last, "host", "left").orderBy("host").collect()
    spark.sql(
        "SELECT id % 7 AS k, count(*), percentile_approx(id, 0.5) FROM range(1000) GROUP BY 1 ORDER BY 1"
    ).collect()
    rows.unpersist()
