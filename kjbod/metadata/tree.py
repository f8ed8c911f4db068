"""A metadata image as a tree of directories and files, with the names and texts of ``kafka-metadata-shell``.

``/image`` has the metadata, ``/local`` the program that shows them. Leaves have the text form of Kafka's classes
(``BrokerRegistration``, ``PartitionRegistration``, ...), so that a search finds the same text in both shells
(``org.apache.kafka.image.node``). Nodes are made on demand: a tree of 100,000 partitions costs nothing.

Intended differences: salts and keys of credentials, tokens, and passwords are hidden without ``secrets``. The
provenance of a snapshot is the last log offset that it contains, not the file's. A default entity of a quota is
``user(<default>)``; Kafka prints no name. The parentheses of a token are balanced.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, TypeAlias

from msgspec import Struct

from kjbod import __version__
from kjbod.config.endpoints import SECURITY_PROTOCOLS
from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.acls import ALLOW, DENY, LITERAL, PREFIXED, Operation, ResourceType
from kjbod.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, Topic
from kjbod.metadata.records import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    Endpoint,
    FeatureRange,
    QuotaEntity,
    RegisterControllerRecord,
    UserScramCredentialRecord,
)
from kjbod.metadata.secrets import REDACTED, is_password

RESOURCE_TYPES: Mapping[int, str] = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}
"""``ConfigResource.Type`` by its number in a ConfigRecord."""
SCRAM_MECHANISMS: Mapping[str, int] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_RECOVERY_STATES = ("RECOVERED", "RECOVERING")
_ACL_PATTERNS: Mapping[int, str] = {LITERAL: "LITERAL", PREFIXED: "PREFIXED"}
_ACL_PERMISSIONS: Mapping[int, str] = {DENY: "DENY", ALLOW: "ALLOW"}
_QUOTA_NAMES: Mapping[str, str] = {"client-id": "clientId", "ip": "ip", "user": "user"}
"""Names of entity types in the shell, in the shell's order."""


class Leaf(Struct, frozen=True):
    """A file: a text of one or more lines."""

    text: str


class Directory(Struct, frozen=True):
    """A directory whose children are made on demand."""

    names: Callable[[], Iterable[str]]
    child: Callable[[str], "Node | None"]

    def sorted_names(self) -> list[str]:
        """Return the children in the shell's order: as text, so 10 comes before 2."""
        return sorted(self.names())


Node: TypeAlias = Leaf | Directory


class Provenance(Struct, frozen=True):
    """Last record that an image contains (``MetadataProvenance``)."""

    offset: int
    epoch: int
    wall_ms: int
    """Time of the last record, ms since 1970; -1: unknown."""

    def __str__(self) -> str:
        at = "unknown" if self.wall_ms < 0 else f"{_instant(self.wall_ms)}[UTC]"
        return f"offset {self.offset}, epoch {self.epoch}, time {at}"


