"""Start of the controller, from its configuration and from the records that formatting wrote."""

import functools
import random
import resource
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from kjbod.clock import Clock
from kjbod.config.endpoints import SECURITY_PROTOCOLS, Listener
from kjbod.config.hosts import connections_by_address
from kjbod.config.keys import Config
from kjbod.errors import StorageError
from kjbod.ids import Uuid, random_uuid
from kjbod.metadata import versions
from kjbod.metadata.acls import Rules as AclRules
from kjbod.metadata.records import (
    BeginTransactionRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    Record,
)
from kjbod.runtime.logging import get_logger
from kjbod.wire.limits import Limits, idle_limit_ms, queued_limit_bytes
from kjbod_controller_stub.access.tokens import TokenSettings
from kjbod_controller_stub.brokers.cluster import SUPPORTED_FEATURES
from kjbod_controller_stub.context import Settings
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.limits import (
    CONNECTIONS_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_OF,
    IN_FLIGHT_MAX,
    PENDING_BYTES_MAX,
    QUEUED_BYTES_MAX,
    REQUESTS_PER_SECOND_MAX,
    UNREAD_BYTES_MAX,
    URGENT,
)
from kjbod_controller_stub.log.controller_directory import (
    ControllerDirectory,
)
from kjbod_controller_stub.log.snapshots import Limits as SnapshotLimits
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.partitions.topics import TopicDefaults
from kjbod_controller_stub.rules import RULES

_BOOTSTRAP_TRANSACTION = "Bootstrap records"

_log = get_logger()
_FILES_RESERVED = 256
"""Open files that connections leave to the log, and to connections that are being refused."""


def controller_of(config: Config, directory: ControllerDirectory, rng: random.Random, clock: Clock) -> Controller:
    """Return a controller with an empty image."""
    settings = Settings(
        node_id=config.node_id,
        cluster_id=directory.cluster_id,
        also_broker="broker" in config.process_roles,
        rules=RULES[config.kjbod_controller_rules],
        session_timeout_ms=config.broker_session_timeout_ms,
        assignment_timeout_ms=config.kjbod_assignment_timeout_ms,
        topic_defaults=TopicDefaults(
            num_partitions=config.num_partitions, replication_factor=config.default_replication_factor
        ),
        static_configs=config.properties,
        delete_topic_enable=config.delete_topic_enable,
        unclean_election=config.unclean_leader_election_enable,
        acl_rules=AclRules.of(config.authorizer_class_name, config.super_users, config.allow_everyone_if_no_acl_found),
        tokens=TokenSettings(
            secret_key=config.delegation_token_secret_key,
            max_lifetime_ms=config.delegation_token_max_lifetime_ms,
            expiry_time_ms=config.delegation_token_expiry_time_ms,
            check_interval_ms=config.delegation_token_expiry_check_interval_ms,
        ),
        min_isr=config.min_insync_replicas,
        leader_imbalance_check_ms=(
            config.leader_imbalance_check_interval_seconds * 1_000 if config.auto_leader_rebalance_enable else None
        ),
        unclean_election_check_ms=config.unclean_leader_election_interval_ms,
        mutation_window_num=config.controller_quota_window_num,
        mutation_window_size_s=config.controller_quota_window_size_seconds,
    )
    draw_id: Callable[[], Uuid] = functools.partial(random_uuid, rng)
    return Controller(settings, draw_id=draw_id, shuffle=rng.shuffle, wall_ms=clock.wall_ms, lock=threading.Lock())


async def limits_of(config: Config) -> Limits:
    """Return the limits of the controller's listeners. Resolves names, which may take long.

    Raises:
        ConfigError: a name of ``max.connections.per.ip.overrides`` does not exist.
        UnresolvedError: it cannot be resolved now.
    """
    return Limits(
        max_frame_bytes=min(FRAME_BYTES_MAX, config.socket_request_max_bytes),
        max_frame_bytes_of=FRAME_BYTES_MAX_OF,
        max_pending_bytes=PENDING_BYTES_MAX,
        max_in_flight=IN_FLIGHT_MAX,
        max_connections=min(config.max_connections, CONNECTIONS_MAX, _connections_by_files()),
        max_queued_bytes=queued_limit_bytes(config.queued_max_request_bytes, QUEUED_BYTES_MAX),
        max_unread_bytes=UNREAD_BYTES_MAX,
        send_buffer_bytes=config.socket_send_buffer_bytes,
        receive_buffer_bytes=config.socket_receive_buffer_bytes,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=await connections_by_address(config),
        max_connection_creation_rate=config.max_connection_creation_rate,
        max_requests_per_second=REQUESTS_PER_SECOND_MAX,
        urgent=URGENT,
        idle_timeout_ms=idle_limit_ms(config.connections_max_idle_ms),
        listen_backlog=config.socket_listen_backlog_size,
    )


def _connections_by_files() -> int:
    """Return the number of connections that leaves enough free descriptors for the log: a file that it cannot open ends
    it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return soft - min(_FILES_RESERVED, soft // 2)


def snapshot_limits_of(config: Config) -> SnapshotLimits:
    """Return the limits that decide when snapshots are written and which are kept."""
    return SnapshotLimits(
        record_bytes=config.metadata_log_max_record_bytes_between_snapshots,
        interval_ms=config.metadata_log_max_snapshot_interval_ms,
        retention_bytes=config.metadata_max_retention_bytes,
        retention_ms=config.metadata_max_retention_ms,
    )


def require_supported(records: Iterable[Record], directory: Path) -> None:
    """Require that this controller supports the features with which a directory without a log starts, from formatting
    or a snapshot."""
    for record in records:
        if isinstance(record, FeatureLevelRecord) and record.name in SUPPORTED_FEATURES:
            low, high = SUPPORTED_FEATURES[record.name]
            if not low <= record.feature_level <= high:
                raise StorageError(
                    f"{directory} has {record.name} {record.feature_level}, which kjbod controller does not support: "
                    f"it runs {low} to {high}"
                )


def advertised_endpoint(advertised: Listener, port: int) -> Endpoint:
    """Return the advertised listener; port 0 in the configuration is replaced by the system's port."""
    return Endpoint(
        name=advertised.name,
        host=advertised.host,
        port=advertised.port or port,
        security_protocol=SECURITY_PROTOCOLS.index(advertised.protocol),
    )


def bootstrap_records(records: Iterable[Record], min_isr: int) -> tuple[Record, ...]:
    """Return the records for an empty log: those from formatting, without features that this controller lacks, plus
    those that eligible leader replicas need."""
    kept: list[Record] = []
    level = versions.MINIMUM
    for record in records:
        if isinstance(record, FeatureLevelRecord):
            if record.name not in SUPPORTED_FEATURES:
                _log.warning("bootstrap.feature.skipped", feature=record.name, level=record.feature_level)
                continue
            if record.name == versions.METADATA_VERSION:
                level = record.feature_level
        kept.append(record)
    kept += eligible.bootstrap_records(kept, min_isr)
    if level < versions.TRANSACTIONS:
        return tuple(kept)
    return (BeginTransactionRecord(name=_BOOTSTRAP_TRANSACTION), *kept, EndTransactionRecord())
