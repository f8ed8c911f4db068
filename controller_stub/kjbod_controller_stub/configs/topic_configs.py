"""Configuration of topics, consumer groups and client metrics subscriptions in Kafka 4.4.0 (``LogConfig``,
``GroupConfig``, ``ClientMetricsConfigs``)."""

import re
import warnings
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.configs.node_configs import node_keys
from kjbod_controller_stub.configs.types import (
    ConfigKey,
    ConfigType,
    Value,
    each_of,
    first_unknown,
    gzip_level,
    in_range,
    keys,
    one_of,
    parse_all,
    share_offset_reset,
    throttled_replicas,
)
from kjbod_controller_stub.results import ApiError

_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_DOUBLE, _STRING, _LIST = ConfigType.DOUBLE, ConfigType.STRING, ConfigType.LIST
_FOREVER: Final = str(2**63 - 1)
_ARRAY_BYTES_MAX: Final = 2**31 - 9
"""Kafka's largest array."""
_MS_PER_MINUTE: Final = 60_000
_MS_PER_HOUR: Final = 3_600_000

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = keys(
    ConfigKey("segment.bytes", _INT, "1073741824", in_range(1024 * 1024)),
    ConfigKey("segment.ms", _LONG, "604800000", in_range(1)),
    ConfigKey("segment.jitter.ms", _LONG, "0", in_range(0)),
    ConfigKey("segment.index.bytes", _INT, "10485760", in_range(4)),
    ConfigKey("flush.messages", _LONG, _FOREVER, in_range(1)),
    ConfigKey("flush.ms", _LONG, _FOREVER, in_range(0)),
    ConfigKey("retention.bytes", _LONG, "-1"),
    ConfigKey("retention.ms", _LONG, "604800000", in_range(-1)),
    ConfigKey("max.message.bytes", _INT, "1048588", in_range(0)),
    ConfigKey("index.interval.bytes", _INT, "4096", in_range(0)),
    ConfigKey("delete.retention.ms", _LONG, "86400000", in_range(0)),
    ConfigKey("min.compaction.lag.ms", _LONG, "0", in_range(0)),
    ConfigKey("max.compaction.lag.ms", _LONG, _FOREVER, in_range(1)),
    ConfigKey("file.delete.delay.ms", _LONG, "60000", in_range(0)),
    ConfigKey("min.cleanable.dirty.ratio", _DOUBLE, "0.5", in_range(0, 1)),
    ConfigKey("cleanup.policy", _LIST, "delete", each_of("compact", "delete")),
    ConfigKey("unclean.leader.election.enable", _BOOLEAN, "false"),
    ConfigKey("min.insync.replicas", _INT, "1", in_range(1)),
    ConfigKey(
        "compression.type",
        _STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    ConfigKey("compression.gzip.level", _INT, "-1", gzip_level),
    ConfigKey("compression.lz4.level", _INT, "9", in_range(1, 17)),
    ConfigKey("compression.zstd.level", _INT, "3", in_range(-131072, 22)),
    ConfigKey("preallocate", _BOOLEAN, "false"),
    ConfigKey("message.timestamp.type", _STRING, "CreateTime", one_of("CreateTime", "LogAppendTime")),
    ConfigKey("message.timestamp.before.max.ms", _LONG, _FOREVER, in_range(0)),
    ConfigKey("message.timestamp.after.max.ms", _LONG, "3600000", in_range(0)),
    ConfigKey("leader.replication.throttled.replicas", _LIST, "", throttled_replicas),
    ConfigKey("follower.replication.throttled.replicas", _LIST, "", throttled_replicas),
    ConfigKey("remote.storage.enable", _BOOLEAN, "false"),
    ConfigKey("local.retention.ms", _LONG, "-2", in_range(-2)),
    ConfigKey("local.retention.bytes", _LONG, "-2", in_range(-2)),
    ConfigKey("remote.log.copy.disable", _BOOLEAN, "false"),
    ConfigKey("remote.log.delete.on.disable", _BOOLEAN, "false"),
    ConfigKey("remote.copy.lag.ms", _LONG, "0", in_range(-1)),
    ConfigKey("remote.copy.lag.bytes", _LONG, "-1", in_range(-1)),
    ConfigKey("errors.deadletterqueue.group.enable", _BOOLEAN, "false"),
    ConfigKey("max.decompressed.message.bytes", _INT, str(_ARRAY_BYTES_MAX), in_range(1, _ARRAY_BYTES_MAX)),
    ConfigKey("internal.segment.bytes", _INT, None, internal=True),
)


class Synonym(Struct, frozen=True):
    """Node key that supplies the default of a topic key; ``factor`` converts its unit."""

    name: str
    factor: int = 1

    def convert(self, value: str) -> str:
        """Convert the node's value to the topic's unit."""
        if self.factor == 1:
            return value
        try:
            number = int(value.strip())
        except ValueError:
            return value
        return str(number if number < 0 else number * self.factor)


SYNONYMS: Final[Mapping[str, tuple[Synonym, ...]]] = {
    "cleanup.policy": (Synonym("log.cleanup.policy"),),
    "compression.gzip.level": (Synonym("compression.gzip.level"),),
    "compression.lz4.level": (Synonym("compression.lz4.level"),),
    "compression.type": (Synonym("compression.type"),),
    "compression.zstd.level": (Synonym("compression.zstd.level"),),
    "delete.retention.ms": (Synonym("log.cleaner.delete.retention.ms"),),
    "file.delete.delay.ms": (Synonym("log.segment.delete.delay.ms"),),
    "flush.messages": (Synonym("log.flush.interval.messages"),),
    "flush.ms": (Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    "index.interval.bytes": (Synonym("log.index.interval.bytes"),),
    "local.retention.bytes": (Synonym("log.local.retention.bytes"),),
    "local.retention.ms": (Synonym("log.local.retention.ms"),),
    "max.compaction.lag.ms": (Synonym("log.cleaner.max.compaction.lag.ms"),),
    "max.decompressed.message.bytes": (Synonym("max.decompressed.message.bytes"),),
    "max.message.bytes": (Synonym("message.max.bytes"),),
    "message.timestamp.after.max.ms": (Synonym("log.message.timestamp.after.max.ms"),),
    "message.timestamp.before.max.ms": (Synonym("log.message.timestamp.before.max.ms"),),
    "message.timestamp.type": (Synonym("log.message.timestamp.type"),),
    "min.cleanable.dirty.ratio": (Synonym("log.cleaner.min.cleanable.ratio"),),
    "min.compaction.lag.ms": (Synonym("log.cleaner.min.compaction.lag.ms"),),
    "min.insync.replicas": (Synonym("min.insync.replicas"),),
    "preallocate": (Synonym("log.preallocate"),),
    "remote.copy.lag.bytes": (Synonym("log.remote.copy.lag.bytes"),),
    "remote.copy.lag.ms": (Synonym("log.remote.copy.lag.ms"),),
    "retention.bytes": (Synonym("log.retention.bytes"),),
    "retention.ms": (
        Synonym("log.retention.ms"),
        Synonym("log.retention.minutes", _MS_PER_MINUTE),
        Synonym("log.retention.hours", _MS_PER_HOUR),
    ),
    "segment.bytes": (Synonym("log.segment.bytes"),),
    "segment.index.bytes": (Synonym("log.index.size.max.bytes"),),
    "segment.jitter.ms": (Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", _MS_PER_HOUR)),
    "segment.ms": (Synonym("log.roll.ms"), Synonym("log.roll.hours", _MS_PER_HOUR)),
    "unclean.leader.election.enable": (Synonym("unclean.leader.election.enable"),),
}
"""Keys of nodes by the topic's key, the first that is set counts (``ServerTopicConfigSynonyms``)."""


def check_topic_configs(
    existing: Mapping[str, str], given: Mapping[str, str], node: Mapping[str, str], *, tiered_storage: bool
) -> None:
    """Refuse an invalid topic configuration (``LogConfig.validate``).

    ``given`` is all that the topic will have, ``existing`` what it has, ``node`` the values that it takes from this
    node where it has none, ``tiered_storage`` whether this node has it.

    Raises:
        ApiError: INVALID_CONFIG.
    """
    unknown = first_unknown(TOPIC_CONFIGS, tuple(given))
    if unknown is not None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {unknown}")
    values = parse_all(TOPIC_CONFIGS, {**node, **given})
    low, high = _number(values, "min.compaction.lag.ms"), _number(values, "max.compaction.lag.ms")
    if low > high:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})",
        )
    if values["remote.storage.enable"]:
        _check_remote_storage(values, tiered_storage=tiered_storage)
    elif existing.get("remote.storage.enable", "").lower() == "true" and not values["remote.log.delete.on.disable"]:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "It is invalid to disable remote storage without deleting remote data. If you want to keep the remote data "
            "and turn to read only, please set `remote.storage.enable=true,remote.log.copy.disable=true`. If you want "
            "to disable remote storage and delete all remote data, please set "
            "`remote.storage.enable=false,remote.log.delete.on.disable=true`.",
        )


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int)
    return value