def _instant(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds" if wall_ms % 1000 else "seconds") + "Z"


def tree_of(image: MetadataImage, provenance: Provenance, *, secrets: bool = False) -> Directory:
    """Return the root directory."""
    parts: dict[str, Callable[[], Node]] = {
        "provenance": lambda: Leaf(str(provenance)),
        "features": lambda: _features(image),
        "cluster": lambda: _fixed(
            {
                "brokers": lambda: _numbered(image.brokers, _broker),
                "controllers": lambda: _numbered(image.controllers, _controller),
            }
        ),
        "topics": lambda: _fixed(
            {
                "byName": lambda: Directory(lambda: image.topic_ids, lambda name: _topic_named(image, name)),
                "byId": lambda: Directory(lambda: map(str, image.topics), lambda text: _topic_with(image, text)),
            }
        ),
        "configs": lambda: _configs(image, secrets),
        "clientQuotas": lambda: _quotas(image),
        "producerIds": lambda: _fixed({"nextProducerId": lambda: Leaf(str(_next_producer_id(image)))}),
        "acls": lambda: _fixed({"byId": lambda: _acls(image)}),
        "scram": lambda: _scram(image, secrets),
        "delegationToken": lambda: _tokens(image, secrets),
    }
    local: dict[str, Callable[[], Node]] = {
        "version": lambda: Leaf(__version__),
        "program": lambda: Leaf("kjbod"),
    }
    return _fixed({"image": lambda: _fixed(parts), "local": lambda: _fixed(local)})


# ---------------------------------------------------------------- directories


def _fixed(children: Mapping[str, Callable[[], Node]]) -> Directory:
    return Directory(lambda: children, lambda name: children[name]() if name in children else None)


def _texts(texts: Mapping[str, str]) -> Directory:
    return Directory(lambda: texts, lambda name: Leaf(texts[name]) if name in texts else None)


def _numbered(entries: Mapping[int, Any], text: Callable[[Any], str]) -> Directory:
    def child(name: str) -> Node | None:
        number = _number(name)
        return None if number is None or number not in entries else Leaf(text(entries[number]))

    return Directory(lambda: map(str, entries), child)


def _number(name: str) -> int | None:
    """Return the number of a name in canonical form; None for other names."""
    try:
        number = int(name)
    except ValueError:
        return None
    return number if str(number) == name else None


def _features(image: MetadataImage) -> Directory:
    texts = {
        f"finalized_{name}": str(level) for name, level in image.features.items() if name != versions.METADATA_VERSION
    }
    level = image.features.get(versions.METADATA_VERSION)
    texts["metadataVersion"] = "Optional.empty" if level is None else f"Optional[{_release(level)}]"
    return _texts(texts)


def _release(level: int) -> str:
    return versions.RELEASES.get(level, f"level {level}")


def _topic_named(image: MetadataImage, name: str) -> Node | None:
    topic_id = image.topic_ids.get(name)
    return None if topic_id is None else _topic(image.topics[topic_id])


def _topic_with(image: MetadataImage, text: str) -> Node | None:
    topic_id = _uuid(text)
    topic = None if topic_id is None else image.topics.get(topic_id)
    return None if topic is None else _topic(topic)


def _uuid(text: str) -> Uuid | None:
    try:
        return Uuid.parse(text)
    except ValueError:
        return None


def _topic(topic: Topic) -> Directory:
    partitions = _numbered(topic.partitions, _partition)
    own = {"name": topic.name, "id": str(topic.id)}

    def child(name: str) -> Node | None:
        return Leaf(own[name]) if name in own else partitions.child(name)

    return Directory(lambda: [*own, *partitions.names()], child)


def _configs(image: MetadataImage, secrets: bool) -> Directory:
    names = {_resource(*resource): (resource[0], values) for resource, values in image.configs.items()}

    def shown(name: str) -> Directory:
        kind, values = names[name]
        return _texts({key: values[key] if secrets or not is_password(key, kind) else REDACTED for key in values})

    return Directory(lambda: names, lambda name: shown(name) if name in names else None)


def _resource(kind: int, name: str) -> str:
    kind_name = RESOURCE_TYPES.get(kind, f"UNKNOWN({kind})")
    return f"{kind_name}:{name}" if name else kind_name


def _quotas(image: MetadataImage) -> Directory:
    names = {_entity(entity): limits for entity, limits in image.quotas.items()}

    def child(name: str) -> Node | None:
        limits = names.get(name)
        return None if limits is None else _texts({key: java_double(limit) for key, limit in limits.items()})

    return Directory(lambda: names, child)


def _entity(entity: Iterable[QuotaEntity]) -> str:
    parts = {part.entity_type: part.entity_name for part in entity}
    known = [kind for kind in _QUOTA_NAMES if kind in parts]
    others = sorted(parts.keys() - _QUOTA_NAMES.keys())
    return "_".join(f"{_QUOTA_NAMES.get(kind, kind)}({_escaped(parts[kind])})" for kind in (*known, *others))


def _escaped(name: str | None) -> str:
    if name is None:
        return "<default>"
    return name.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def java_double(value: float) -> str:
    """Return a double as ``Double.toString`` does: ``1000000.0``, but ``1.0E7``."""
    if value == 0 or 1e-3 <= abs(value) < 1e7 or value != value or abs(value) == float("inf"):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(value), repr(value))
    mantissa, _, exponent = _shortest(value)
    mantissa = mantissa.rstrip("0")
    return f"{mantissa}0E{int(exponent)}" if mantissa.endswith(".") else f"{mantissa}E{int(exponent)}"


def _shortest(value: float) -> tuple[str, str, str]:
    """Return the fewest digits, at least two, that read back as ``value``, in scientific notation."""
    for digits in range(1, 17):
        text = f"{value:.{digits}e}"
        if float(text) == value:
            break
    return text.partition("e")


def _next_producer_id(image: MetadataImage) -> int:
    return image.next_producer_id or -1


def _acls(image: MetadataImage) -> Directory:
    def child(text: str) -> Node | None:
        acl_id = _uuid(text)
        acl = None if acl_id is None else image.acls.get(acl_id)
        return None if acl is None else Leaf(_acl(acl))

    return Directory(lambda: map(str, image.acls), child)


def _scram(image: MetadataImage, secrets: bool) -> Directory:
    def users(number: int) -> Directory:
        found = {user: record for (mechanism, user), record in image.scram.items() if mechanism == number}
        return Directory(lambda: found, lambda user: Leaf(_credential(found[user], secrets)) if user in found else None)

    return Directory(
        lambda: SCRAM_MECHANISMS, lambda name: users(SCRAM_MECHANISMS[name]) if name in SCRAM_MECHANISMS else None
    )


