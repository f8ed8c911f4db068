"""Words of events on agents, on what their guards did, and on failures. Only events of failures, which are few, are put
in order: a sort of all events would be most of the job."""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.schema import INCIDENT_KINDS, DirectoryState, EventKind

DIRECTORY = ("host", "broker_id", "path")
RUN = ("host", "broker_id", "boot_id")

STOPPED = "stopped"
"""Of an agent that said so, and of its directories."""
BROKER_DEED_MS = 900_000
"""What a guard does about its broker so long after the verdict on a disk belongs to that failure: for a fence it may
have to wait ten minutes."""
NOT_DONE_STATES = ("left", "crippled")
"""States of a directory, and of a broker, for which something should be done and is not."""
RELEASED = "released"
"""Reason of ``left`` where somebody wanted it so."""
LACKS = ("below_replication_factor", "below_min_isr", "without_leader")
"""Counts of ``guard_lacks``."""


def _kind(kind: EventKind) -> Column:
    return F.col("kind") == str(kind)


def _device() -> Column:
    """Events have the names of a device and its number, samples the names alone; the number where it has none."""
    return F.regexp_replace("device", r" \d+:\d+$", "")


def _is_left() -> Column:
    """Whether an event says that what should be done is not."""
    wanted = F.coalesce(F.col("attrs.reason"), F.lit("")) != RELEASED
    return _kind(EventKind.GUARD_STANDS) & F.col("attrs.state").isin(*NOT_DONE_STATES) & wanted


def lack_counts() -> dict[str, Column]:
    """Return the counts of an event ``guard_lacks`` as numbers, by name; 0 for a count that is absent or no number."""
    return {name: F.coalesce(F.expr(f"try_cast(attrs.{name} AS BIGINT)"), F.lit(0)) for name in LACKS}


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


def agent_status() -> Column:
    """State of an agent that an event says, if it says one."""
    return (
        F.when(_kind(EventKind.AGENT_STOPPED) | _kind(EventKind.TIMEOUT_SHUTDOWN), STOPPED)
        .when(_kind(EventKind.UNFENCED), "unfenced")
        .when(_kind(EventKind.FENCED) | _kind(EventKind.REGISTERED), "fenced")
        .when(_kind(EventKind.AGENT_STARTED), "started")
    )


def agent_counts() -> dict[str, Column]:
    """Whether an event is one of those that are counted of a guard: how often it would have done something and only
    observed (``would``), did something (``acts``), tried in vain (``failed_acts``), and was refused it by the helper,
    a controller or its own rules (``refusals``)."""
    outcome = F.when(_kind(EventKind.GUARD_DONE), F.col("attrs.outcome"))
    only_would = _kind(EventKind.GUARD_WOULD) & (F.col("attrs.mode") == "observe")
    return {
        "would": only_would & ~F.col("attrs.would").isin("nothing", "wait"),
        "acts": outcome.isin("done", "pending"),
        "failed_acts": outcome == "failed",
        "refusals": (outcome == "refused") | _is_left(),
    }


