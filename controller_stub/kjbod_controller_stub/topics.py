"""CreateTopics and DeleteTopics (``ReplicationControlManager.createTopics``, ``deleteTopics``).

A new partition's ISR is its active replicas, its leader the first of them, its directories the default ones: a broker
with one directory gets that one at once, any other chooses for itself and says so (``UNASSIGNED``).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kjbod.ids import METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import TOPIC, Change, MetadataImage, TopicCreated, TopicDeleted
from kjbod.metadata.records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from kjbod.topics import topic_name_problem
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
)
from kjbod_controller_stub.placement import ReplicaPlacer, Shuffle, UsableBroker
from kjbod_controller_stub.results import ApiError, Draft

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Records that one user request may make (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
_DYNAMIC_TOPIC_CONFIG = 1
"""``ConfigSource.TOPIC_CONFIG`` in a CreateTopics answer."""

TOPIC_CONFIGS = frozenset(
    (
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "errors.deadletterqueue.copy.record.enable",
        "errors.deadletterqueue.topic.name",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "internal.segment.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.copy.disable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    )
)
"""Names of topic configurations of Kafka 4.3 (``TopicConfig``, ``LogConfig``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaults:
    """What a topic gets that does not say."""

    num_partitions: int = 1
    replication_factor: int = 1


class Topics:
    """Makes the records that create and delete topics."""

    def __init__(
        self, image: MetadataImage, defaults: TopicDefaults, draw_id: Callable[[], Uuid], shuffle: Shuffle
    ) -> None:
        self._image = image
        self._defaults = defaults
        self._draw_id = draw_id
        self._shuffle = shuffle
        self._collisions: dict[str, dict[str, None]] = {}

    def apply(self, change: Change) -> None:
        """Follow one change of the image: names that metrics cannot tell apart."""
        if isinstance(change, TopicCreated):
            self._collisions.setdefault(_metric_name(change.topic.name), {})[change.topic.name] = None
        elif isinstance(change, TopicDeleted):
            self._collisions[_metric_name(change.topic.name)].pop(change.topic.name, None)

    # ---- create

    def create(self, draft: Draft, request: CreateTopicsRequest) -> CreateTopicsResponse:
        """Create topics, each on its own: one that is refused does not stop the others."""
        times = Counter(topic.name for topic in request.topics)
        if self._asks_too_much(request):
            return CreateTopicsResponse(
                topics=tuple(
                    _refused(
                        name,
                        ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request."),
                    )
                    for name in times
                )
            )
        taken: dict[str, str] = {}  # by the name that metrics have
        seen: set[str] = set()
        answers = []
        for topic in request.topics:
            if topic.name in seen:
                continue  # a duplicate, answered already
            seen.add(topic.name)
            try:
                if times[topic.name] > 1:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                answers.append(self._create(draft, topic, taken))
            except ApiError as error:
                answers.append(_refused(topic.name, error))
        if request.validate_only:
            draft.records.clear()
        return CreateTopicsResponse(topics=tuple(answers))

    def _asks_too_much(self, request: CreateTopicsRequest) -> bool:
        return (
            sum(
                len(topic.assignments)
                or (self._defaults.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0))
                for topic in request.topics
            )
            > PARTITIONS_PER_REQUEST_MAX
        )

    def _create(
        self, draft: Draft, topic: CreateTopicsRequestTopic, taken: dict[str, str]
    ) -> CreateTopicsResponseTopic:
        self._check_name(topic.name, taken)
        _check_configs(topic.configs)
        placed = self._assigned(topic) if topic.assignments else self._placed(topic)
        topic_id = self._draw_id()
        while topic_id in self._image.topics:
            topic_id = self._draw_id()
        draft.add(TopicRecord(name=topic.name, topic_id=topic_id))
        for config in topic.configs:
            draft.add(ConfigRecord(resource_type=TOPIC, resource_name=topic.name, name=config.name, value=config.value))
        for number, replicas in enumerate(placed):
            draft.add(self._partition_record(topic_id, number, replicas))
        taken[_metric_name(topic.name)] = topic.name
        return CreateTopicsResponseTopic(
            name=topic.name,
            topic_id=topic_id,
            num_partitions=len(placed),
            replication_factor=len(placed[0]),
            configs=tuple(
                CreateTopicsResponseConfig(name=config.name, value=config.value, config_source=_DYNAMIC_TOPIC_CONFIG)
                for config in topic.configs
            ),
        )

    def _check_name(self, name: str, taken: dict[str, str]) -> None:
        if name == METADATA_TOPIC_NAME:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        check_topic_name(name)
        if name in self._image.topic_ids:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        metric = _metric_name(name)
        other = next(iter(self._collisions.get(metric, ())), taken.get(metric))
        if other is not None and other != name:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def _assigned(self, topic: CreateTopicsRequestTopic) -> list[tuple[int, ...]]:
        """The replicas of each partition as the request has them."""
        for what, number in (
            ("replication factor", topic.replication_factor),
            ("number of partitions", topic.num_partitions),
        ):
            if number != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        by_number = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if sorted(by_number) != list(range(len(topic.assignments))):
            raise ApiError(invalid, "partitions should be a consecutive 0-based integer sequence.")
        placed = [by_number[number] for number in range(len(by_number))]
        for number, replicas in enumerate(placed):
            self._check_assignment(number, replicas, len(placed[0]))
        return placed

    def _check_assignment(self, number: int, replicas: tuple[int, ...], expected: int) -> None:
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if not replicas:
            raise ApiError(invalid, "The manual partition assignment includes an empty replica list.")
        if len(set(replicas)) != len(replicas):
            raise ApiError(invalid, "The manual partition assignment includes a broker more than once.")
        for broker in replicas:
            if broker not in self._image.brokers:
                raise ApiError(
                    invalid,
                    f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
                )
        if len(replicas) != expected:
            raise ApiError(
                invalid,
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {expected} replica(s).",
            )
        if not any(self._image.brokers[broker].active for broker in replicas):
            raise ApiError(
                invalid,
                f"All brokers specified in the manual partition assignment for partition {number} are fenced or in "
                "controlled shutdown.",
            )

    def _placed(self, topic: CreateTopicsRequestTopic) -> list[tuple[int, ...]]:
        """The replicas of each partition as the controller chooses them."""
        if topic.num_partitions < -1 or topic.num_partitions == 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor was set to an invalid non-positive value.",
            )
        partitions = self._defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions
        factor = self._defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
        try:
            placer = ReplicaPlacer(self._usable_brokers(), factor, self._shuffle)
        except ApiError as error:
            raise ApiError(error.code, f"Unable to replicate the partition {factor} time(s): {error.message}") from None
        return [placer.place() for _ in range(partitions)]

    def _usable_brokers(self) -> Iterable[UsableBroker]:
        for broker in self._image.brokers.values():
            if broker.in_controlled_shutdown and not broker.fenced:
                continue
            cordoned = broker.cordoned_log_dirs or ()
            if cordoned and set(broker.log_dirs) <= set(cordoned):
                continue
            yield UsableBroker(broker.id, broker.rack, broker.fenced)

    def _partition_record(self, topic_id: Uuid, number: int, replicas: tuple[int, ...]) -> PartitionRecord:
        isr = tuple(replica for replica in replicas if self._image.brokers[replica].active)
        directories: tuple[Uuid, ...] = ()
        if self._image.metadata_version >= versions.DIRECTORY_ASSIGNMENT:
            directories = tuple(self._image.default_dir(replica) for replica in replicas)
        return PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=replicas,
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=directories,
        )

    # ---- delete

    def delete(self, draft: Draft, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        """Delete topics by name or id, each on its own."""
        wanted = [*request.topics, *(DeleteTopicsRequestTopic(name=name) for name in request.topic_names)]
        gone: set[Uuid] = set()
        return DeleteTopicsResponse(responses=tuple(self._delete(draft, topic, gone) for topic in wanted))

    def _delete(self, draft: Draft, topic: DeleteTopicsRequestTopic, gone: set[Uuid]) -> DeleteTopicsResponseTopic:
        try:
            topic_id = self._find(topic)
            if topic_id in gone:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name or ID.")
        except ApiError as error:
            return DeleteTopicsResponseTopic(
                name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message or None
            )
        gone.add(topic_id)
        draft.add(RemoveTopicRecord(topic_id=topic_id))
        return DeleteTopicsResponseTopic(name=self._image.topics[topic_id].name, topic_id=topic_id)

    def _find(self, topic: DeleteTopicsRequestTopic) -> Uuid:
        if topic.name is None:
            if topic.topic_id not in self._image.topics:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
            return topic.topic_id
        if topic.topic_id != ZERO:
            raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        topic_id = self._image.topic_ids.get(topic.name)
        if topic_id is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
        return topic_id


def check_topic_name(name: str) -> None:
    """Refuse what no topic may be called (``common.internals.Topic.validate``).

    Raises:
        ApiError: INVALID_TOPIC_EXCEPTION.
    """
    problem = topic_name_problem(name)
    if problem:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def _check_configs(configs: Iterable[CreateTopicsRequestConfig]) -> None:
    seen = set()
    for config in configs:
        if config.name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate configuration {config.name}")
        seen.add(config.name)
        if config.name not in TOPIC_CONFIGS:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {config.name}")
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {config.name}")


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _refused(name: str, error: ApiError) -> CreateTopicsResponseTopic:
    return CreateTopicsResponseTopic(name=name, error_code=error.code, error_message=error.message or None)
