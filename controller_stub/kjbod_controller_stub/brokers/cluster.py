"""Broker registrations: checks of id, epoch, directories and features (``ClusterControlManager``).

Besides the image this keeps two facts per broker that no record has but replay can tell: the directories that went
offline since the incarnation registered, and whether the incarnation was ever unfenced. kjbod's snapshots tell the
first one (:func:`kjbod_controller_stub.log.snapshots.with_failed`), Kafka's do not; so :meth:`Cluster.loaded` marks the
incarnations of a snapshot as of unknown past, and no report of a directory is refused to them.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from kjbod.ids import MIGRATING, UNASSIGNED, ZERO, Uuid, is_reserved
from kjbod.metadata import versions
from kjbod.metadata.image import BrokerChange, BrokerRegistration, Change, MetadataImage
from kjbod.metadata.records import (
    Endpoint,
    FeatureRange,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnregisterControllerRecord,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    BrokerRegistrationRequest,
    BrokerRegistrationRequestListener,
    ControllerRegistrationRequest,
    ControllerRegistrationRequestListener,
)
from kjbod_controller_stub.brokers.heartbeats import Heartbeats
from kjbod_controller_stub.results import ApiError
from kjbod_controller_stub.rules import Rules

SECURITY_PROTOCOLS = frozenset({0, 1, 2, 3})
"""PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL (``SecurityProtocol``)."""

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = versions.SUPPORTED_FEATURES
"""Levels that this controller can run: all of Kafka 4.4."""


PAST_DIRECTORIES_MAX = 4_096
"""Directories that one incarnation has had and that are remembered of it. Of one that comes back with other directories
again and again, which no broker does, the past is not known any more."""


class _Past(Struct):
    """Past of an incarnation."""

    complete: bool = True
    """Whether its registration record was in the log, so that its whole past is known. A snapshot has only the
    result."""
    offline: set[Uuid] = field(default_factory=set)
    was_unfenced: bool = False
    waived: bool = False
    """Whether it was unfenced while some of its replicas had no known directory, because the time limit was over."""


class Cluster:
    """Checks registrations and answers questions about directories."""

    def __init__(
        self,
        image: MetadataImage,
        rules: Rules,
        *,
        cluster_id: str,
        node_id: int,
        also_broker: bool,
        undecided: Callable[[int], int],
    ) -> None:
        self._image = image
        self._rules = rules
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._also_broker = also_broker
        self._undecided = undecided
        self.kraft_version = 1
        """Finalized by a control record, not by the image."""
        self._past: dict[int, _Past] = {}

    # ---- replay

    def apply(self, change: Change) -> None:
        """Follow one change of the image."""
        if not isinstance(change, BrokerChange):
            return
        if change.new is None:
            self._past.pop(change.broker_id, None)
            return
        past = self._past.get(change.broker_id)
        if past is None or change.old is None or change.old.epoch != change.new.epoch:
            past = self._past[change.broker_id] = _Past()
        elif change.old.log_dirs is not change.new.log_dirs:
            gone = set(change.old.log_dirs)
            if len(past.offline) >= PAST_DIRECTORIES_MAX:
                past.complete, past.offline = False, set()
            past.offline |= gone
            past.offline -= set(change.new.log_dirs)
        if not change.new.fenced and not past.was_unfenced:
            past.waived = self._awaits_placement(past, change.new)
            past.was_unfenced = True

    def loaded(self) -> None:
        """Note that all changes so far came from a snapshot, which does not contain the past of an incarnation."""
        for past in self._past.values():
            past.complete = past.waived = False

    # ---- questions

    def offline_directories(self, broker_id: int) -> frozenset[Uuid]:
        """Return the directories that went offline since this incarnation registered."""
        past = self._past.get(broker_id)
        return frozenset() if past is None else frozenset(past.offline)

    def failed_directories(self) -> dict[int, tuple[Uuid, ...]]:
        """Return :meth:`offline_directories` of all brokers that have any, for a snapshot."""
        owners = self._image.directory_owners  # of another broker by now: no snapshot may register it twice
        left = {broker_id: past.offline - owners.keys() for broker_id, past in self._past.items()}
        return {broker_id: tuple(sorted(gone)) for broker_id, gone in left.items() if gone}

    def unknown_directories(self, broker: BrokerRegistration, reported: Iterable[Uuid]) -> list[Uuid]:
        """Return the ``reported`` ids that this broker never registered; empty if its past is unknown."""
        past = self._past[broker.id]
        if not past.complete:
            return []
        known = past.offline | set(broker.log_dirs)
        return [directory for directory in reported if directory not in known]

    def awaits_placement(self, broker: BrokerRegistration) -> bool:
        """Return whether the broker was not unfenced yet, and must wait until all its replicas have a directory
        (``Rules.fenced_until_placed``)."""
        past = self._past.get(broker.id)  # none: it was unregistered while a steady heartbeat is read
        return past is not None and not past.was_unfenced and self._awaits_placement(past, broker)

    def _awaits_placement(self, past: _Past, broker: BrokerRegistration) -> bool:
        if not self._rules.fenced_until_placed or not self._undecided(broker.id):
            return False
        return len(past.offline) + len(broker.log_dirs) > 1

    def has_electable_dir(self, broker: BrokerRegistration, directory: Uuid) -> bool:
        """Return whether a replica of the broker in this directory may be elected or join an ISR.

        A broker that nobody waits for any longer leads only where it is known in which directory: a leader elsewhere
        would stay when that directory fails. That is so until it registers anew.
        """
        if not broker.has_online_dir(directory):
            return False
        if directory not in (UNASSIGNED, MIGRATING) or not self._rules.fenced_until_placed:
            return True
        return not self._past[broker.id].waived and not self.awaits_placement(broker)

    def withhold(self, broker_id: int) -> None:
        """The broker was unfenced, some time before the snapshot, without waiting for all of its replicas. Nothing
        happens where the log has all that it has been through."""
        past = self._past[broker_id]
        past.waived |= not past.complete and self._rules.fenced_until_placed

    def active(self) -> list[BrokerRegistration]:
        """Return the brokers that may lead."""
        return [broker for broker in self._image.brokers.values() if broker.active]

    def require_epoch(self, broker_id: int, epoch: int) -> BrokerRegistration:
        """Return the broker with this epoch.

        Raises:
            ApiError: STALE_BROKER_EPOCH: another epoch, or not registered.
        """
        broker = self._image.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered with epoch {epoch}")
        return broker

    def finalized_features(self) -> dict[str, int]:
        """Return all finalized levels, including kraft.version, which has no metadata record."""
        levels = {versions.METADATA_VERSION: self._image.metadata_version} | self._image.features
        if self.kraft_version:
            levels[versions.KRAFT_VERSION] = self.kraft_version
        return levels

    # ---- registration

    def register(
        self, request: BrokerRegistrationRequest, heartbeats: Heartbeats, *, epoch: int, now_ms: int
    ) -> tuple[int, bool]:
        """Check a registration. It gets ``epoch``, or its old epoch if the same incarnation registers again.

        Returns:
            The broker epoch, and whether the incarnation is new; :meth:`registration_record` makes the record.

        Raises:
            ApiError: refused; the checks are in Kafka's order.
        """
        if request.cluster_id != self._cluster_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"expected cluster ID {self._cluster_id}, but got cluster ID {request.cluster_id}",
            )
        existing = self._image.brokers.get(request.broker_id)
        same = existing is not None and existing.incarnation_id == request.incarnation_id
        if existing is not None and not same:
            self._check_duplicate(existing, heartbeats, now_ms)
        if request.is_migrating_zk_broker:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, "ZooKeeper brokers are not supported")
        self._check_identity(request)
        _check_endpoints(request.listeners)
        if self._image.metadata_version >= versions.DIRECTORY_ASSIGNMENT:
            self._check_directories(request)
        self._check_features(request)
        return (existing.epoch, False) if same and existing is not None else (epoch, True)

    def _check_duplicate(self, existing: BrokerRegistration, heartbeats: Heartbeats, now_ms: int) -> None:
        if not heartbeats.has_valid_session(existing.id, existing.epoch, now_ms):
            return
        if existing.in_controlled_shutdown and self._rules.shutdown_is_final:
            return  # on its way out: its successor may come (KAFKA-19047)
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"Another broker is registered with broker id {existing.id}. If the broker was recently restarted this "
            "should self-resolve once its session has expired.",
        )

    def _check_identity(self, request: BrokerRegistrationRequest) -> None:
        if not self._rules.checks_identity:
            return
        if request.broker_id < 0 or (request.broker_id == self._node_id and not self._also_broker):
            raise ApiError(ErrorCode.INVALID_REGISTRATION, f"no broker can have id {request.broker_id}")
        if request.incarnation_id == ZERO:
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "the incarnation id is zero")

    def _check_directories(self, request: BrokerRegistrationRequest) -> None:
        invalid = ErrorCode.INVALID_REGISTRATION
        if not request.log_dirs:
            raise ApiError(
                self._rules.no_directories_error, f"No directories specified in request{_if_too_old(request)}"
            )
        if any(is_reserved(directory) for directory in request.log_dirs):
            raise ApiError(invalid, "Reserved directory ID in request")
        if len(set(request.log_dirs)) != len(request.log_dirs):
            raise ApiError(invalid, "Duplicate directory ID in request")
        for directory in request.log_dirs:
            owner = self._image.directory_owners.get(directory, request.broker_id)
            if owner != request.broker_id:
                raise ApiError(invalid, f"Broker {owner} is already registered with directory {directory}")

    def _check_features(self, request: BrokerRegistrationRequest) -> None:
        ranges = {feature.name: feature for feature in request.features}
        if versions.METADATA_VERSION not in ranges:
            raise ApiError(ErrorCode.INVALID_REGISTRATION, "metadata.version is not among the supported features")
        finalized = self.finalized_features()
        # metadata.version first: it says which Kafka the broker is.
        for name in sorted(
            finalized.keys() | ranges.keys(), key=lambda name: (name != versions.METADATA_VERSION, name)
        ):
            level = finalized.get(name, 0)
            feature = ranges.get(name)
            low, high = (
                (feature.min_supported_version, feature.max_supported_version) if feature is not None else (0, 0)
            )
            if not low <= level <= high:
                raise ApiError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    f"Unable to register because the broker does not support finalized version {level} of {name}. "
                    f"The broker wants a version between {low} and {high}, inclusive{_if_too_old(request)}.",
                )

    def register_controller(self, request: ControllerRegistrationRequest) -> RegisterControllerRecord:
        """Return the record of another controller's registration (KIP-919).

        Raises:
            ApiError: refused.
        """
        if request.controller_id < 0 or request.controller_id == self._node_id:
            # By the incarnation of our own, observers know that no log was set back under them.
            raise ApiError(ErrorCode.INVALID_REGISTRATION, f"no other controller can have id {request.controller_id}")
        _check_endpoints(request.listeners)
        return _controller_record(request)

    def unregister_controller(self, controller_id: int) -> UnregisterControllerRecord:
        """Return the record that ends another controller's registration (KIP-1312).

        Raises:
            ApiError: refused, in the order and the words of Kafka (``QuorumController.unregisterController``).
        """
        if controller_id == self._node_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Controller cannot unregister itself while it is active.")
        if self._image.metadata_version < versions.CONTROLLER_UNREGISTRATION:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The current MetadataVersion is too old to support controller unregistration.",
            )
        if controller_id not in self._image.controllers:
            raise ApiError(
                ErrorCode.CONTROLLER_ID_NOT_REGISTERED, f"Controller ID {controller_id} is not currently registered."
            )
        return UnregisterControllerRecord(controller_id=controller_id)

    def registration_record(self, request: BrokerRegistrationRequest, epoch: int, *, new: bool) -> RegisterBrokerRecord:
        """Return the record of an accepted registration. The same incarnation keeps its state."""
        existing = None if new else self._image.brokers[request.broker_id]
        endpoints = {
            listener.name: Endpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        }
        return RegisterBrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=epoch,
            end_points=tuple(endpoints.values()),
            features=tuple(
                FeatureRange(
                    name=feature.name,
                    min_supported_version=feature.min_supported_version,
                    max_supported_version=feature.max_supported_version,
                )
                for feature in request.features
            ),
            rack=request.rack,
            fenced=existing is None or existing.fenced,
            in_controlled_shutdown=existing is not None and existing.in_controlled_shutdown,
            log_dirs=self._registered_directories(request, existing),
        )

    def _registered_directories(
        self, request: BrokerRegistrationRequest, existing: BrokerRegistration | None
    ) -> tuple[Uuid, ...]:
        if self._image.metadata_version < versions.DIRECTORY_ASSIGNMENT:
            return ()
        if existing is None or not self._rules.keeps_failed_directories:
            return request.log_dirs
        failed = self.offline_directories(existing.id)
        # All failed: there is no record for that, so the last ones stay as they are.
        return tuple(directory for directory in request.log_dirs if directory not in failed) or existing.log_dirs


def _if_too_old(request: BrokerRegistrationRequest) -> str:
    """Return the reason and the remedy for a broker before Kafka 3.7; nothing for others."""
    last = next(
        (each.max_supported_version for each in request.features if each.name == versions.METADATA_VERSION),
        versions.MINIMUM,
    )
    if last >= versions.DIRECTORY_ASSIGNMENT:
        return ""
    return "; Kafka before 3.7 has no JBOD in KRaft (KIP-858): upgrade the broker"


def _check_endpoints(
    listeners: Iterable[BrokerRegistrationRequestListener | ControllerRegistrationRequestListener],
) -> None:
    # Kafka's controller fails on these records and resigns; a process that loads such a log fails at each start.
    for listener in listeners:
        if not listener.host or not listener.port or listener.security_protocol not in SECURITY_PROTOCOLS:
            raise ApiError(
                ErrorCode.INVALID_REGISTRATION,
                f"listener {listener.name} has host '{listener.host}', port {listener.port}, security protocol "
                f"{listener.security_protocol}",
            )


def _controller_record(request: ControllerRegistrationRequest) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=tuple(
            Endpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=listener.security_protocol,
            )
            for listener in request.listeners
        ),
        features=tuple(
            FeatureRange(
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ),
    )
