"""The Spark session of the fleet jobs.

On one machine everything that Spark writes besides the result (shuffle files, unpacked native libraries, the Java
wrapper, the log configuration) is in one scratch folder, which is removed with the session. Under ``spark-submit`` the
Java side is already running and configured by the cluster; then only session settings are made here. No master is set
beyond the default ``local[*]``.

The tuning is measured, not folklore: the C1 compiler alone and a loopback address save a quarter of a short job's time
and half of its CPU; 128 groups, the default limit of in-memory percentile and collect aggregates, is less than the
directories of a small fleet; the time zone must be UTC or days differ from host to host.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.java import Java, find_java, make_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_INPUT_BYTES = 256 << 20
"""Compressed input from which on the C2 compiler and a parallel collector repay their start: about 5 million lines."""
SHUFFLE_INPUT_BYTES = 4 << 20
"""Compressed input for each partition of a shuffle: about 80,000 lines. More partitions cost more than they share."""

_LOG4J = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{1}: %m%n
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = error
"""


def session_settings() -> dict[str, str]:
    """Settings that the jobs rely on, on any master."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000",
        "spark.sql.files.ignoreCorruptFiles": "true",  # a torn gzip file must not stop the job; its trailer tells
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # a stack trace for each column that an expression has
    }


def local_settings(scratch: Path, input_bytes: int) -> dict[str, str]:
    """Settings for a driver that is started here, for so much compressed input."""
    large = input_bytes > LARGE_INPUT_BYTES
    jvm = ["-XX:+UseParallelGC"] if large else ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    jvm += [f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}"]
    # Compiling a plan to Java, and planning it anew after each stage, pay back over millions of rows; before that they
    # are half of the time.
    plain = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    partitions = min(2 * (os.cpu_count() or 1), 1 + input_bytes // SHUFFLE_INPUT_BYTES)
    return ({} if large else plain) | {
        "spark.driver.memory": "2g" if large else "1g",
        "spark.driver.extraJavaOptions": " ".join(jvm),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextlib.contextmanager
def spark_session(master: str | None, input_bytes: int = 0) -> Iterator["SparkSession"]:
    """A session for so much compressed input. It is gone afterwards, with its process and its files.

    Raises:
        FleetError: no pyspark, no Java, or Spark does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise FleetError("the fleet report needs PySpark: run scripts/setup --fleet in a clone of kjbod") from None
    builder = SparkSession.builder.appName("kjbod fleet")
    settings = session_settings()
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    environment: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    with contextlib.ExitStack() as stack:
        if not submitted:
            java = find_java(os.environ)
            scratch = Path(tempfile.mkdtemp(prefix="kjbod-fleet-"))
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            environment = _environment(scratch, java)
            settings |= local_settings(scratch, input_bytes)
        if master or not (submitted or "SPARK_REMOTE" in os.environ):
            builder = builder.master(master or "local[*]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            # Only the start reads it; whatever else this process starts meanwhile must not get our Java wrapper.
            with environment:
                spark = builder.getOrCreate()
        except Exception as error:  # the launcher raises whatever it met; all of it means "not started"
            given = f" with --master {master}" if master else ""
            raise FleetError(f"Spark does not start{given}: {_first_line(error)}") from error
        stack.callback(_stop, spark)
        yield spark


@contextlib.contextmanager
def _environment(scratch: Path, java: Java) -> Iterator[None]:
    """Environment of the Java process, put back afterwards."""
    (scratch / "log4j2.properties").write_text(_LOG4J)
    wanted = {
        "JAVA_HOME": str(make_java_home(java, scratch / "jre")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(scratch),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _stop(spark: "SparkSession") -> None:
    """End the session and the Java process: the scratch folder goes next, and a second session in this process must not
    find a half-dead gateway."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    spark.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    gateway.shutdown()
    process.stdin.close()  # what the Java process takes as the sign to end
    with contextlib.suppress(Exception):
        process.wait(timeout=10)
    if process.poll() is None:
        process.kill()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
