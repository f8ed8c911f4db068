"""Metrics of a guard. Pure.

The series of directories are the same as in an agent, so that dashboards and alerts work for both. There are no series
of Kafka's MBeans, because the broker has its own. Series that only a guard has are named ``kjbod_guard_*``.
"""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kjbod.metadata import versions
from kjbod.metrics.certificates import ends_of_certificates
from kjbod_guard import broker_steps
from kjbod_guard.actions import Outcome
from kjbod_guard.directory_steps import RELEASED, State
from kjbod_guard.ladder import WAITS_FOR, KafkaView, Step
from kjbod_guard.picture import UNWATCHED, ActionCounters, Picture
from kjbod_host.health.state import Health
from kjbod_host.metrics import Disk, directory_gauge, disk_of, disk_series, health_series

MEANS: Final = (
    *("suspect", "trust", "cut", "mask", "unmask", "report", "evict", "restore", "demote", "promote"),
    *("kill", "fence", "reset", "unreset", "destroy"),
)
"""Names of the effects (:mod:`.effects`). Each has its series from the start, so that the first effect is an
increase."""


def metrics_of(now: Picture) -> Iterator[Metric]:
    """Yield all metrics of a moment."""
    yield GaugeMetricFamily("kjbod_guard_acting", "Whether the guard acts (1), or observes (0).", now.mode == "act")
    yield GaugeMetricFamily(
        "kjbod_guard_broker_bound",
        "Whether a Kafka broker runs here that is that of the file; without one a guard only watches disks.",
        now.unbound is None,
    )
    yield from _of_metadata(now)
    yield ends_of_certificates(now.certificates.ends())
    rows = now.directories
    yield directory_gauge("kjbod_log_directory_replicas", "Replicas.", ((r["path"], r["replicas"]) for r in rows))
    yield directory_gauge(
        "kjbod_log_directory_leaders", "Replicas that lead.", ((r["path"], r["leaders"]) for r in rows)
    )
    yield _of_each(
        "kjbod_guard_kafka_view",
        "1 for the state that Kafka has a directory in, 0 for the others.",
        "view",
        {row["path"]: row["kafka"] for row in rows},
        [str(view) for view in KafkaView],
    )
    yield _of_each(
        "kjbod_guard_would",
        "1 for what a guard that acts would do about a directory, 0 for the others.",
        "step",
        {row["path"]: row["would"] for row in rows if row["would"] is not None},
        [str(step) for step in Step],
    )
    yield from _of_waits(now)
    yield from _of_redundancy(now)
    steps = {row["path"]: row["step"] for row in rows if row.get("step") is not None}
    yield _of_each(
        "kjbod_guard_step",
        "1 for the state of a directory for a guard that acts, 0 for the others.",
        "state",
        steps,
        [str(state) for state in State],
    )
    yield directory_gauge(
        "kjbod_guard_refused",
        "Whether an action about a directory waits for more than time, or was tried and did not work.",
        ((row["path"], _is_refused(row)) for row in rows),
    )
    if now.broker_state is not None:
        yield _of_broker(now.broker_state)
    if now.counters is not None:
        yield from _of_counters(now.counters)
    yield health_series({row["path"]: row["verdict"] for row in rows}, (*map(str, Health), UNWATCHED))
    unwatched = {row["path"]: Disk(directory_id=row["directory_id"] or "") for row in rows}
    yield from disk_series(unwatched | {path: disk_of(status) for path, status in now.disks.items()})


def _of_metadata(now: Picture) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "kjbod_guard_metadata_followed",
        "Whether the metadata are followed; else nobody knows what Kafka has noticed.",
        now.blind is None,
    )
    level = now.metadata_version or 0
    yield GaugeMetricFamily(
        "kjbod_guard_metadata_version_unknown",
        "The metadata.version of the cluster where it is newer than kjbod knows; 0: it is not.",
        level if level > versions.UNDERSTOOD else 0,
    )
    yield GaugeMetricFamily(
        "kjbod_guard_metadata_unknown_records",
        "Records of the metadata that kjbod does not know, or knows in part, since the last snapshot.",
        now.unknown_records,
    )
    yield GaugeMetricFamily(
        "kjbod_guard_metadata_incomplete",
        "Whether some of these may concern partitions or brokers (1): the guard only watches until kjbod is upgraded.",
        now.incomplete is not None,
    )
    yield GaugeMetricFamily("kjbod_metadata_offset", "Last metadata offset applied.", now.metadata_offset)


