"""IncrementalAlterConfigs (``ConfigurationControlManager``): dynamic configurations of topics and brokers.

Each resource is changed as a whole or refused as a whole; one that is refused does not stop the others. A change of a
broker's configuration is written even where the value stays as it is, as Kafka does, so that brokers act on it again
(KAFKA-14136).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from kjbod.metadata.image import BROKER, TOPIC, MetadataImage
from kjbod.metadata.records import ConfigRecord
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)
from kjbod_controller_stub.results import ApiError, Draft
from kjbod_controller_stub.topics import TOPIC_CONFIGS

CHANGES_PER_REQUEST_MAX: Final = 10_000
"""Records that one user request may make (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
BROKER_CONFIGS: Final = frozenset(
    (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.segment.delete.delay.ms",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
)
"""Dynamic configurations of brokers that an agent, or a tool that works on one, has a use for: numbers from 0 on."""
LIST_CONFIGS: Final = frozenset(
    ("cleanup.policy", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas")
)
_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_Change = Callable[[str | None, IncrementalAlterConfigsRequestConfig], str | None]


def alter_configs(draft: Draft, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
    """Make the records, and the outcome for each resource."""
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    too_many = sum(len(each.configs) for each in request.resources) > CHANGES_PER_REQUEST_MAX
    answers = []
    for resource in request.resources:
        try:
            if too_many:
                raise ApiError(ErrorCode.POLICY_VIOLATION, "Excessively large number of changes per request.")
            if times[resource.resource_type, resource.resource_name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            records = list(_records(draft.image, resource))
        except ApiError as error:
            answers.append(_answer(resource, error.code, error.message))
        else:
            answers.append(_answer(resource))
            if not request.validate_only:
                for record in records:
                    draft.add(record)
    return IncrementalAlterConfigsResponse(responses=tuple(answers))


def _answer(
    resource: IncrementalAlterConfigsRequestResource, code: int = 0, message: str | None = None
) -> IncrementalAlterConfigsResponseResource:
    return IncrementalAlterConfigsResponseResource(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _records(image: MetadataImage, resource: IncrementalAlterConfigsRequestResource) -> Iterator[ConfigRecord]:
    kind, name = resource.resource_type, resource.resource_name
    _check_resource(image, kind, name)
    current = image.configs.get((kind, name), {})
    seen = set()
    for config in resource.configs:
        if config.name in seen:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config key {config.name}")
        seen.add(config.name)
        _check_name(kind, config.name)
        before = current.get(config.name)
        after = _changed(before, config)
        if kind == BROKER and after is not None and not _NUMBER.fullmatch(after):
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {after} for configuration {config.name}")
        if after != before or kind == BROKER:
            yield ConfigRecord(resource_type=kind, resource_name=name, name=config.name, value=after)


def _check_resource(image: MetadataImage, kind: int, name: str) -> None:
    if kind == TOPIC:
        if name not in image.topic_ids:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif kind == BROKER:
        if name and (not _NUMBER.fullmatch(name) or int(name) not in image.brokers):
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found.")
    else:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected resource type {kind}: only topics and brokers have one.")


def _check_name(kind: int, name: str) -> None:
    if kind == TOPIC and name not in TOPIC_CONFIGS:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
    if kind == BROKER and name not in BROKER_CONFIGS:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Broker config {name} cannot be changed while it runs.")


def _changed(before: str | None, change: IncrementalAlterConfigsRequestConfig) -> str | None:
    """The value after one change; None: unset."""
    operation = _OPERATIONS.get(change.config_operation)
    if operation is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported operation {change.config_operation}")
    return operation(before, change)


def _given(change: IncrementalAlterConfigsRequestConfig) -> str:
    if change.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for config {change.name}")
    return change.value


def _items(change: IncrementalAlterConfigsRequestConfig, before: str | None) -> tuple[list[str], list[str]]:
    """The list before, and what the change names."""
    if change.name not in LIST_CONFIGS:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"The type of config {change.name} is not a list.")
    return (before.split(",") if before else []), [item.strip() for item in _given(change).split(",") if item.strip()]


def _append(before: str | None, change: IncrementalAlterConfigsRequestConfig) -> str:
    old, new = _items(change, before)
    return ",".join(dict.fromkeys((*old, *new)))


def _subtract(before: str | None, change: IncrementalAlterConfigsRequestConfig) -> str:
    old, gone = _items(change, before)
    return ",".join(item for item in old if item not in gone)


_OPERATIONS: Final[dict[int, _Change]] = {
    0: lambda before, change: _given(change),
    1: lambda before, change: None,
    2: _append,
    3: _subtract,
}
"""``AlterConfigOp.OpType``: set, delete, append, subtract."""
