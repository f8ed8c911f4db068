"""Metrics of the controller: a picture of its state (:func:`snapshot`), and the series computed from it.

Kafka's set, under Kafka's names (:mod:`kjbod.metrics.mbeans` says which): KIP-631, KIP-835 (applied records), KIP-966
(elections from eligible leader replicas), KIP-938 and those after it, as Kafka 4.3.1's ``ControllerMetadataMetrics``,
``QuorumControllerMetrics`` and ``KafkaRaftMetrics`` have them. What counts nothing here is left out, rather than there
as 0: ``README.md`` names it.

A scrape costs the same in a cluster of a hundred partitions and of a hundred thousand: they are counted when they
change (:class:`~kjbod_controller_stub.partitions.index.PartitionIndex`). It grows with the brokers, whose series go
when they are unregistered. The picture may be taken while a large change is being made in the thread for it: it reads
numbers, and copies of tables of which each is one step for the interpreter.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from kjbod.metadata.image import BrokerRegistration
from kjbod.metrics.certificates import ends_of_certificates
from kjbod.metrics.distribution import Durations
from kjbod.metrics.mbeans import MBean, Reading, families, histogram, readings_of

if TYPE_CHECKING:
    from kjbod_controller_stub.server import ControllerServer
    from kjbod_controller_stub.turns import TurnTimes


FENCED, CONTROLLED_SHUTDOWN, ACTIVE = 10, 20, 30
"""Values of BrokerRegistrationState (``BrokerRegistrationState``)."""


def _controller(name: str, text: str, key: str = "") -> MBean:
    return MBean("kafka.controller", "KafkaController", name, text, key)


def _raft(attribute: str, text: str) -> MBean:
    return MBean("kafka.server", "raft-metrics", "", text, attribute=attribute)


def _counted(name: str, text: str) -> MBean:
    return MBean("kafka.controller", "ControllerStats", name, text, attribute="Count")


ACTIVE_CONTROLLERS: Final = _controller("ActiveControllerCount", "1: this controller is the active one.")
NEW_ACTIVE: Final = _controller("NewActiveControllersCount", "How often a controller became the active one.")
ACTIVE_BROKERS: Final = _controller("ActiveBrokerCount", "Brokers that are registered and not fenced.")
FENCED_BROKERS: Final = _controller("FencedBrokerCount", "Brokers that are registered and fenced.")
LEAVING_BROKERS: Final = _controller("ControlledShutdownBrokerCount", "Brokers in controlled shutdown.")
BROKER_STATE: Final = _controller(
    "BrokerRegistrationState", "10: the broker is fenced, 20: in controlled shutdown, 30: active.", "broker"
)
BROKER_SILENCE: Final = _controller(
    "TimeSinceLastHeartbeatReceivedMs", "Time since the last heartbeat of a broker, ms.", "broker"
)
TOPICS: Final = _controller("GlobalTopicCount", "Topics.")
PARTITIONS: Final = _controller("GlobalPartitionCount", "Partitions.")
OFFLINE: Final = _controller("OfflinePartitionsCount", "Partitions without a leader.")
IMBALANCED: Final = _controller(
    "PreferredReplicaImbalanceCount", "Partitions that their preferred replica does not lead."
)
APPLIED_OFFSET: Final = _controller("LastAppliedRecordOffset", "Offset of the last metadata record that is in force.")
APPLIED_TIME: Final = _controller("LastAppliedRecordTimestamp", "When that was written, ms since 1970.")
APPLIED_LAG: Final = _controller("LastAppliedRecordLagMs", "Time since then, ms.")
COMMITTED_OFFSET: Final = _controller("LastCommittedRecordOffset", "Offset of the last durable metadata record.")
STARTED: Final = _controller("EventQueueOperationsStartedCount", "Requests and timers that had their turn.")
UNCLEAN: Final = _counted("UncleanLeaderElectionsPerSec", "Unclean elections since the start.")
FROM_ELR: Final = _counted(
    "ElectionFromEligibleLeaderReplicasPerSec", "Elections of an eligible leader replica since the start (KIP-966)."
)
_EVENTS: Final = ("kafka.controller", "ControllerEventManager")
QUEUE_TIME: Final = MBean(*_EVENTS, "EventQueueTimeMs", "How long requests wait for their turn, ms.")
PROCESSING_TIME: Final = MBean(*_EVENTS, "EventQueueProcessingTimeMs", "How long their turns take, ms.")
_LOADER: Final = ("kafka.server", "MetadataLoader")
METADATA_VERSION: Final = MBean(*_LOADER, "CurrentMetadataVersion", "Level of metadata.version.")
FEATURE: Final = MBean(*_LOADER, "FinalizedLevel", "Level of a finalized feature.", "featureName")
CONTROLLER_ID: Final = MBean(*_LOADER, "CurrentControllerId", "Node id of the active controller.")
_SNAPSHOTS: Final = ("kafka.server", "SnapshotEmitter")
SNAPSHOT_BYTES: Final = MBean(*_SNAPSHOTS, "LatestSnapshotGeneratedBytes", "Size of the newest snapshot; 0: none.")
SNAPSHOT_AGE: Final = MBean(*_SNAPSHOTS, "LatestSnapshotGeneratedAgeMs", "Age of what it has, else of the process, ms.")
LEADER: Final = _raft("current-leader", "Node id of the leader of the metadata.")
EPOCH: Final = _raft("current-epoch", "Its epoch.")
HIGH_WATERMARK: Final = _raft("high-watermark", "Offset up to which the metadata are durable.")
LOG_END: Final = _raft("log-end-offset", "Offset of the next metadata record.")
VOTERS: Final = _raft("number-of-voters", "Voters of the quorum.")
OBSERVERS: Final = _raft("number-of-observers", "Brokers and controllers that follow the metadata.")

MBEANS: Final = (
    *(ACTIVE_CONTROLLERS, NEW_ACTIVE, ACTIVE_BROKERS, FENCED_BROKERS, LEAVING_BROKERS, BROKER_STATE, BROKER_SILENCE),
    *(TOPICS, PARTITIONS, OFFLINE, IMBALANCED, APPLIED_OFFSET, APPLIED_TIME, APPLIED_LAG, COMMITTED_OFFSET, STARTED),
    *(UNCLEAN, FROM_ELR, *histogram(QUEUE_TIME), *histogram(PROCESSING_TIME), METADATA_VERSION, FEATURE),
    *(CONTROLLER_ID, SNAPSHOT_BYTES, SNAPSHOT_AGE, LEADER, EPOCH, HIGH_WATERMARK, LOG_END, VOTERS, OBSERVERS),
)
"""Kafka's MBeans whose series the controller has."""