def _of_waits(now: Picture) -> Iterator[Metric]:
    waits = {row["path"]: row.get("waits_for") or "" for row in now.directories if row["would"] is not None}
    yield _of_each(
        "kjbod_guard_waiting",
        "1 for the reason why the guard waits with an action: time (kjbod.guard.cut.after.ms), host (no healthy disk), "
        "helper (no privileged helper), controller (none answers), copies (too few others in sync), budget (other "
        "brokers come first), fence (the broker may not be fenced), last (the last directory of the broker); 0 for the "
        "others.",
        "reason",
        waits,
        list(WAITS_FOR),
    )


def _of_redundancy(now: Picture) -> Iterator[Metric]:
    if now.needs is not None:
        yield GaugeMetricFamily(
            "kjbod_guard_partitions_below_replication_factor",
            "Partitions that the guard evicted this broker from, and that it is not back in.",
            now.needs.below_replication_factor,
        )
        yield GaugeMetricFamily(
            "kjbod_guard_partitions_below_min_isr",
            "Partitions of this broker with fewer replicas in sync than min.insync.replicas.",
            now.needs.below_min_isr,
        )
        yield GaugeMetricFamily(
            "kjbod_guard_partitions_without_leader",
            "Partitions of this broker that have no leader.",
            now.needs.without_leader,
        )
        yield GaugeMetricFamily(
            "kjbod_guard_partitions_in_sync_offline",
            "Partitions with this broker in the ISR while Kafka has the directory offline.",
            now.needs.in_sync_offline,
        )
    yield GaugeMetricFamily(
        "kjbod_guard_partitions_refused",
        "Partitions whose eviction, restoration or demotion the controllers refused.",
        len(now.refused),
    )


def _of_broker(now: str) -> Metric:
    states = GaugeMetricFamily(
        "kjbod_guard_broker_state",
        "1 for the state of the broker for a guard that acts, 0 for the others.",
        labels=["state"],
    )
    for state in broker_steps.State:
        states.add_metric([str(state)], state == now)
    return states


def _is_refused(row: dict[str, Any]) -> bool:
    is_left = row.get("step") == State.LEFT and row.get("step_reason") != RELEASED
    return is_left or (row["would"] == Step.WAIT and row.get("waits_for") != "time")


def _of_counters(counters: ActionCounters) -> Iterator[Metric]:
    acts = CounterMetricFamily(
        "kjbod_guard_acts", "What the guard did since it started, by what came of it.", labels=["means", "outcome"]
    )
    for means in MEANS:
        for outcome in Outcome:
            acts.add_metric([means, str(outcome)], counters.outcomes.get((means, str(outcome)), 0))
    yield acts
    yield GaugeMetricFamily(
        "kjbod_guard_hand_missing",
        "Rights that the privileged helper lacks and without which the guard cannot act; 1 where there is no helper.",
        counters.hand_missing,
    )
    yield GaugeMetricFamily(
        "kjbod_guard_rights_missing",
        "Rights on the cluster that the guard needs to act, and lacks.",
        len(counters.missing_rights),
    )
    yield GaugeMetricFamily(
        "kjbod_guard_broker_crippled",
        "Whether a thread that waits for a disk which was acted on proves that the broker is stuck.",
        counters.crippled,
    )
    yield GaugeMetricFamily(
        "kjbod_guard_evicted_partitions",
        "Partitions that the broker was taken out of, and is not back.",
        counters.evicted,
    )
    if counters.canary_lag is not None:
        yield GaugeMetricFamily(
            "kjbod_guard_canary_offset_lag",
            "Metadata records that the quorum has committed and the broker, when it answered last, had not applied.",
            counters.canary_lag,
        )
    if counters.evicted_since_ms is not None:
        yield GaugeMetricFamily(
            "kjbod_guard_oldest_eviction_timestamp_seconds",
            "When the first of the partitions that are evicted was, in seconds since the epoch.",
            counters.evicted_since_ms / 1000,
        )


def _of_each(name: str, text: str, label: str, current: dict[str, str], possible: list[str]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["log_directory", label])
    for path, value in current.items():
        for one in possible:
            family.add_metric([path, one], one == value)
    return family