def _check_remote_storage(values: Mapping[str, Value], *, tiered_storage: bool) -> None:
    invalid = ErrorCode.INVALID_CONFIG
    if not tiered_storage:
        raise ApiError(
            invalid,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage.",
        )
    if values["cleanup.policy"] not in ((), ("delete",)):
        raise ApiError(
            invalid,
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list.",
        )
    for unit in ("bytes", "ms"):
        whole, local = f"retention.{unit}", f"local.retention.{unit}"
        _check_local_retention(whole, _number(values, whole), local, _number(values, local))
    for unit in ("bytes", "ms") if values["remote.log.copy.disable"] else ():
        whole, local = f"retention.{unit}", f"local.retention.{unit}"
        if _number(values, local) not in (-2, _number(values, whole)):
            raise ApiError(
                invalid,
                f"When `remote.log.copy.disable` is set to true, the `{local}` and `{whole}` must be set to the "
                "identical value because there will be no more logs copied to the remote storage.",
            )


def _check_local_retention(whole_name: str, whole: int, local_name: str, local: int) -> None:
    """Check that local retention is at most the total retention; -1 is unlimited, -2 the same."""
    if local == -2 or (whole == -1 and local == -1):
        return
    if whole != -1 and local == -1:
        why = f"Value must not be -1 as {whole_name} value is set as {whole}."
    elif whole != -1 and local > whole:
        why = f"Value must not be more than {whole_name} property value: {whole}"
    else:
        return
    raise ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {local} for configuration {local_name}: {why}")