class BrokerFigures(Struct, frozen=True, kw_only=True):
    """Figures of a registered broker."""

    state: int
    silent_ms: int | None
    """Since its last heartbeat; None: there was none since this controller started."""


class Snapshot(Struct, frozen=True, kw_only=True):
    """Figures of the controller at one moment."""

    values: Sequence[tuple[MBean, float]]
    """Of MBeans that are there once."""
    brokers: Mapping[int, BrokerFigures]
    features: Mapping[str, int]
    certificates: Sequence[tuple[str, str, int]]
    """What each is for, its store, and its end in milliseconds since 1970."""
    waiting: int
    """Answers that wait for the log to be durable, and requests that wait for their turn."""
    queued: Durations
    worked: Durations


def snapshot(server: "ControllerServer", times: "TurnTimes", *, now_ms: int, wall_ms: int, started_ms: int) -> Snapshot:
    """Return the controller's figures now; monotonic and wall time, and the monotonic time of the start, are in ms."""
    controller, log = server.controller, server.log
    brokers = list(controller.image.brokers.values())
    index, queued = controller.index, times.queued.now()
    written_ms = log.last_timestamp_ms if log.last_timestamp_ms >= 0 else None
    size, at_ms = server.snapshots.newest()
    values: list[tuple[MBean, float]] = [
        (ACTIVE_CONTROLLERS, 1),
        (NEW_ACTIVE, 1),
        (ACTIVE_BROKERS, sum(not broker.fenced for broker in brokers)),
        (FENCED_BROKERS, sum(broker.fenced for broker in brokers)),
        (LEAVING_BROKERS, sum(broker.in_controlled_shutdown for broker in brokers)),
        (TOPICS, len(controller.image.topics)),
        (PARTITIONS, index.partitions),
        (OFFLINE, index.leaderless_count),
        (IMBALANCED, index.imbalanced_count),
        (APPLIED_OFFSET, log.end_offset - 1),
        *(() if written_ms is None else ((APPLIED_TIME, written_ms), (APPLIED_LAG, max(0, wall_ms - written_ms)))),
        (COMMITTED_OFFSET, log.end_offset - 1),
        (STARTED, queued.count),
        (UNCLEAN, index.unclean_elections),
        (FROM_ELR, index.eligible_elections),
        (METADATA_VERSION, controller.image.metadata_version),
        (CONTROLLER_ID, controller.settings.node_id),
        (SNAPSHOT_BYTES, size),
        (SNAPSHOT_AGE, now_ms - started_ms if at_ms is None else max(0, wall_ms - at_ms)),
        *((LEADER, controller.settings.node_id), (EPOCH, server.quorum.epoch), (VOTERS, 1)),
        *((HIGH_WATERMARK, log.end_offset), (LOG_END, log.next_offset)),
        (OBSERVERS, server.quorum.observer_count(wall_ms)),
    ]
    return Snapshot(
        values=values,
        brokers={broker.id: _figures(server, broker, now_ms) for broker in brokers},
        features=controller.cluster.finalized_features(),
        certificates=tuple(server.certificates.ends()),
        waiting=server.waiting,
        queued=queued,
        worked=times.worked.now(),
    )


