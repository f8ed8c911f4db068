"""CreateTopics and DeleteTopics (``ReplicationControlManager.createTopics``, ``deleteTopics``; ``ControllerApis``)."""

from collections import Counter
from collections.abc import Callable, Set

from msgspec import Struct

from kjbod.ids import METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata.image import Change, MetadataImage, TopicCreated, TopicDeleted
from kjbod.metadata.records import AnyRecord, RemoveTopicRecord, TopicRecord
from kjbod.topic_names import topic_name_problem
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
)
from kjbod_controller_stub.access.mutation_quotas import UNLIMITED, Charge
from kjbod_controller_stub.configs.altering import Configs
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.partitions.new_partitions import RECORDS_PER_REQUEST_MAX, TOO_LARGE, NewPartitions
from kjbod_controller_stub.results import ApiError, Draft

PARTITIONS_PER_REQUEST_MAX = RECORDS_PER_REQUEST_MAX
"""Partitions that one CreateTopics may ask for (``QuorumController.validateTotalNumberOfPartitions``)."""
_TOPIC_DELETION_DISABLED_SINCE = 3
"""DeleteTopics version from which that error exists."""


class TopicDefaults(Struct, frozen=True, kw_only=True):
    """Default values for a topic whose request does not set them."""

    num_partitions: int = 1
    replication_factor: int = 1


class _Creation(Struct):
    """Progress of a CreateTopics request."""

    records: list[AnyRecord]
    taken: dict[str, str]
    """Names that it has created, by the name that metrics have."""
    charge: Charge


class Topics:
    """Makes the records that create and delete topics."""

    def __init__(
        self,
        image: MetadataImage,
        defaults: TopicDefaults,
        draw_id: Callable[[], Uuid],
        partitions: NewPartitions,
        configs: Configs,
    ) -> None:
        self._image = image
        self._defaults = defaults
        self._draw_id = draw_id
        self._partitions = partitions
        self._configs = configs
        self._collisions: dict[str, dict[str, None]] = {}

    def apply(self, change: Change) -> None:
        """Follow one change of the image: track names that metrics cannot distinguish."""
        if isinstance(change, TopicCreated):
            self._collisions.setdefault(_metric_name(change.topic.name), {})[change.topic.name] = None
        elif isinstance(change, TopicDeleted):
            metric = _metric_name(change.topic.name)
            names = self._collisions[metric]
            names.pop(change.topic.name, None)
            if not names:
                del self._collisions[metric]

    # ---- create

    def create(self, draft: Draft, request: CreateTopicsRequest, charge: Charge = UNLIMITED) -> CreateTopicsResponse:
        """Create topics, each on its own: a refused topic does not stop the others. Valid topics count against the
        sender's quota, even if they are only validated."""
        times = Counter(topic.name for topic in request.topics)
        try:
            once = [topic for topic in request.topics if times[topic.name] == 1]
            answers, records = self._create_all(once, charge)
        except ApiError as error:  # the request as a whole
            return CreateTopicsResponse(topics=tuple(_refused(name, error) for name in times))
        twice = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
        answers += [_refused(name, twice) for name, count in times.items() if count > 1]
        for record in () if request.validate_only else records:
            draft.add(record)
        return CreateTopicsResponse(topics=tuple(answers))

    def _create_all(
        self, topics: list[CreateTopicsRequestTopic], charge: Charge
    ) -> tuple[list[CreateTopicsResponseTopic], list[AnyRecord]]:
        """Return the outcome of each topic, and the records of the valid ones.

        Raises:
            ApiError: POLICY_VIOLATION: too many partitions, or records.
        """
        if sum(map(self._partitions_of, topics)) > PARTITIONS_PER_REQUEST_MAX:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
        creation = _Creation([], {}, charge)
        answers = []
        for topic in topics:
            try:
                answers.append(self._create(creation, topic))
            except ApiError as error:
                answers.append(_refused(topic.name, error))
            if len(creation.records) > RECORDS_PER_REQUEST_MAX:
                raise TOO_LARGE
        return answers, creation.records

    def _partitions_of(self, topic: CreateTopicsRequestTopic) -> int:
        if topic.assignments:
            return len(topic.assignments)
        return self._defaults.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)

    def _create(self, creation: _Creation, topic: CreateTopicsRequestTopic) -> CreateTopicsResponseTopic:
        self._check_name(topic.name, creation.taken)
        nulls = [config.name for config in topic.configs if config.value is None]
        if nulls:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
        configs = {config.name: config.value for config in topic.configs if config.value is not None}
        config_records = self._configs.records_of_new_topic(topic.name, configs)
        placed = self._assigned(topic) if topic.assignments else self._placed(topic)
        creation.charge.take(len(placed))
        topic_id = self._draw_id()
        while topic_id in self._image.topics:
            topic_id = self._draw_id()
        creation.records += (
            TopicRecord(name=topic.name, topic_id=topic_id),
            *config_records,
            *eligible.clearing_records(self._image, config_records),
            *self._partitions.records(topic_id, 0, placed),
        )
        creation.taken[_metric_name(topic.name)] = topic.name
        return CreateTopicsResponseTopic(
            name=topic.name,
            topic_id=topic_id,
            num_partitions=len(placed),
            replication_factor=len(placed[0]),
            configs=self._configs.of_new_topic(configs),
        )

    def _check_name(self, name: str, taken: dict[str, str]) -> None:
        if name == METADATA_TOPIC_NAME:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited.")
        if problem := topic_name_problem(name):
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name in self._image.topic_ids:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        metric = _metric_name(name)
        other = next(iter(self._collisions.get(metric, ())), None)
        if other is None and self._configs.rules.checks_collisions_in_request:
            other = taken.get(metric)
        if other is not None:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")

    def _assigned(self, topic: CreateTopicsRequestTopic) -> list[tuple[int, ...]]:
        """Return the replicas of each partition from the request."""
        for what, number in (("replication factor", topic.replication_factor), ("numPartitions", topic.num_partitions)):
            if number != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        placed: dict[int, tuple[int, ...]] = {}
        expected = None
        for assignment in topic.assignments:
            number, replicas = assignment.partition_index, assignment.broker_ids
            if number in placed:
                raise ApiError(invalid, f"Found multiple manual partition assignments for partition {number}")
            self._partitions.check_assignment(replicas, expected)
            self._partitions.check_active(number, replicas)
            expected = len(replicas)
            placed[number] = replicas
        if any(number not in placed for number in range(len(placed))):
            raise ApiError(invalid, "partitions should be a consecutive 0-based integer sequence")
        return [placed[number] for number in range(len(placed))]

    def _placed(self, topic: CreateTopicsRequestTopic) -> list[tuple[int, ...]]:
        """Return the replicas of each partition, placed by the controller."""
        if topic.replication_factor < -1 or topic.replication_factor == 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.num_partitions < -1 or topic.num_partitions == 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        factor = self._defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
        try:
            return self._partitions.place(self._partitions_of(topic), factor)
        except ApiError as error:
            raise ApiError(error.code, f"Unable to replicate the partition {factor} time(s): {error.message}") from None


