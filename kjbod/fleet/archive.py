"""The archive of Spark's classes, with which Java starts in half the time. ``kjbod fleet doctor --fix`` makes it.

Java 17 to 24 has archives of classes (AppCDS), Java 25 also of how they were linked (an AOT cache). Either belongs to
one build of Java and one class path, so that the name has a hash of both: after an update of either the archive is not
found, and nothing is different from a machine that never had one. Nor is it used when it was written to since it was
made. Java checks again, and goes on without most of what it does not like; what it logs of that is switched off.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.java import Java
from kjbod.fleet.spark_home import needed_jars, spark_jars, spark_version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AOT_SINCE = 25
"""Java 24 has AOT caches too, but makes them in two steps; it still has the archives of before."""
MAKING_TIMEOUT_S = 600
"""Java writes the archive when it ends, on a busy machine for minutes."""
_TEMPORARY = ".making-"
_OTHERS_WRITE = 0o022


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Directory of archives: ``fleet`` in KJBOD_CACHE, or in ``kjbod`` of the user's caches."""
    if kept := environ.get("KJBOD_CACHE"):
        return Path(kept).absolute() / "fleet"
    if caches := environ.get("XDG_CACHE_HOME"):
        return Path(caches).absolute() / "kjbod/fleet"
    return Path(environ.get("HOME") or "/nonexistent").absolute() / ".cache/kjbod/fleet"


def archive_path(java: Java, environ: Mapping[str, str]) -> Path | None:
    """Place of the archive for this Java and this Spark, made or not; None without a Spark."""
    jars = spark_jars(environ)
    if not jars:
        return None
    place = _short_hash(str(java.executable.absolute()), str(jars[0].parent))
    content = _short_hash(java.build, *(jar.name for jar in needed_jars(jars, environ)))
    build = re.sub(r"[^\w.+-]+", "-", java.build.replace("build ", "")).strip("-")[:60] or str(java.version)
    suffix = "aot" if java.version >= AOT_SINCE else "jsa"
    return cache_directory(environ) / f"{place}-spark{spark_version(jars)}-java{build}-{content}.{suffix}"


def archive_options(java: Java, environ: Mapping[str, str]) -> list[str]:
    """Options of Java to use the archive; none where there is none that is ours. Never raises."""
    try:
        path = archive_path(java, environ)
        if path is None or not _is_ours(path) or not _is_ours(path.parent):
            return []
        if not _is_ours(_seal(path)) or _seal(path).read_text(encoding="ascii") != _stamp(path):
            return []
    except (OSError, ValueError):
        return []
    if java.version >= AOT_SINCE:  # with which -Xshare must not be said
        return [quoted(f"-XX:AOTCache={path}"), "-Xlog:disable"]
    return [quoted(f"-XX:SharedArchiveFile={path}"), "-Xshare:auto", "-Xlog:disable"]


def making_options(java: Java, path: Path) -> list[str]:
    """Options of Java to write an archive to ``path`` when it ends."""
    option = "AOTCacheOutput" if java.version >= AOT_SINCE else "ArchiveClassesAtExit"
    return [quoted(f"-XX:{option}={path}"), "-Xlog:disable"]


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
            _seal(path).write_text(_stamp(made), encoding="ascii")
            _seal(path).chmod(0o600)  # whatever the umask: what others may write is not believed
            made.replace(path)
            for old in path.parent.glob(f"{path.name.split('-')[0]}-*"):
                if old not in (path, _seal(path)):  # of the same Java and Spark before they were updated
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
    from kjbod.fleet.session import spark_session

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


def _seal(path: Path) -> Path:
    """File that says how the archive was when it was made: with one that was cut short, Java 17 does not start."""
    return path.with_name(f"{path.name}.made")


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _is_ours(path: Path) -> bool:
    """Java runs what is in an archive: whoever may write it must be us or root."""
    status = path.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & _OTHERS_WRITE


def _short_hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogateescape")).hexdigest()[:10]


def quoted(option: str) -> str:
    """As Spark's launcher takes the options apart."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
