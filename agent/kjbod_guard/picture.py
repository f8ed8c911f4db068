"""The guard at one moment, as rows with the names of an agent's (:mod:`kjbod_agent.admin.commands`), so that
``kjbod status`` and ``kjbod log-dirs`` show both. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.security.certificates import NO_CERTIFICATES, Certificates
from kjbod_guard.binding import Owned
from kjbod_guard.directory_steps import Standing
from kjbod_guard.ladder import Case, KafkaView, Would
from kjbod_guard.observing import Held, Observed
from kjbod_host.condition import Condition
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.state import Health

if TYPE_CHECKING:
    from kjbod_guard.redundancy import Needs
    from kjbod_guard.watching import Watching
    from kjbod_host.health.watched import DirectoryStatus

UNWATCHED: Final = "unreadable"
"""State of a directory that is not watched, in the words of an agent and of the fleet report."""


class ActionCounters(Struct, frozen=True, kw_only=True):
    """Actions of a guard that acts, and its rights, at one moment.

    Attributes:
        outcomes: actions since this guard started, by name and outcome.
        hand_missing: how many lines say without which rights the guard cannot act; one where there is no helper.
        missing_rights: a line for each right on the cluster that the guard lacks.
        crippled: whether its threads, or its own answers, prove that the broker is stuck.
        canary_lag: records that the broker has not applied; None: it was not asked, or has not said.
        evicted: partitions from which the guard evicted the broker, and that are not restored.
        evicted_since_ms: wall clock of the first of them.
    """

    outcomes: Mapping[tuple[str, str], int]
    hand_missing: int = 0
    missing_rights: tuple[str, ...] = ()
    crippled: bool = False
    canary_lag: int | None = None
    evicted: int = 0
    evicted_since_ms: int | None = None


class Picture(Struct, frozen=True, kw_only=True):
    """The guard at one moment; what nobody knows is None.

    Attributes:
        node_id: of the broker.
        mode: ``observe`` or ``act``.
        broker_state: stage of the broker; None in mode observe.
        broker_reason: why, in words.
        counters: the actions; None in mode observe.
        needs: partitions that lack replicas; None while the metadata are not followed.
        refused: a row for each partition that the controllers refused.
        suspects: other brokers of which a guard suspects a directory.
        cluster_id: of the broker.
        condition: in one line.
        unbound: why there is no broker for which to watch; None: there is.
        pid: of the broker.
        blind: why the metadata are not followed; None: they are.
        unknown: what kjbod does not know of them, a line each.
        incomplete: why the picture of them is incomplete; None: it is whole.
        unknown_records: records that were not understood in full.
        controller: address of the active one.
        metadata_offset: of the last record that was applied.
        metadata_version: of the cluster.
        broker_epoch: of the broker's registration.
        incarnation_id: of the broker's registration.
        fenced: whether the broker is.
        directories: a row for each, as ``kjbod status`` gets it.
        disks: what the monitor knows, by path.
        certificates: of the guard.
    """

    node_id: int
    mode: str
    broker_state: str | None = None
    broker_reason: str | None = None
    counters: ActionCounters | None = None
    needs: "Needs | None" = None
    refused: Sequence[dict[str, Any]] = ()
    suspects: Sequence[int] = ()
    cluster_id: str | None
    condition: Condition
    unbound: str | None
    pid: int | None
    blind: str | None
    unknown: Sequence[str] = ()
    incomplete: str | None = None
    unknown_records: int = 0
    controller: str | None
    metadata_offset: int
    metadata_version: int | None
    broker_epoch: int | None
    incarnation_id: str | None
    fenced: bool | None
    directories: Sequence[dict[str, Any]]
    disks: Mapping[str, "DirectoryStatus"]
    certificates: Certificates = NO_CERTIFICATES


def rows(
    watching: "Watching",
    statuses: Mapping[str, "DirectoryStatus"],
    verdicts: Mapping[str, Verdict],
    views: Mapping[str, KafkaView],
    decided: Mapping[str, tuple[Case | None, Would]],
    observed: Observed | None,
    *,
    log_dirs: Sequence[str],
    standings: Mapping[str, Standing],
    wall_of: Callable[[int], int],
) -> list[dict[str, Any]]:
    """Rows for all configured directories, in their order; ``observed`` is None where the metadata are not followed."""
    held = {} if observed is None else observed.held()
    return [
        _row(
            path,
            watching.entries[path].owned,
            statuses.get(path),
            verdicts.get(path),
            held=None if observed is None else held,
            wall_of=wall_of,
        )
        | {
            "role": "log" if path in log_dirs else "metadata",
            **({"since_ms": watching.helpless[path]} if path in watching.helpless else {}),
            "error": watching.unwatched.get(path)
            or _evidence(statuses.get(path), verdicts.get(path))
            or watching.why_suspect(path),
            "kafka": str(views[path]),
            **_decided(decided[path][1] if path in decided else None),
            "step": None if path not in standings else str(standings[path].state),
            "step_reason": None if path not in standings else standings[path].reason or None,
        }
        for path in watching.paths
    ]


def _decided(would: Would | None) -> dict[str, Any]:
    """Columns for the step of a directory."""
    return {
        "would": None if would is None else str(would.step),
        "would_reason": None if would is None else would.reason or None,
        "waits_for": None if would is None else would.waits or None,
    }


def _evidence(status: "DirectoryStatus | None", verdict: Verdict | None) -> str | None:
    if status is None or verdict is None or status.health.health is Health.ONLINE:
        return None
    return verdict.evidence.text


def _row(
    path: str,
    owned: Owned | None,
    status: "DirectoryStatus | None",
    verdict: Verdict | None,
    *,
    held: Mapping[Uuid, Held] | None,
    wall_of: Callable[[int], int],
) -> dict[str, Any]:
    counts = None if held is None or owned is None else held.get(owned.directory_id, Held())
    probe = None if status is None else status.last_probe
    sizes = probe if probe is not None else None if owned is None else owned.loaded
    state = UNWATCHED if status is None else str(status.health.health)
    device = None if status is None else status.device
    return {
        "path": path,
        "directory_id": None if owned is None else str(owned.directory_id),
        "online": status is not None and status.health.health is not Health.FAILED,
        "verdict": state,
        "cause": None if status is None else str(status.health.cause),
        "since_ms": None if status is None else wall_of(status.health.since_ms),
        "cordoned": False,
        "device": None if device is None else " ".join((*device.names, device.device)),
        "model": None if device is None else device.model,
        "serial": None if device is None else device.serial,
        "file_system": None if status is None else status.file_system,
        "total_bytes": None if sizes is None else sizes.total_bytes,
        "usable_bytes": None if sizes is None else sizes.usable_bytes,
        "replicas": None if counts is None else counts.led + counts.followed,
        "leaders": None if counts is None else counts.led,
        "followed": None if counts is None else counts.followed,
        "future": 0,
        "remembered": status is None,
        "probe_histogram": None if status is None else dict(status.probe_histogram),
        "busy_ms": None if status is None or status.counters is None else status.counters.busy_ms,
    }


def replica_rows(observed: Observed, directory_id: Uuid | None) -> list[dict[str, Any]]:
    """Replicas that the metadata place in a directory, by name; their sizes nobody was asked."""
    found = [
        (observed.topics.get(topic_id, str(topic_id)), number, topic_id, placed.leads)
        for (topic_id, number), placed in observed.partitions.items()
        if placed.directory == directory_id
    ]
    return [
        {
            "topic": topic,
            "partition": number,
            "topic_id": str(topic_id),
            "name": f"{topic}-{number}",
            "size": None,
            "lag": None,
            "future": False,
            "leader": leads,
        }
        for topic, number, topic_id, leads in sorted(found)
    ]
