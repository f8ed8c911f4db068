"""Alter dynamic configurations (``ConfigurationControlManager``, ``ControllerConfigurationValidator``) of topics,
single brokers, all brokers, consumer groups and client metrics subscriptions.

Each resource is changed as a whole or refused as a whole; one that is refused does not stop the others. A change of a
broker's configuration is written even where the value stays as it is, as Kafka does, so that brokers act on it again
(KAFKA-14136). A change of ``min.insync.replicas`` clears what was eligible to lead under the old value (KIP-966).
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

from msgspec import Struct

from kjbod.metadata import versions
from kjbod.metadata.image import BROKER, TOPIC, Change, ConfigChange, MetadataImage
from kjbod.metadata.records import ConfigRecord
from kjbod.topic_names import topic_name_problem
from kjbod.wire.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseResourceResponse,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    CreateTopicsResponseConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
)
from kjbod_controller_stub.configs.java_order import hash_map_order
from kjbod_controller_stub.configs.node_configs import is_of_single_nodes, node_keys, rate_keys
from kjbod_controller_stub.configs.topic_configs import (
    SYNONYMS,
    TOPIC_CONFIGS,
    check_client_metrics_configs,
    check_group_configs,
    check_topic_configs,
)
from kjbod_controller_stub.configs.types import ConfigKey, ConfigType, split_list
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.results import ApiError, Draft
from kjbod_controller_stub.rules import Rules

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
"""``ConfigRecord.resource_type`` of other resources (``ConfigResource.Type``)."""
KNOWN_TYPES: Final = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))
CHANGES_PER_REQUEST_MAX: Final = 10_000
"""Records that one user request may make (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
VALUE_LENGTH_MAX: Final = 32_767
"""Longest value of a configuration, and longest name, in characters."""
CORDONED: Final = "cordoned.log.dirs"
_NODE_ID: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_NODE_ID_MAX: Final = 2**31 - 1

Resource = tuple[int, str]
"""Type and name."""


class ConfigSource(IntEnum):
    """Source of a value (``DescribeConfigsResponse.ConfigSource``)."""

    TOPIC = 1
    BROKER = 2
    DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


class EffectiveConfig(Struct, frozen=True):
    """Value of one key of a topic, with its source (``ConfigSource``)."""

    name: str
    value: str | None
    source: int


@dataclasses.dataclass(slots=True, kw_only=True)
class Configs:
    """Makes the records that change configurations, and resolves the configuration of topics."""

    image: MetadataImage
    node_id: int
    rules: Rules
    static: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """This node's ``server.properties``."""
    _of_new_topic: tuple[CreateTopicsResponseConfig, ...] | None = None
    """What a topic gets that names nothing: the same for all until a broker's configuration changes."""
    _static_of_topics: dict[str, str] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._static_of_topics = {
            name: found.convert(self.static[found.name])
            for name, synonyms in SYNONYMS.items()
            if (found := next((synonym for synonym in synonyms if synonym.name in self.static), None)) is not None
        }

    def apply(self, change: Change) -> None:
        """Follow one change of the image: node configs that apply to topics."""
        if isinstance(change, ConfigChange) and change.resource_type == BROKER:
            self._of_new_topic = None

    # ---- what topics get

    def of_new_topic(self, given: Mapping[str, str]) -> tuple[CreateTopicsResponseConfig, ...]:
        """Return every key of a new topic by name, with the values in ``given`` (``computeEffectiveTopicConfigs``)."""
        if self._of_new_topic is None:
            keys = sorted((key for key in TOPIC_CONFIGS.values() if not key.internal), key=lambda key: key.name)
            effective = [self.from_nodes(key) for key in keys]
            self._of_new_topic = tuple(_told(each.name, each.value, each.source) for each in effective)
        if not given:
            return self._of_new_topic
        return tuple(
            _told(each.name, given[each.name], ConfigSource.TOPIC) if each.name in given else each
            for each in self._of_new_topic
        )

    def from_nodes(self, key: ConfigKey) -> EffectiveConfig:
        """Return the value for a topic without its own value (``KafkaConfigSchema.resolveEffectiveTopicConfig``)."""
        for values, source in (
            (self.image.configs.get((BROKER, str(self.node_id)), {}), ConfigSource.BROKER),
            (self.image.configs.get((BROKER, ""), {}), ConfigSource.DEFAULT_BROKER),
            (self.static, ConfigSource.STATIC_BROKER),
        ):
            for synonym in SYNONYMS.get(key.name, ()):
                if synonym.name in values:
                    return EffectiveConfig(key.name, synonym.convert(values[synonym.name]), source)
        return EffectiveConfig(key.name, key.default, ConfigSource.DEFAULT)

    # ---- records

    def records_of_new_topic(self, name: str, given: Mapping[str, str]) -> list[ConfigRecord]:
        """Return the configuration records of a new topic.

        Raises:
            ApiError: INVALID_CONFIG.
        """
        if not given:
            return []
        records = [_record((TOPIC, name), key, given[key]) for key in hash_map_order(given)]
        self._check((TOPIC, name), records, exists=False)
        return records

    def alter_incrementally(
        self, draft: Draft, request: IncrementalAlterConfigsRequest, *, forwarded: bool = False
    ) -> IncrementalAlterConfigsResponse:
        """Make the records, and the outcome for each resource. ``forwarded``: a broker has already checked the
        request."""
        wanted = {
            (each.resource_type, each.resource_name): {config.name: config for config in each.configs}
            for each in request.resources
        }
        outcomes = self._alter(
            draft,
            [(each.resource_type, each.resource_name) for each in request.resources],
            lambda resource: list(self._changed(resource, wanted[resource])),
            changes=sum(map(len, wanted.values())),
            forwarded=forwarded,
            validate_only=request.validate_only,
        )
        return IncrementalAlterConfigsResponse(
            responses=tuple(
                IncrementalAlterConfigsResponseResource(
                    error_code=error.code if error else 0,
                    error_message=(error.message or None) if error else None,
                    resource_type=kind,
                    resource_name=name,
                )
                for (kind, name), error in outcomes
            )
        )

    def alter_whole(
        self, draft: Draft, request: AlterConfigsRequest, *, forwarded: bool = False
    ) -> AlterConfigsResponse:
        """Alter with the older request, which lists the complete configuration of a resource."""
        wanted = {
            (each.resource_type, each.resource_name): {config.name: config.value for config in each.configs}
            for each in request.resources
        }
        outcomes = self._alter(
            draft,
            [(each.resource_type, each.resource_name) for each in request.resources],
            lambda resource: list(self._replaced(resource, wanted[resource])),
            changes=sum(map(len, wanted.values())),
            forwarded=forwarded,
            validate_only=request.validate_only,
            loggers=False,
        )
        return AlterConfigsResponse(
            responses=tuple(
                AlterConfigsResponseResourceResponse(
                    error_code=error.code if error else 0,
                    error_message=(error.message or None) if error else None,
                    resource_type=kind,
                    resource_name=name,
                )
                for (kind, name), error in outcomes
            )
        )

    def _alter(
        self,
        draft: Draft,
        resources: Sequence[Resource],
        make: Callable[[Resource], list[ConfigRecord]],
        *,
        changes: int,
        forwarded: bool,
        validate_only: bool,
        loggers: bool = True,
    ) -> list[tuple[Resource, ApiError | None]]:
        """Alter resources, each once, and return their errors or None. Records of resources without an error go into
        the draft."""
        if changes > CHANGES_PER_REQUEST_MAX:
            error = ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
            return [(resource, error) for resource in resources]
        times = Counter(resources)
        written: list[ConfigRecord] = []
        outcomes: list[tuple[Resource, ApiError | None]] = []
        for resource in times:
            try:
                _check_kind(resource, times[resource], self.node_id, loggers=loggers)
                records = make(resource)
                self._check(resource, records, forwarded=forwarded)
            except ApiError as error:
                outcomes.append((resource, error))
            else:
                outcomes.append((resource, None))
                written += records
        for record in () if validate_only else (*written, *eligible.clearing_records(self.image, written)):
            draft.add(record)
        return outcomes

    def _changed(
        self, resource: Resource, changes: Mapping[str, IncrementalAlterConfigsRequestConfig]
    ) -> Iterator[ConfigRecord]:
        current = self.image.configs.get(resource, {})
        for change in map(changes.__getitem__, hash_map_order(changes)):
            before = current.get(change.name)
            after = _apply(resource[0], before, change)
            if after != before or resource[0] == BROKER:
                yield _record(resource, change.name, after)

    def _replaced(self, resource: Resource, wanted: Mapping[str, str | None]) -> Iterator[ConfigRecord]:
        current = self.image.configs.get(resource, {})
        for name in hash_map_order(wanted):
            value = wanted[name]
            if value != current.get(name) or resource[0] == BROKER:
                yield _record(resource, name, value)
        for name in current:
            if name not in wanted:
                yield _record(resource, name, None)

    # ---- checks

    def _check(
        self, resource: Resource, records: Iterable[ConfigRecord], *, exists: bool = True, forwarded: bool = False
    ) -> None:
        """Refuse a change of one resource (``validateAlterConfig``)."""
        before = self.image.configs.get(resource, {})
        after = dict(before)
        for record in records:
            eligible.check_change(self.image, record)
            if resource[0] == BROKER and record.name == CORDONED:
                self._check_cordoned(record.value, before.get(CORDONED), forwarded=forwarded)
            if record.value is None:
                after.pop(record.name, None)
                continue
            if max(len(record.value), len(record.name)) > VALUE_LENGTH_MAX:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    "The configuration value cannot be added because it exceeds the maximum value size of "
                    f"{VALUE_LENGTH_MAX} bytes.",
                )
            after[record.name] = record.value
        self._check_values(resource, before, after)
        if exists:
            self._check_exists(resource)
        if resource[0] == BROKER and self.rules.checks_broker_configs:
            _check_broker_values(records)

    def _check_cordoned(self, value: str | None, before: str | None, *, forwarded: bool) -> None:
        """Check cordoned directories: only the broker itself knows its paths, and it forwards requests that it has
        checked."""
        if self.image.metadata_version < versions.CORDONED_LOG_DIRS:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                "The cordoned.log.dirs configuration value cannot be set because it requires metadata.version >= "
                "4.3-IV0",
            )
        wanted, cordoned = ({each.strip() for each in split_list(text)} for text in (value, before))
        if not forwarded and not wanted <= cordoned:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                "When updating cordoned.log.dirs via controllers,  the new value must be a subset of the current "
                "configuration value.",
            )

    def _check_values(self, resource: Resource, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        kind, name = resource
        if kind == TOPIC:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
            if problem := topic_name_problem(name):
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            tiered = self.static.get("remote.log.storage.system.enable", "").strip().lower() == "true"
            check_topic_configs(before, after, self._static_of_topics, tiered_storage=tiered)
        elif kind == BROKER:
            node_id(name)
        elif kind == GROUP:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
            check_group_configs(after, self.static)
        else:
            if not name:
                raise ApiError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
            check_client_metrics_configs(after)

    def _check_exists(self, resource: Resource) -> None:
        kind, name = resource
        if kind == TOPIC and name not in self.image.topic_ids:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if kind == BROKER and name:
            number = node_id(name)
            if number != self.node_id and number not in self.image.brokers and number not in self.image.controllers:
                raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"No node with id {name} found.")


