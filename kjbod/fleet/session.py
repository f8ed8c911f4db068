"""The Spark session of the fleet jobs: on this machine, on a cluster, or at a Spark Connect server.

============================ ================================================ ======================================
asked for                    who configures Spark                             what is set here
============================ ================================================ ======================================
nothing, ``--master local``  this module                                      session, local and driver settings
``--master local-cluster``   this module                                      session, nearby and driver settings
``--master spark://``, YARN  the cluster, and ``spark-defaults.conf`` here    session and driver settings
``spark-submit``             the cluster, and its options                     session settings
``--remote``, SPARK_REMOTE   whoever started the server                       session settings that may be changed
============================ ================================================ ======================================

On a cluster, and under ``spark-submit``, partitions of a shuffle that nobody has set are set as soon as the executors
are known: two for each processor.

On one machine everything that Spark writes besides the result (shuffle files, unpacked native libraries, the Java
wrapper, the log configuration) is in one scratch folder, which is removed with the session. No master is set beyond the
default ``local[*]``.

The tuning is measured, not folklore: the C1 compiler alone and a loopback address save a quarter of a short job's time
and half of its CPU; 128 groups, the default limit of in-memory percentile and collect aggregates, is less than the
directories of a small fleet; the time zone must be UTC or days differ from host to host. Spark's UI costs 0.2 s, and is
there with ``-v``.

What a user is told of a failure is one line. What Spark logs of it, stack traces of Java and of Python, is there with
``-v``.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjbod.clock import SystemClock
from kjbod.fleet.archive import MAKING_TIMEOUT_S, archive_options, making_options, quoted
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.folders import own_folder
from kjbod.fleet.java import Java, find_java, make_java_home
from kjbod.fleet.java_process import SCRATCH_VARIABLE, java_named, kill_left, stop
from kjbod.fleet.spark_home import needed_jars, spark_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LARGE_INPUT_BYTES = 256 << 20
"""Compressed input from which on the C2 compiler and a parallel collector repay their start: about 5 million lines."""
MEDIUM_INPUT_BYTES = 32 << 20
"""Compressed input from which on it repays to compile plans to Java, and a collector that uses all processors."""
SPLIT_INPUT_BYTES = 3 << 19
"""Compressed input from which on it repays to compile the parser's expressions: about 20,000 lines."""
SHUFFLE_INPUT_BYTES = 4 << 20
"""Compressed input for each partition of a shuffle: about 80,000 lines. More partitions cost more than they share."""
_CLUSTER_BYTES = LARGE_INPUT_BYTES + 1
DRIVER_MEMORY = "1g"
"""Whatever the input is: nothing is collected that grows with it. ``spark-submit --driver-memory`` for another."""
CONNECT_TIMEOUT_S = 10
MASTER_TIMEOUT_S = 5
EXECUTORS_TIMEOUT_S = 10
"""How long executors are waited for: by their number the shuffles are split, and the first job would wait as well."""
STOP_TIMEOUT_S = 10
_EXECUTORS_POLL_S = 0.5
_SHUFFLE_PARTITIONS, _SHUFFLE_PARTITIONS_DEFAULT = "spark.sql.shuffle.partitions", "200"
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_PY4J_LOGGERS = ("py4j.clientserver", "py4j.java_gateway")
_PYSPARK_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Never on: a stack trace for each typing mistake in a query, beside the exception that says the same."""

_LOG4J = """status = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark: %p %c{{1}}: %m%n
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
logger.python.name = org.apache.spark.api.python.PythonGatewayServer
logger.python.level = {level}
"""


def session_settings() -> dict[str, str]:
    """Settings that the jobs rely on, on any master, and that a session can change at any time."""
    return {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000",
        "spark.sql.files.ignoreCorruptFiles": "true",  # a torn gzip file must not stop the job; its trailer tells
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        # Spark would make a task of each of a thousand directories.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
        "spark.sql.variable.substitute": "false",  # ${env:NAME} in a query is text
    }


# With the C1 compiler alone Java reserves 48 MB for what it compiles, and stops compiling when they are full.
_C1 = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
_SMALL_JVM = ("-XX:+UseSerialGC", *_C1)
_MEDIUM_JVM = ("-XX:+UseParallelGC", "-XX:-DontCompileHugeMethods", *_C1)
# Of the processor time of a million rows the compilers took half with Java's own thresholds, which are those of a
# process that lives for days. What Spark makes of a hundred columns is longer than Java compiles unless it is told to.
_LARGE_JVM = (
    "-XX:+UseParallelGC",
    "-XX:-DontCompileHugeMethods",
    "-XX:Tier3InvocationThreshold=1000",
    "-XX:Tier3MinInvocationThreshold=500",
    "-XX:Tier3CompileThreshold=5000",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=10000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

PLAIN = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For thousands of rows: compiling a plan to Java, and planning it anew after each stage, would be half of the time."""
SPLIT = PLAIN | {"spark.sql.codegen.factoryMode": "FALLBACK"}
"""For a hundred thousand rows of a hundred columns: expressions are compiled, whole stages are not."""
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.maxFields": "1000",  # tables of more than 100 columns too, which does not pay back before that
}
"""For a million rows."""
LARGE_ROWS, MEDIUM_ROWS = 200_000, 20_000
"""Rows from which on :data:`COMPILED` pays back, and :data:`SPLIT`."""
_STATIC = {
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # or there is a stack trace for each column
    "spark.sql.codegen.cache.maxEntries": "2000",  # of 100 none is left when the next hour of a long process needs it
}
"""Only the start of Spark can set them."""