def _tokens(image: MetadataImage, secrets: bool) -> Directory:
    tokens = image.delegation_tokens
    return Directory(lambda: tokens, lambda name: Leaf(_token(tokens[name], secrets)) if name in tokens else None)


# ---------------------------------------------------------------- texts


def _list(values: Iterable[object]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _endpoints(endpoints: Iterable[Endpoint]) -> str:
    return _list(
        f"Endpoint(listenerName='{one.name}', securityProtocol={_protocol(one.security_protocol)}, "
        f"host='{one.host}', port={one.port})"
        for one in sorted(endpoints, key=lambda one: one.name)
    )


def _protocol(number: int) -> str:
    return SECURITY_PROTOCOLS[number] if 0 <= number < len(SECURITY_PROTOCOLS) else str(number)


def _supported(features: Iterable[FeatureRange]) -> str:
    ranges = sorted((one.name, one.min_supported_version, one.max_supported_version) for one in features)
    return "{" + ", ".join(f"{name}: {low}-{high}" for name, low, high in ranges) + "}"


def _broker(broker: BrokerRegistration) -> str:
    return (
        f"BrokerRegistration(id={broker.id}, epoch={broker.epoch}, incarnationId={broker.incarnation_id}, "
        f"listeners={_endpoints(broker.end_points)}, supportedFeatures={_supported(broker.features)}, "
        f"rack={'Optional.empty' if broker.rack is None else f'Optional[{broker.rack}]'}, "
        f"fenced={_boolean(broker.fenced)}, inControlledShutdown={_boolean(broker.in_controlled_shutdown)}, "
        f"isMigratingZkBroker={_boolean(broker.is_migrating_zk_broker)}, directories={_list(broker.log_dirs)}, "
        f"cordonedDirectories={'null' if broker.cordoned_log_dirs is None else _list(broker.cordoned_log_dirs)})"
    )


def _controller(controller: RegisterControllerRecord) -> str:
    return (
        f"ControllerRegistration(id={controller.controller_id}, incarnationId={controller.incarnation_id}, "
        f"zkMigrationReady={_boolean(controller.zk_migration_ready)}, listeners={_endpoints(controller.end_points)}, "
        f"supportedFeatures={_supported(controller.features)})"
    )


def _partition(partition: PartitionRegistration) -> str:
    return (
        f"PartitionRegistration(replicas={_list(partition.replicas)}, directories={_list(partition.directories)}, "
        f"isr={_list(partition.isr)}, removingReplicas={_list(partition.removing_replicas)}, "
        f"addingReplicas={_list(partition.adding_replicas)}, elr={_list(partition.eligible_leader_replicas)}, "
        f"lastKnownElr={_list(partition.last_known_elr)}, leader={partition.leader}, "
        f"leaderRecoveryState={_RECOVERY_STATES[partition.leader_recovery_state]}, "
        f"leaderEpoch={partition.leader_epoch}, partitionEpoch={partition.partition_epoch})"
    )


def _name(names: type[IntEnum], number: int) -> str:
    """Return the name of a number; the number itself if kjbod does not know it."""
    try:
        return names(number).name
    except ValueError:
        return str(number)


def _acl(acl: AccessControlEntryRecord) -> str:
    return (
        f"StandardAcl[resourceType={_name(ResourceType, acl.resource_type)}, "
        f"resourceName={acl.resource_name}, patternType={_ACL_PATTERNS.get(acl.pattern_type, acl.pattern_type)}, "
        f"principal={acl.principal}, host={acl.host}, operation={_name(Operation, acl.operation)}, "
        f"permissionType={_ACL_PERMISSIONS.get(acl.permission_type, acl.permission_type)}]"
    )


def _credential(record: UserScramCredentialRecord, secrets: bool) -> str:
    def shown(value: object) -> object:
        return value if secrets else REDACTED

    return (
        f"ScramCredentialData(salt={shown(record.salt.hex())}, storedKey={shown(record.stored_key.hex())}, "
        f"serverKey={shown(record.server_key.hex())}, iterations={shown(record.iterations)})"
    )


def _token(record: DelegationTokenRecord, secrets: bool) -> str:
    def shown(value: object) -> object:
        return value if secrets else REDACTED

    return (
        f"DelegationTokenData(tokenId={shown(record.token_id)}, owner={record.owner}, "
        f"tokenRequester={record.requester}, renewers={_list(record.renewers)}, "
        f"issueTimestamp={record.issue_timestamp}, maxTimestamp={record.max_timestamp}, "
        f"expiryTimestamp={record.expiration_timestamp})"
    )