def node_id(name: str) -> int | None:
    """Return the node id of a resource of type BROKER, None for all nodes.

    Raises:
        ApiError: INVALID_REQUEST.
    """
    if not name:
        return None
    if not _NODE_ID.fullmatch(name) or not -_NODE_ID_MAX - 1 <= int(name) <= _NODE_ID_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
    if int(name) < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid negative broker ID.")
    return int(name)


def broker_key(name: str) -> ConfigKey | None:
    """Return a key of nodes, including keys that no file has; None if Kafka does not know it: a plug-in may."""
    return node_keys().get(name) or rate_keys().get(name)


def _told(name: str, value: str | None, source: int) -> CreateTopicsResponseConfig:
    return CreateTopicsResponseConfig(name=name, value=value, config_source=source)


def _record(resource: Resource, name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=resource[0], resource_name=resource[1], name=name, value=value)


def _check_kind(resource: Resource, times: int, own_id: int, *, loggers: bool) -> None:
    kind, name = resource
    if kind not in KNOWN_TYPES:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {kind}.")
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
    if kind != BROKER_LOGGER:
        return
    if not loggers:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Unexpected resource type BROKER_LOGGER.")
    if name != str(own_id):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {own_id}, but received {name}")
    raise ApiError(ErrorCode.INVALID_REQUEST, "kjbod controller has no loggers whose level can be set.")


