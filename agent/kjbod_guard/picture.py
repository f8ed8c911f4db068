"""State of the guard at one moment, as rows with the same names as an agent's (:mod:`kjbod_agent.admin.commands`). So
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
"""State of a directory that is not watched, as agents and the fleet report call it."""


class ActionCounters(Struct, frozen=True, kw_only=True):
    """Counts of actions and missing rights of a guard that acts, at one moment.

    Attributes:
        outcomes: actions since this guard started, by name and outcome.
        hand_missing: number of rights that the privileged helper lacks; 1 without a helper.
        missing_rights: a line for each right on the cluster that the guard lacks.
        crippled: whether threads or answers of the broker prove that it is stuck.
        canary_lag: number of metadata records that the broker has not applied; None: not known.
        evicted: number of partitions from which the guard evicted the broker, and that are not restored.
        evicted_since_ms: wall clock of the oldest eviction of these.
    """

    outcomes: Mapping[tuple[str, str], int]
    hand_missing: int = 0
    missing_rights: tuple[str, ...] = ()
    crippled: bool = False
    canary_lag: int | None = None
    evicted: int = 0
    evicted_since_ms: int | None = None


class Picture(Struct, frozen=True, kw_only=True):
    """State of the guard at one moment; None: not known.

    Attributes:
        node_id: of the broker.
        mode: ``observe`` or ``act``.
        broker_state: stage of the broker; None in mode observe.
        broker_reason: reason of that stage, in words.
        counters: counts of actions; None in mode observe.
        needs: partitions that lack replicas; None while the metadata are not followed.
        refused: a row for each partition that the controllers refused.
        suspects: other brokers whose guards suspect a directory.
        cluster_id: of the broker.
        condition: in one line.
        unbound: why the broker of this file was not found; None: it was found.
        pid: of the broker.
        blind: why the metadata are not followed; None: they are.
        unknown: metadata that kjbod does not know, a line each.
        incomplete: why the picture of the metadata is incomplete; None: it is complete.
        unknown_records: number of records that were not understood in full.
        controller: address of the active controller.
        metadata_offset: of the last record that was applied.
        metadata_version: of the cluster.
        broker_epoch: of the broker's registration.
        incarnation_id: of the broker's registration.
        fenced: whether the broker is fenced.
        directories: a row for each, as ``kjbod status`` gets it.
        disks: status of each disk in the monitor, by path.
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
    """Return the rows of all configured directories, in their order; ``observed`` None: the metadata are not
    followed."""
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
    """Return the columns for the step of a directory."""
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
    """Return the replicas that the metadata assign to a directory, sorted by name, without sizes."""
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