def incidents(events: DataFrame, run: Sequence[str] = RUN) -> DataFrame:
    """A row for each verdict on a directory in one run of an agent.

    What is told of a directory belongs to the last verdict before it; signs of suspicion, and that Kafka has noticed
    what no verdict is on yet, to the next one. ``number`` counts the verdicts of a run on a path, and ``is_verdict`` is
    false of what is told of one that is not among ``events``.

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
    detect_ms = F.coalesce(F.expr("try_cast(latency_ms AS DOUBLE)"), _between(sign_ns, "detected_ns"))
    until_ns = F.try_add(F.col("detected_ns"), F.lit(BROKER_DEED_MS * 10**6))
    about_broker = F.filter("broker_deeds", lambda deed: deed.mono_ns <= until_ns)
    since = F.filter(
        F.concat("deeds", F.coalesce(about_broker, F.array())), lambda deed: deed.mono_ns >= F.col("detected_ns")
    )
    return (
        failures.withColumn("outcome", outcome)
        .withColumn("deeds", F.transform(F.array_sort(since), _since(F.col("detected_ns"))))
        .withColumn("detect_ms", detect_ms)
        .withColumn("send_ms", _between("detected_ns", "sent_ns"))
        .withColumn("acknowledge_ms", _between("sent_ns", "acknowledged_ns"))
        .withColumn("move_ms", _between("detected_ns", "moved_ns"))
        .withColumn("give_up_ms", F.when(F.col("outcome") == "timeout shutdown", _between("detected_ns", given_up)))
        .withColumn(
            "total_ms",
            _between("detected_ns", "acknowledged_ns") + F.coalesce("detect_ms", F.lit(0.0)),
        )
        .drop("suspect_ns", "latency_ms", "stopped_ns", "timeout_ns", "run_timeout_ns")
        .drop("detected_ns", "sent_ns", "acknowledged_ns", "moved_ns", "broker_deeds")
        .orderBy("ts", *DIRECTORY)
    )


def _since(moment_ns: Column) -> Callable[[Column], Column]:
    """Makes of a deed one with ``after_ms`` since a moment in the place of ``mono_ns``."""

    def told(deed: Column) -> Column:
        rest = (deed.getField(name).alias(name) for name in ("means", "outcome", "reason", "took_ms", "count"))
        return F.struct(_between(moment_ns, deed.mono_ns).alias("after_ms"), *rest)

    return told


def _suspected() -> Column:
    return _kind(EventKind.STATE_CHANGED) & (F.col("attrs.state") == str(DirectoryState.SUSPECT))


def _noticed_first() -> Column:
    """Whether Kafka has noticed a failure without, or before, a verdict of the guard."""
    return _kind(EventKind.KAFKA_NOTICED) & F.col("attrs.after_ms").isNull()


def _numbered(events: DataFrame, run: Sequence[str]) -> DataFrame:
    """Events that tell of failures of directories, with the ``number`` of the verdict that each belongs to."""
    failed = _kind(EventKind.DIR_FAILED)
    before = F.coalesce(_suspected() | _noticed_first(), F.lit(False))
    ours = F.col("kind").isin(*map(str, INCIDENT_KINDS))
    told = events.where(F.col("path").isNotNull() | F.col("dir_id").isNotNull()).where(
        ours | before | _deed().isNotNull()
    )
    turn = F.when(before, 0).when(failed, 1).otherwise(2)
    so_far = (
        Window.partitionBy(*run, "path").orderBy("mono_ns", turn, "event_id").rowsBetween(Window.unboundedPreceding, 0)
    )
    return told.withColumn("path", F.coalesce("path", "dir_id")).withColumn(
        "number", F.count_if(failed).over(so_far) + F.when(before, 1).otherwise(0)
    )


def _failures(events: DataFrame, run: Sequence[str]) -> DataFrame:
    """Events of each verdict, one row."""
    failed = _kind(EventKind.DIR_FAILED)
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
    return (
        _numbered(events, run)
        .groupBy(*run, "path", "number")
        .agg(
            F.max("incident").alias("incident"),
            F.count_if(ours).alias("steps"),
            (F.count_if(failed | _noticed_first()) > 0).alias("is_verdict"),
            F.coalesce(F.min(F.when(failed, F.col("ts"))), F.min(F.when(ours, F.col("ts")))).alias("ts"),
            *(F.min(F.when(is_it, F.col("mono_ns"))).alias(name) for name, is_it in steps.items()),
            F.collect_list(F.when(_suspected(), F.col("mono_ns"))).alias("suspect_ns"),
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


def _between(first_ns: Column | str, second_ns: Column | str) -> Column:
    """Milliseconds; null where there are more than any clock counts."""
    return F.try_subtract(second_ns, first_ns) / 1e6