def _check_broker_values(records: Iterable[ConfigRecord]) -> None:
    """Refuse broker configs that every broker would reject: brokers would ignore such a record for ever."""
    for record in records:
        key = broker_key(record.name)
        if key is None or record.value is None:
            continue
        if not key.dynamic:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"Broker config {record.name} cannot be changed while a broker runs."
            )
        if not record.resource_name and is_of_single_nodes(record.name):
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Broker config {record.name} can be set for single brokers only.")
        key.parse(record.value)


def _apply(kind: int, before: str | None, change: IncrementalAlterConfigsRequestConfig) -> str | None:
    """Return the value after one change; None: unset. Operations: ``AlterConfigOp.OpType``."""
    operation = change.config_operation
    if operation == 0:
        return change.value
    if operation == 1:
        return None
    word = {2: "APPEND", 3: "SUBTRACT"}.get(operation)
    if word is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    key = TOPIC_CONFIGS.get(change.name) if kind == TOPIC else broker_key(change.name) if kind == BROKER else None
    if key is None or key.type is not ConfigType.LIST:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Can't {word} to key {change.name} because its type is not LIST.")
    if change.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {change.name}")
    entries = split_list(key.default if before is None else before)
    given = change.value.rstrip(",").split(",")  # empty entries at the end do not count
    if operation == 2:
        return ",".join([*entries, *(each for each in dict.fromkeys(given) if each not in entries)])
    gone = Counter(given)
    return ",".join(_without(entries, gone))


def _without(entries: Iterable[str], gone: Counter[str]) -> Iterator[str]:
    """Return the entries without the named ones; each name removes its first occurrence."""
    for entry in entries:
        if gone[entry] > 0:
            gone[entry] -= 1
        else:
            yield entry