# ---------------------------------------------------------------- groups

GROUP_CONFIGS: Final[Mapping[str, ConfigKey]] = keys(
    ConfigKey("consumer.session.timeout.ms", _INT, "45000", in_range(1)),
    ConfigKey("consumer.heartbeat.interval.ms", _INT, "5000", in_range(1)),
    ConfigKey("consumer.assignment.interval.ms", _INT, "1000", in_range(0)),
    ConfigKey("share.session.timeout.ms", _INT, "45000", in_range(1)),
    ConfigKey("share.heartbeat.interval.ms", _INT, "5000", in_range(1)),
    ConfigKey("share.record.lock.duration.ms", _INT, "30000", in_range(1000)),
    ConfigKey("share.delivery.count.limit", _INT, "5", in_range(2)),
    ConfigKey("share.partition.max.record.locks", _INT, "2000", in_range(100)),
    ConfigKey("share.auto.offset.reset", _STRING, "latest", share_offset_reset),
    ConfigKey("share.isolation.level", _STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted")),
    ConfigKey("share.renew.acknowledge.enable", _BOOLEAN, "true"),
    ConfigKey("share.assignment.interval.ms", _INT, "1000", in_range(0)),
    ConfigKey("streams.session.timeout.ms", _INT, "45000", in_range(1)),
    ConfigKey("streams.heartbeat.interval.ms", _INT, "5000", in_range(1)),
    ConfigKey("streams.num.standby.replicas", _INT, "0", in_range(0)),
    ConfigKey("streams.initial.rebalance.delay.ms", _INT, "3000", in_range(0)),
    ConfigKey("streams.assignment.interval.ms", _INT, "1000", in_range(0)),
    ConfigKey("consumer.assignor.offload.enable", _BOOLEAN, "true", internal=True),
    ConfigKey("share.assignor.offload.enable", _BOOLEAN, "true", internal=True),
    ConfigKey("streams.assignor.offload.enable", _BOOLEAN, "true", internal=True),
    ConfigKey("errors.deadletterqueue.topic.name", _STRING, ""),
    ConfigKey("errors.deadletterqueue.copy.record.enable", _BOOLEAN, "false"),
    ConfigKey("streams.acceptable.recovery.lag", _LONG, "10000", in_range(0), internal=True),
    ConfigKey("streams.assignor.name", _STRING, None),
    ConfigKey("streams.num.warmup.replicas", _INT, "2", in_range(0), internal=True),
    ConfigKey("streams.rack.aware.assignment.tags", _LIST, ""),
    ConfigKey("streams.task.offset.interval.ms", _INT, "60000", in_range(1), internal=True),
)

_RACK_TAGS: Final = "streams.rack.aware.assignment.tags"
_ASSIGNOR: Final = "streams.assignor.name"
_DLQ_TOPIC: Final = "errors.deadletterqueue.topic.name"
_BOUNDED: Final = (
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "consumer.assignment.interval.ms",
    "share.heartbeat.interval.ms",
    "share.session.timeout.ms",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "share.assignment.interval.ms",
    "streams.heartbeat.interval.ms",
    "streams.session.timeout.ms",
    "streams.num.standby.replicas",
    "streams.assignment.interval.ms",
    "streams.task.offset.interval.ms",
    "streams.num.warmup.replicas",
)
"""Values of groups that a node's configuration bounds, in the order in which Kafka looks at them."""


def group_synonym(name: str) -> str:
    """Return the node key that supplies the default of a group key."""
    return "group.streams.assignors" if name == _ASSIGNOR else f"group.{name}"


def bound_names(name: str) -> tuple[str, str]:
    """Return the node keys with the lower and upper bound of a group key; the first may not exist."""
    protocol, _, rest = name.partition(".")
    return f"group.{protocol}.min.{rest}", f"group.{protocol}.max.{rest.removeprefix('num.')}"


def check_group_configs(given: Mapping[str, str], node: Mapping[str, str]) -> None:
    """Refuse an invalid group configuration; ``node`` has the values of this node's file (``GroupConfig.validate``).

    Raises:
        ApiError: INVALID_CONFIG.
    """
    unknown = first_unknown(GROUP_CONFIGS, tuple(given))
    if unknown is not None:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown group config name: {unknown}")
    tags = [tag.strip() for tag in given.get(_RACK_TAGS, "").strip().split(",")]
    if len(set(tags)) < len(tags):
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{_RACK_TAGS} must not contain duplicate tag keys.")
    table = node_keys()

    def node_number(name: str) -> int | None:
        key = table.get(name)
        text = node.get(name, key.default) if key is not None else None
        return None if text is None else int(text)

    defaults = {name: node[group_synonym(name)] for name in GROUP_CONFIGS if group_synonym(name) in node}
    values = parse_all(GROUP_CONFIGS, {**defaults, **given})
    for name in _BOUNDED:
        value = _number(values, name)
        low_name, high_name = bound_names(name)
        low, high = node_number(low_name), node_number(high_name)
        if name not in given:
            continue  # the node's own value: its file is checked when it starts
        if (low is None or low <= value) and (high is None or value <= high):
            continue
        if low is None:
            wanted = f"less than or equal to {high}"
        elif high is None:
            wanted = f"greater than or equal to {low}"
        else:
            wanted = f"in the range {low} to {high} inclusive."
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{name} must be {wanted}")
    _check_assignor(given, node)
    for protocol in ("consumer", "share", "streams"):
        session, heartbeat = f"{protocol}.session.timeout.ms", f"{protocol}.heartbeat.interval.ms"
        if _number(values, session) <= _number(values, heartbeat):
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")
    if given.get(_DLQ_TOPIC, "").startswith("__"):
        raise ApiError(ErrorCode.INVALID_CONFIG, f"{_DLQ_TOPIC}: DLQ topic name must not start with '__'")


def _check_assignor(given: Mapping[str, str], node: Mapping[str, str]) -> None:
    if _ASSIGNOR not in given:
        return
    text = node.get("group.streams.assignors", node_keys()["group.streams.assignors"].default) or ""
    known = [name.strip() for name in text.split(",")]
    if given[_ASSIGNOR] not in known:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{_ASSIGNOR} '{given[_ASSIGNOR]}' is not a registered task assignor. Registered assignors are: "
            f"[{', '.join(known)}].",
        )