def is_nearby(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master.startswith("local")


def driver_settings(scratch: Path, input_bytes: int, *, ui: bool = False) -> dict[str, str]:
    """Settings for a driver that is started here, whatever the master is, for so much compressed input."""
    by_size = {LARGE_INPUT_BYTES: _LARGE_JVM, MEDIUM_INPUT_BYTES: _MEDIUM_JVM}
    jvm = [*next((jvm for least, jvm in by_size.items() if input_bytes > least), _SMALL_JVM)]
    log = (scratch / "log4j2.properties").absolute().as_uri()
    jvm += [quoted(f"-Djava.io.tmpdir={scratch}"), f"-Dlog4j2.configurationFile={log}"]
    return {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.extraJavaOptions": " ".join(jvm),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }


def nearby_settings(scratch: Path) -> dict[str, str]:
    """Settings that only make sense where all of Spark runs on this machine."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(scratch),
    }


def local_settings(scratch: Path, input_bytes: int, *, ui: bool = False) -> dict[str, str]:
    """Settings for a driver that is started here and does all the work, for so much compressed input."""
    compiled = {
        **COMPILED,
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "24m",  # both processors get something of an hour
    }
    partitions = min(2 * (os.cpu_count() or 1), 1 + input_bytes // SHUFFLE_INPUT_BYTES)
    return (
        (compiled if input_bytes > MEDIUM_INPUT_BYTES else PLAIN)
        | {"spark.sql.inMemoryColumnarStorage.compressed": "false"}
        | driver_settings(scratch, input_bytes, ui=ui)
        | nearby_settings(scratch)
        | {_SHUFFLE_PARTITIONS: str(partitions)}
    )


def is_connect(spark: "SparkSession") -> bool:
    """Whether a session is that of a Spark Connect server: without Spark's Java objects in this process."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def needs_java(spark: "SparkSession", command: str) -> None:
    """Refuse a command, or an option, that Spark Connect has no words for.

    Raises:
        FleetError: the session is that of a Spark Connect server.
    """
    if is_connect(spark):
        raise FleetError(f"{command} does not run through Spark Connect: use --master or spark-submit")


def ui_address(spark: "SparkSession") -> str | None:
    """Address of Spark's UI; None where there is none, or where only a Spark Connect server knows."""
    return None if is_connect(spark) else spark.sparkContext.uiWebUrl


@contextlib.contextmanager
def tuned(spark: "SparkSession", settings: Mapping[str, str]) -> Iterator[None]:
    """On one machine only this process knows how much there is to do, whatever its session was made for."""
    wanted = _for_so_much(spark, settings)
    before = {name: str(spark.conf.get(name)) for name in wanted}  # all of them have a default
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def tuned_to_parse(spark: "SparkSession", input_bytes: int) -> contextlib.AbstractContextManager[None]:
    """A session for going through so much compressed input, which is what it was made for."""
    is_split = SPLIT_INPUT_BYTES < input_bytes <= MEDIUM_INPUT_BYTES
    return tuned(spark, SPLIT) if is_split else contextlib.nullcontext()


def apart(spark: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    """A session with such settings of its own, for what is done meanwhile; the same one where others tune it."""
    wanted = _for_so_much(spark, settings)
    if not wanted:
        return spark
    other = spark.newSession()
    for name, value in wanted.items():
        other.conf.set(name, value)
    return other


@contextlib.contextmanager
def at_once(count: int) -> Iterator[ThreadPoolExecutor]:
    """A pool for so many steps of a job at a time. After an error, or an interrupt, nobody waits for those that still
    run: they end with the session."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _for_so_much(spark: "SparkSession", settings: Mapping[str, str]) -> dict[str, str]:
    """Nothing for a server, or a cluster: whoever started it has tuned it."""
    if is_connect(spark) or not re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)):
        return {}
    partitions = 1 if settings is PLAIN else spark.sparkContext.defaultParallelism
    return {**settings, _SHUFFLE_PARTITIONS: str(partitions)}


@contextlib.contextmanager
def spark_session(
    master: str | None,
    input_bytes: int = 0,
    *,
    remote: str | None = None,
    verbose: bool = False,
    archive: Path | None = None,
) -> Iterator["SparkSession"]:
    """A session for so much compressed input. It is gone afterwards, with its process and its files.

    ``verbose``: with Spark's UI, and what it logs of errors on stderr.

    ``archive``: where the Java process is to leave its classes at its end (:mod:`kjbod.fleet.archive`).

    Raises:
        FleetError: no pyspark, no Java, or Spark does not start; two places at once.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    remote = remote or (None if master or submitted else os.environ.get("SPARK_REMOTE"))
    if remote and (master or submitted):
        other = f"--master {master}" if master else "spark-submit"
        raise FleetError(f"--remote {remote} and {other}: Spark runs at one of them: leave the other out")
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise FleetError("the fleet report needs PySpark: run scripts/setup --fleet in a clone of kjbod") from None
    if remote:
        with _python_log(verbose=verbose), _remote_session(remote) as spark:
            yield spark
        return
    builder = SparkSession.builder.appName("kjbod fleet")
    settings = session_settings()
    environment: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    with _python_log(verbose=verbose), contextlib.ExitStack() as stack:
        if not submitted:
            master = master or "local[*]"
            _refuse_silent(master)
            java = find_java(os.environ)
            scratch = stack.enter_context(own_folder(Path(tempfile.gettempdir()), "kjbod-spark-"))
            stack.callback(kill_left, scratch)
            environment = _environment(scratch, java, nearby=is_nearby(master), verbose=verbose)
            settings |= _STATIC | _started_here(master, scratch, input_bytes, verbose)
            options = archive_options(java, os.environ) if archive is None else making_options(java, archive)
            settings["spark.driver.extraJavaOptions"] += "".join(f" {option}" for option in options)
        if master:
            builder = builder.master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        try:
            # Only the start reads it; whatever else this process starts meanwhile must not get our Java wrapper.
            with environment, _interrupt_kept():
                spark = builder.getOrCreate()
        except Exception as error:  # the launcher raises whatever it met; all of it means "not started"
            given = f" with --master {master}" if master else ""
            raise FleetError(f"Spark does not start{given}: {_first_line(error)}") from error
        stack.callback(stop, spark, STOP_TIMEOUT_S if archive is None else MAKING_TIMEOUT_S)
        with java_named():
            if submitted and not verbose:
                silence_java(spark)
            split_shuffles(spark)
            yield spark


def silence_java(spark: "SparkSession") -> None:
    """Switch off the log of a Java process that was started with a configuration of its own."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


def _refuse_silent(master: str) -> None:
    """Refuse a standalone master that does not answer: Spark would try for more than a minute, and say nothing of it.
    Addresses of another form are left to Spark.

    Raises:
        FleetError: none of its addresses answers.
    """
    hosts = re.fullmatch(r"spark://(.+:\d+(?:,.+:\d+)*)", master)
    reason = ""
    for address in hosts[1].split(",") if hosts else ():
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_TIMEOUT_S).close()
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        else:
            return
    if reason:
        raise FleetError(f"no master of Spark answers at --master {master}: {_first_line(OSError(reason))}")


def split_shuffles(spark: "SparkSession", poll_s: float = _EXECUTORS_POLL_S) -> None:
    """Two partitions of a shuffle for each processor, where nobody has set how many: Spark's own 200 make a small
    cluster many times slower. Left alone where processors come and go, or none is there in time."""
    context: Any = spark.sparkContext
    conf = context.getConf()
    if conf.contains(_SHUFFLE_PARTITIONS) or spark.conf.get(_SHUFFLE_PARTITIONS) != _SHUFFLE_PARTITIONS_DEFAULT:
        return
    is_elastic = str(conf.get("spark.dynamicAllocation.enabled", "false")).lower() == "true"
    if is_elastic or not _has_executors(context, poll_s):
        return
    spark.conf.set(_SHUFFLE_PARTITIONS, str(max(2, 2 * context.defaultParallelism)))


def _has_executors(context: Any, poll_s: float) -> bool:
    """Whether executors are there, as soon as no more of them come."""
    if is_nearby(context.master) and not context.master.startswith("local-cluster"):
        return True
    clock, before = SystemClock(), 1
    deadline_ms = clock.monotonic_ms() + EXECUTORS_TIMEOUT_S * 1000
    while clock.monotonic_ms() < deadline_ms:
        found = context._jsc.sc().getExecutorMemoryStatus().size()  # with the driver
        if found > 1 and found == before:
            return True
        before = found
        time.sleep(poll_s)
    return before > 1


@contextlib.contextmanager
def _interrupt_kept() -> Iterator[None]:
    """With the handler of SIGINT that was there before: PySpark sets one of its own as it starts, which asks Java to
    cancel all jobs and tells of whatever fails meanwhile. The session is stopped anyway."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _python_log(*, verbose: bool) -> Iterator[None]:
    """Without what py4j and PySpark log of each error, which they raise as well; py4j's is there when verbose."""
    for name in _PYSPARK_LOGGERS:
        logging.getLogger(name).disabled = True
    if verbose:
        yield
        return
    root, before = logging.getLogger(), [(logger, logger.level) for logger in map(logging.getLogger, _PY4J_LOGGERS)]
    for logger, _ in before:
        logger.setLevel(logging.CRITICAL)
    root.addFilter(_is_not_of_py4j)
    try:
        with _accumulators_silent():
            yield
    finally:
        root.removeFilter(_is_not_of_py4j)
        for logger, level in before:
            logger.setLevel(level)


@contextlib.contextmanager
def _accumulators_silent() -> Iterator[None]:
    """Without the traceback that PySpark's server of accumulators prints where a job fails while another one runs: Java
    ends in the middle of a word to it, and what failed is told anyway."""
    try:
        from pyspark import accumulators
    except ImportError:  # the client of Spark Connect is alone, and has none
        yield
        return
    server: Any = accumulators.AccumulatorTCPServer
    before = server.__dict__.get("handle_error")
    server.handle_error = lambda *_: None
    try:
        yield
    finally:
        if before is None:
            del server.handle_error
        else:
            server.handle_error = before


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts  # some of it is logged with the root logger itself


def log_settings(*, verbose: bool) -> str:
    """Configuration of the log of a Java process that is started here."""
    return _LOG4J.format(level="error" if verbose else "off")


def _started_here(master: str, scratch: Path, input_bytes: int, ui: bool) -> dict[str, str]:
    if not is_nearby(master):
        return driver_settings(scratch, _CLUSTER_BYTES, ui=ui)
    if master.startswith("local-cluster"):
        return driver_settings(scratch, _CLUSTER_BYTES, ui=ui) | nearby_settings(scratch)
    return local_settings(scratch, input_bytes, ui=ui)


@contextlib.contextmanager
def _remote_session(remote: str) -> Iterator["SparkSession"]:
    """A session of a Spark Connect server."""
    if is_nearby(remote):  # PySpark would start a server of its own, with the settings of nobody
        raise FleetError(f"--remote {remote}: leave it out, or give the address of a server: sc://HOST:PORT")
    try:
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.session import SparkSession
    except ImportError as error:
        raise FleetError(
            f"--remote needs the client of Spark Connect: pip install 'pyspark[connect]==4.3.0' 'pandas>=2.2,<3'"
            f" ({_first_line(error)})"
        ) from None
    before = os.environ.get(_CONNECT_MODE)
    os.environ[_CONNECT_MODE] = "1"  # as PySpark's own builder: pyspark.sql.functions then makes Connect's columns
    try:
        try:
            channel = DefaultChannelBuilder(remote)
            # Asked by hand first: the client would go on trying for ten minutes.
            host, _, port = channel.endpoint.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            builder = SparkSession.builder.remote(remote).appName("kjbod fleet")
            for key, value in session_settings().items():
                builder = builder.config(key, value)
            spark: Any = builder.create()
        except Exception as error:
            raise FleetError(f"no Spark Connect server at --remote {remote}: {_first_line(error)}") from error
        try:
            yield spark
        finally:
            with contextlib.suppress(Exception):  # the server may be gone
                spark.stop()
    finally:
        if before is None:
            os.environ.pop(_CONNECT_MODE, None)
        else:
            os.environ[_CONNECT_MODE] = before


@contextlib.contextmanager
def _environment(scratch: Path, java: Java, *, nearby: bool, verbose: bool) -> Iterator[None]:
    """Environment of the Java process, put back afterwards."""
    (scratch / "log4j2.properties").write_text(log_settings(verbose=verbose))
    jars = needed_jars(spark_jars(os.environ), os.environ) if nearby else []
    wanted = {
        "JAVA_HOME": str(make_java_home(java, scratch / "jre", jars)),
        SCRATCH_VARIABLE: str(scratch),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if nearby:  # other machines cannot reach this one by loopback, and have a Python of their own
        wanted |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    # PySpark makes a folder to hear of its Java in, which who kills this process would leave.
    folder_before, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        yield
    finally:
        tempfile.tempdir = folder_before
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