# ---------------------------------------------------------------- delete


def delete_topics(
    draft: Draft, request: DeleteTopicsRequest, *, version: int, enabled: bool = True, charge: Charge = UNLIMITED
) -> DeleteTopicsResponse:
    """Delete topics by name or id, each on its own. A topic that is named twice, even once by name and once by id, is
    not deleted.

    ``enabled``: value of ``delete.topic.enable``.
    """
    wanted = Counter((*request.topics, *(DeleteTopicsRequestTopic(name=name) for name in request.topic_names)))
    by_id = {topic.topic_id for topic in wanted if topic.name is None}
    by_name = {draft.image.topic_ids.get(topic.name) for topic in wanted if topic.name is not None}
    answers = []
    for topic, times in wanted.items():
        try:
            if not enabled:
                raise _deletion_disabled(version)
            topic_id = _find(draft.image, topic, times, by_id)
        except ApiError as error:
            answers.append(
                DeleteTopicsResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, error_code=error.code, error_message=error.message or None
                )
            )
            continue
        if topic.name is None and topic_id in by_name:
            continue  # refused, and answered, under its name
        answers.append(_delete(draft, topic_id, charge))
    return DeleteTopicsResponse(responses=tuple(answers))


def _delete(draft: Draft, topic_id: Uuid, charge: Charge) -> DeleteTopicsResponseTopic:
    """Delete the topics that the sender's quota allows."""
    topic = draft.image.topics[topic_id]
    try:
        charge.take(len(topic.partitions))
    except ApiError as error:
        return DeleteTopicsResponseTopic(
            name=topic.name, topic_id=topic_id, error_code=error.code, error_message=error.message or None
        )
    draft.add(RemoveTopicRecord(topic_id=topic_id))
    return DeleteTopicsResponseTopic(name=topic.name, topic_id=topic_id)


def _deletion_disabled(version: int) -> ApiError:
    if version < _TOPIC_DELETION_DISABLED_SINCE:
        return ApiError(ErrorCode.INVALID_REQUEST, "Topic deletion is disabled.")
    return ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")


def _find(image: MetadataImage, topic: DeleteTopicsRequestTopic, times: int, by_id: Set[Uuid]) -> Uuid:
    """Return the topic to delete.

    Raises:
        ApiError: there is none, or it is not said which.
    """
    if topic.name is None:
        if topic.topic_id == ZERO:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        if times > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
        if topic.topic_id not in image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        return topic.topic_id
    if topic.topic_id != ZERO:
        raise ApiError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    topic_id = image.topic_ids.get(topic.name)
    if topic_id is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if topic_id in by_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied.")
    return topic_id


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def _refused(name: str, error: ApiError) -> CreateTopicsResponseTopic:
    return CreateTopicsResponseTopic(name=name, error_code=error.code, error_message=error.message or None)