# ---------------------------------------------------------------- client metrics

CLIENT_METRICS_CONFIGS: Final[Mapping[str, ConfigKey]] = keys(
    ConfigKey("metrics", _LIST, "", each_of()),
    ConfigKey("interval.ms", _INT, "300000"),
    ConfigKey("match", _LIST, "", each_of()),
)
_INTERVAL_MIN_MS: Final = 100
_INTERVAL_MAX_MS: Final = 3_600_000
_MATCHED: Final = frozenset(
    (
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)


def check_client_metrics_configs(given: Mapping[str, str]) -> None:
    """Refuse an invalid client metrics subscription (``ClientMetricsConfigs.validate``).

    Raises:
        ApiError: INVALID_REQUEST, INVALID_CONFIG.
    """
    unknown = first_unknown(CLIENT_METRICS_CONFIGS, tuple(given))
    if unknown is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {unknown}")
    values = parse_all(CLIENT_METRICS_CONFIGS, given)
    interval_ms = _number(values, "interval.ms")
    if not _INTERVAL_MIN_MS <= interval_ms <= _INTERVAL_MAX_MS:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid value {interval_ms} for interval.ms, interval must be between {_INTERVAL_MIN_MS} and "
            f"{_INTERVAL_MAX_MS} (1 hour)",
        )
    patterns = values["match"]
    assert isinstance(patterns, tuple)
    for pattern in patterns:
        if not _is_pattern(pattern):
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


_JAVAS_CLASS: Final = re.compile(r"\\[pP]\{\w+\}")
_JAVAS_GROUP: Final = re.compile(r"\(\?<(?=[A-Za-z])")
"""What Java's expressions write differently: ``\\p{Alpha}``, ``(?<name>``."""


def _is_pattern(text: str) -> bool:
    name, equals, expression = text.partition("=")
    if not equals or "=" in expression or name.strip() not in _MATCHED:
        return False
    expression = _JAVAS_GROUP.sub("(?P<", _JAVAS_CLASS.sub(r"\\w", expression.strip()))
    try:
        with warnings.catch_warnings(action="ignore"):  # about expressions that Python may read differently in future
            re.compile(expression)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