def _figures(server: "ControllerServer", broker: BrokerRegistration, now_ms: int) -> BrokerFigures:
    contact = server.controller.heartbeats.contact(broker.id, broker.epoch)
    state = FENCED if broker.fenced else CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else ACTIVE
    return BrokerFigures(state=state, silent_ms=None if contact is None else max(0, now_ms - contact.last_contact_ms))


def metrics(now: Snapshot, *, certificates: bool = True) -> Iterator[Metric]:
    """Return all series of a picture. Pass ``certificates`` only if no other part of the process exports them."""
    yield from families(_of_kafka(now))
    yield GaugeMetricFamily(
        "kjbod_controller_requests_waiting", "Requests that wait for their turn or for the log.", now.waiting
    )
    if certificates:
        yield ends_of_certificates(now.certificates)
    for name, text, durations in (
        ("queue", "How long requests and timers waited for their turn.", now.queued),
        ("turn", "How long their turns took.", now.worked),
    ):
        family = HistogramMetricFamily(f"kjbod_controller_{name}_seconds", text)
        family.add_metric([], durations.cumulative(), durations.sum_ns / 1e9)
        yield family


def _of_kafka(now: Snapshot) -> Iterator[Reading]:
    yield from (Reading(bean, value) for bean, value in now.values)
    for broker_id, broker in now.brokers.items():
        yield Reading(BROKER_STATE, broker.state, str(broker_id))
        if broker.silent_ms is not None:
            yield Reading(BROKER_SILENCE, broker.silent_ms, str(broker_id))
    yield from (Reading(FEATURE, level, _camel(name)) for name, level in now.features.items())
    yield from readings_of(QUEUE_TIME, now.queued)
    yield from readings_of(PROCESSING_TIME, now.worked)


def _camel(feature: str) -> str:
    """Convert ``metadata.version`` to ``metadataVersion`` (``MetadataLoaderMetrics``)."""
    first, *others = feature.split(".")
    return "".join((first, *(part.capitalize() for part in others)))
