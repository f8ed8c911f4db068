"""Contents of the fleet report, as functions from DataFrames to DataFrames.

``samples`` and ``events`` are the clean rows of :mod:`kjbod.fleet.read`. A directory is ``(host, broker_id, path)``: a
disk that was replaced has a new ``dir_id`` at the same path and takes its place. No window functions: what the agents
write needs none, and a sort of all samples would be most of the job.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.schema import INCIDENT_KINDS, DirectoryState, EventKind

DIRECTORY = ("host", "broker_id", "path")
RUN = ("host", "broker_id", "boot_id")

GROWTH_SAMPLES_MIN = 10
GROWTH_SPAN_MS_MIN = 3_600_000
"""No rate of growth from fewer samples or a shorter time."""
FORECAST_WINDOWS_MAX = 2
"""A forecast reaches no further than twice the time that was seen."""
DAY_MS = 86_400_000
SILENT = "silent"
"""State of an agent, and of its directories, of which nothing was heard any more."""
STOPPED = "stopped"
"""Of an agent that said so, and of its directories."""
SILENT_AFTER_MS = 3 * 3_600_000
"""How much older than the newest line of all reports an agent's newest one may be: three times what
``kjbod.reports.rotate.interval.ms`` is by default, since only finished files are read."""
SILENT_INTERVALS = 3
"""And so many of its own intervals between samples, where that is longer."""
BROKER_DEED_MS = 900_000
"""What a guard does about its broker so long after the verdict on a disk belongs to that failure: for a fence it may
have to wait ten minutes."""
NOT_DONE_STATES = ("left", "crippled")
"""States of a directory, and of a broker, for which something should be done and is not."""
RELEASED = "released"
"""Reason of ``left`` where somebody wanted it so."""


def _last(column: str) -> Column:
    """The last value that is not null."""
    return F.max_by(column, F.when(F.col(column).isNotNull(), F.struct("ts", "mono_ns"))).alias(column)


def _kind(kind: EventKind) -> Column:
    return F.col("kind") == str(kind)


def _device() -> Column:
    """Events have the names of a device and its number, samples the names alone; the number where it has none."""
    return F.regexp_replace("device", r" \d+:\d+$", "")


def _is_left() -> Column:
    """Whether an event says that what should be done is not."""
    wanted = F.coalesce(F.col("attrs.reason"), F.lit("")) != RELEASED
    return _kind(EventKind.GUARD_STANDS) & F.col("attrs.state").isin(*NOT_DONE_STATES) & wanted


def _deed() -> Column:
    """Deed of a guard with its outcome, or that it does no more, as a struct that begins with ``mono_ns``; null for
    other events. That Kafka has recorded the directory as offline is one, too."""
    means = (
        F.when(_kind(EventKind.GUARD_DONE), F.col("attrs.means"))
        .when(_kind(EventKind.KAFKA_NOTICED), F.lit("recorded"))
        .when(_is_left(), F.col("attrs.state"))
    )
    told = (means.alias("means"), F.col("attrs.outcome").alias("outcome"), F.col("attrs.reason").alias("reason"))
    counts = (F.expr(f"try_cast(attrs.{name} AS BIGINT)").alias(name) for name in ("took_ms", "count"))
    return F.when(means.isNotNull(), F.struct("mono_ns", *told, *counts))


def observations(samples: DataFrame, events: DataFrame) -> DataFrame:
    """Everything that says something about one directory at one moment, in the columns of a sample."""
    attributes = ("dir_id", _device().alias("device"), "serial", "partitions")
    sampled = samples.select(
        *DIRECTORY,
        "ts",
        "mono_ns",
        "fleet",
        "rack",
        "state",
        "leaders",
        "bytes_total",
        "bytes_used",
        "model",
        *attributes,
    )
    state = F.when(_kind(EventKind.DIR_FAILED), str(DirectoryState.FAILED)).when(
        _kind(EventKind.STATE_CHANGED), F.col("attrs.state")
    )
    # The event that leadership has moved counts what moved away: what is left is none.
    leaders = F.when(_kind(EventKind.LEADERSHIP_MOVED), 0).otherwise(F.col("leaders"))
    seen = events.where(F.col("path").isNotNull()).select(
        *DIRECTORY, "ts", "mono_ns", "fleet", state.alias("state"), leaders.alias("leaders"), *attributes
    )
    return sampled.unionByName(seen, allowMissingColumns=True)


def directory_health(samples: DataFrame, events: DataFrame) -> DataFrame:
    """Directories as last seen: state, sizes in bytes, partitions, leaders now and at most."""
    known = ("fleet", "rack", "dir_id", "device", "model", "serial", "state", "partitions", "leaders")
    health = (
        observations(samples, events)
        .groupBy(*DIRECTORY)
        .agg(
            *(_last(name) for name in (*known, "bytes_total", "bytes_used")),
            F.max("leaders").alias("leaders_max"),
            F.min("ts").alias("first_seen"),
            F.max("ts").alias("last_seen"),
        )
    )
    changes = (
        events.where(F.col("path").isNotNull())
        .groupBy(*DIRECTORY)
        .agg(F.count_if(_kind(EventKind.DIR_FAILED)).alias("failures"))
    )
    return (
        health.join(changes, list(DIRECTORY), "left")
        .na.fill(0, ["failures"])
        .na.fill("unknown", ["state"])
        .orderBy(*DIRECTORY)
    )


def agent_status() -> Column:
    """State of an agent that an event says, if it says one."""
    return (
        F.when(_kind(EventKind.AGENT_STOPPED) | _kind(EventKind.TIMEOUT_SHUTDOWN), STOPPED)
        .when(_kind(EventKind.UNFENCED), "unfenced")
        .when(_kind(EventKind.FENCED) | _kind(EventKind.REGISTERED), "fenced")
        .when(_kind(EventKind.AGENT_STARTED), "started")
    )


def agent_counts() -> dict[str, Column]:
    """Whether an event is one of those that are counted of a guard: see :func:`agent_health`."""
    outcome = F.when(_kind(EventKind.GUARD_DONE), F.col("attrs.outcome"))
    only_would = _kind(EventKind.GUARD_WOULD) & (F.col("attrs.mode") == "observe")
    return {
        "would": only_would & ~F.col("attrs.would").isin("nothing", "wait"),
        "acts": outcome.isin("done", "pending"),
        "failed_acts": outcome == "failed",
        "refusals": (outcome == "refused") | _is_left(),
    }


def agent_health(health: DataFrame, events: DataFrame) -> DataFrame:
    """Agents, by ``(host, broker_id)``: status as last reported (``unfenced | fenced | started | stopped | unknown``),
    why and with which exit code it stopped, and its directories by state. Of a guard ``role``, ``mode``, and how often
    it would have done something and only observed (``would``), did something (``acts``), tried in vain
    (``failed_acts``), and was refused it, by the hand, a controller or its own rules (``refusals``)."""
    moment = F.when(F.col("status").isNotNull(), F.struct("ts", "mono_ns"))
    started = F.when(_kind(EventKind.AGENT_STARTED), F.struct("ts", "mono_ns"))
    counted = agent_counts()
    agents = (
        events.withColumn("status", agent_status())
        .groupBy("host", "broker_id")
        .agg(
            F.max_by("status", moment).alias("status"),
            F.max_by(F.col("attrs.reason"), moment).alias("reason"),
            F.max_by(F.col("attrs.exit_code"), moment).alias("exit_code"),
            F.max("ts").alias("last_event"),
            *(F.max_by(F.col(f"attrs.{name}"), started).alias(name) for name in ("role", "mode")),
            *(F.count_if(is_it).alias(name) for name, is_it in counted.items()),
        )
    )
    directories = health.groupBy("host", "broker_id").agg(
        F.max("fleet").alias("fleet"),
        F.max("rack").alias("rack"),
        F.count(F.lit(1)).alias("directories"),
        F.count_if(F.col("state") == str(DirectoryState.FAILED)).alias("failed"),
        F.count_if(~F.col("state").isin(str(DirectoryState.FAILED), str(DirectoryState.ONLINE))).alias("impaired"),
        F.sum("leaders").alias("leaders"),
        F.sum("bytes_used").alias("bytes_used"),
        F.sum("bytes_total").alias("bytes_total"),
        F.max("last_seen").alias("last_seen"),
    )
    joined = directories.join(agents, ["host", "broker_id"], "full").na.fill("unknown", ["status"])
    counts = ["directories", "failed", "impaired", *counted]
    return (
        joined.na.fill(0, counts)
        .withColumn("last_seen", F.greatest("last_seen", "last_event"))
        .drop("last_event")
        .orderBy("host", "broker_id")
    )


def intervals(samples: DataFrame) -> DataFrame:
    """``host, broker_id, interval_ms``: the time between two samples of an agent; null where there were not two in one
    run."""
    runs = samples.groupBy(*RUN, "path").agg(
        ((F.max("ts") - F.min("ts")) / F.nullif(F.count(F.lit(1)) - 1, F.lit(0))).alias("interval_ms")
    )
    return runs.groupBy("host", "broker_id").agg(F.min("interval_ms").cast("bigint").alias("interval_ms"))


def agents_heard(agents: DataFrame, every: DataFrame, silent_after_ms: int = SILENT_AFTER_MS) -> DataFrame:
    """Agents (of :func:`agent_health`) with ``interval_ms`` and ``silent_ms``, how much older than the newest line of
    all its own newest one is; the status of one that is older than it may be is :data:`SILENT`, whatever it said last,
    unless that was that it stops."""
    newest = agents.agg(F.max("last_seen").alias("newest"))
    allowed = F.greatest(F.lit(silent_after_ms), SILENT_INTERVALS * F.coalesce("interval_ms", F.lit(0)))
    is_silent = (F.col("status") != STOPPED) & (F.col("silent_ms") > allowed)
    return (
        agents.join(every, ["host", "broker_id"], "left")
        .crossJoin(F.broadcast(newest))
        .withColumn("silent_ms", F.col("newest") - F.col("last_seen"))
        .withColumn("status", F.when(is_silent, SILENT).otherwise(F.col("status")))
        .drop("newest")
        .orderBy("host", "broker_id")
    )


def directories_heard(health: DataFrame, agents: DataFrame) -> DataFrame:
    """Directories (of :func:`directory_health`) whose agent (of :func:`agents_heard`) is silent or has stopped are no
    longer what it said last: their state is that of the agent, and ``last_state`` what it was. Those that had failed
    are still failed."""
    ended = agents.where(F.col("status").isin(SILENT, STOPPED)).select(
        "host", "broker_id", F.col("status").alias("end")
    )
    failed = F.col("state") == str(DirectoryState.FAILED)
    return (
        health.join(F.broadcast(ended), ["host", "broker_id"], "left")
        .withColumn("last_state", F.col("state"))
        .withColumn("state", F.when(F.col("end").isNotNull() & ~failed, F.col("end")).otherwise(F.col("state")))
        .drop("end")
        .orderBy(*DIRECTORY)
    )


def incidents(events: DataFrame, run: Sequence[str] = RUN) -> DataFrame:
    """A row for each failure of a directory in one run of an agent.

    Latencies are differences of ``mono_ns`` in ms: ``detect_ms`` first sign → verdict, ``send_ms`` verdict → first
    heartbeat that says so, ``acknowledge_ms`` heartbeat → answer, ``move_ms`` verdict → no leader left, ``total_ms``
    first sign (or verdict) → answer, ``give_up_ms`` verdict → shutdown. Outcome: ``acknowledged``,
    ``timeout shutdown``, ``agent stopped`` or ``open``. ``deeds``: what a guard did about it in this run, or did not,
    in the order of time, each with ``after_ms`` since the verdict, ``means``, ``outcome``, ``reason``, ``took_ms`` and
    ``count``. ``run``: what tells one run of an agent from another.
    """
    failures = _failures(events, run).join(F.broadcast(_run_ends(events, run)), list(run), "left")
    given_up = F.coalesce("timeout_ns", "run_timeout_ns")
    outcome = (
        F.when(F.col("acknowledged_ns").isNotNull(), "acknowledged")
        .when(given_up.isNotNull(), "timeout shutdown")
        .when(F.col("stopped_ns") >= F.coalesce("detected_ns", F.lit(0)), "agent stopped")
        .otherwise("open")
    )
    sign_ns = F.array_max(F.filter("suspect_ns", lambda at: at <= F.col("detected_ns")))
    detect_ms = F.coalesce(F.expr("try_cast(latency_ms AS DOUBLE)"), _ms(F.col("detected_ns") - sign_ns))
    about_broker = F.filter("broker_deeds", lambda deed: deed.mono_ns <= F.col("detected_ns") + BROKER_DEED_MS * 10**6)
    since = F.filter(
        F.concat("deeds", F.coalesce(about_broker, F.array())), lambda deed: deed.mono_ns >= F.col("detected_ns")
    )
    return (
        failures.withColumn("outcome", outcome)
        .withColumn("deeds", F.transform(F.array_sort(since), _since(F.col("detected_ns"))))
        .withColumn("detect_ms", detect_ms)
        .withColumn("send_ms", _ms(F.col("sent_ns") - F.col("detected_ns")))
        .withColumn("acknowledge_ms", _ms(F.col("acknowledged_ns") - F.col("sent_ns")))
        .withColumn("move_ms", _ms(F.col("moved_ns") - F.col("detected_ns")))
        .withColumn("give_up_ms", F.when(F.col("outcome") == "timeout shutdown", _ms(given_up - F.col("detected_ns"))))
        .withColumn(
            "total_ms",
            _ms(F.col("acknowledged_ns") - F.col("detected_ns")) + F.coalesce("detect_ms", F.lit(0.0)),
        )
        .drop("suspect_ns", "latency_ms", "stopped_ns", "timeout_ns", "run_timeout_ns")
        .drop("detected_ns", "sent_ns", "acknowledged_ns", "moved_ns", "broker_deeds")
        .orderBy("ts", *DIRECTORY)
    )


def _since(moment_ns: Column) -> Callable[[Column], Column]:
    """Makes of a deed one with ``after_ms`` since a moment in the place of ``mono_ns``."""

    def told(deed: Column) -> Column:
        rest = (deed.getField(name).alias(name) for name in ("means", "outcome", "reason", "took_ms", "count"))
        return F.struct(_ms(deed.mono_ns - moment_ns).alias("after_ms"), *rest)

    return told


def _failures(events: DataFrame, run: Sequence[str]) -> DataFrame:
    """Events of each directory and run, one row if it failed in that run."""
    failed = _kind(EventKind.DIR_FAILED)
    path = F.coalesce("path", "dir_id").alias("path")
    steps = {
        "detected_ns": failed,
        "sent_ns": _kind(EventKind.OFFLINE_SENT),
        # Of a guard: the controller has recorded what the broker beside it reported by itself.
        "acknowledged_ns": _kind(EventKind.ACKNOWLEDGED) | _kind(EventKind.KAFKA_NOTICED),
        "moved_ns": _kind(EventKind.LEADERSHIP_MOVED),
        "timeout_ns": _kind(EventKind.TIMEOUT_SHUTDOWN),
    }
    facts = ("cause", "evidence", "errno", "call", "latency_ms")
    ours = F.col("kind").isin(*map(str, INCIDENT_KINDS))
    suspected = _kind(EventKind.STATE_CHANGED) & (F.col("attrs.state") == str(DirectoryState.SUSPECT))
    return (
        events.where(F.col("path").isNotNull() | F.col("dir_id").isNotNull())
        .groupBy(*run, path)
        .agg(
            F.max("incident").alias("incident"),
            F.count_if(ours).alias("steps"),
            F.coalesce(F.min(F.when(failed, F.col("ts"))), F.min(F.when(ours, F.col("ts")))).alias("ts"),
            *(F.min(F.when(is_it, F.col("mono_ns"))).alias(name) for name, is_it in steps.items()),
            F.collect_list(F.when(suspected, F.col("mono_ns"))).alias("suspect_ns"),
            F.collect_list(_deed()).alias("deeds"),
            *(F.max(F.when(failed, F.col(f"attrs.{name}"))).alias(name) for name in facts),
            *(F.max(F.when(failed, F.col(name))).alias(name) for name in ("partitions", "leaders")),
            *(F.max(name).alias(name) for name in ("fleet", "dir_id", "serial")),
            F.max(_device()).alias("device"),
        )
        .where("steps > 0")
        .drop("steps")
    )


def _run_ends(events: DataFrame, run: Sequence[str]) -> DataFrame:
    """Ends of the runs, of those that ended, and what guards did about their brokers."""
    whole_run = F.col("path").isNull() & F.col("dir_id").isNull()
    timed_out = _kind(EventKind.TIMEOUT_SHUTDOWN) & whole_run
    stopped = _kind(EventKind.AGENT_STOPPED)
    deed = F.when(whole_run, _deed())
    return (
        events.where(timed_out | stopped | deed.isNotNull())
        .groupBy(*run)
        .agg(
            F.min(F.when(timed_out, F.col("mono_ns"))).alias("run_timeout_ns"),
            F.min(F.when(stopped, F.col("mono_ns"))).alias("stopped_ns"),
            F.max(F.when(stopped, F.col("attrs.reason"))).alias("stop_reason"),
            F.max(F.when(stopped, F.col("attrs.exit_code"))).alias("exit_code"),
            F.collect_list(deed).alias("broker_deeds"),
        )
    )


def _ms(nanoseconds: Column) -> Column:
    return nanoseconds / 1e6


def capacity(samples: DataFrame) -> DataFrame:
    """Size and use of directories in bytes, and, when enough was seen, its growth a day and the days until full (null
    when it does not grow, or beyond twice the time that was seen)."""
    sized = samples.where(F.col("bytes_total").isNotNull() & F.col("bytes_used").isNotNull())
    # Time relative to a point near the data: squares of ms since 1970 would eat the digits of a double.
    day = (F.col("ts") - F.unix_millis(F.to_timestamp(F.lit("2026-01-01")))) / DAY_MS
    span_ms = F.col("last_seen") - F.col("first_seen")
    enough = (F.col("samples") >= GROWTH_SAMPLES_MIN) & (span_ms >= GROWTH_SPAN_MS_MIN)
    days = (F.col("bytes_total") - F.col("bytes_used")) / F.col("growth_bytes_per_day")
    return (
        sized.groupBy(*DIRECTORY)
        .agg(
            F.count(F.lit(1)).alias("samples"),
            F.min("ts").alias("first_seen"),
            F.max("ts").alias("last_seen"),
            _last("bytes_total"),
            _last("bytes_used"),
            F.regr_slope(F.col("bytes_used"), day).alias("slope"),
        )
        .withColumn("used_ratio", F.try_divide("bytes_used", "bytes_total"))
        .withColumn("growth_bytes_per_day", F.when(enough, F.col("slope")))
        .withColumn(
            "days_to_full",
            F.when((F.col("slope") > 0) & (days * DAY_MS <= FORECAST_WINDOWS_MAX * span_ms), days),
        )
        .drop("slope")
        .orderBy(*DIRECTORY)
    )


def timeline(events: DataFrame) -> DataFrame:
    """Events in order of time. Created replicas and recorded assignments come in hundreds: one row for each kind,
    directory and second, with their number as ``count``."""
    bulk = F.col("kind").isin(str(EventKind.REPLICA_CREATED), str(EventKind.ASSIGNMENTS_ACKNOWLEDGED))
    together = F.when(bulk, F.concat_ws("/", F.floor(F.col("ts") / 1000), "kind")).otherwise(F.col("event_id"))
    assigned = F.expr("try_cast(attrs.count AS BIGINT)")
    return (
        events.groupBy(*DIRECTORY, "boot_id", "kind", together.alias("group"))
        .agg(
            F.min("ts").alias("ts"),
            F.min("mono_ns").alias("mono_ns"),
            F.sum(F.when(bulk, F.coalesce(assigned, F.lit(1))).otherwise(1)).alias("count"),
            F.max("leaders").alias("leaders"),
            F.max("partitions").alias("partitions"),
            *(
                F.max(F.col(f"attrs.{name}")).alias(name)
                for name in (
                    *("previous", "state", "cause", "evidence", "errno", "reason", "exit_code"),
                    *("means", "outcome", "took_ms"),
                )
            ),
        )
        .drop("group")
        .orderBy("ts", "mono_ns", *DIRECTORY, "kind")
    )
