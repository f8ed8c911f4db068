"""Listeners of the broker: they serve Kafka requests of admin clients, and no data plane.

============================  ==========================================================================================
Metadata, DescribeCluster     from the metadata image, as a broker answers (:mod:`.answers`)
DescribeConfigs               dynamic configurations, from the image
DescribeTopicPartitions,      from the image as well (:mod:`.listings`, :mod:`kjbod.metadata.describing`)
ListConfigResources,
DescribeAcls, ClientQuotas,
UserScramCredentials
DescribeLogDirs               from :mod:`.view`, in bounded time whatever a disk does; DESCRIBE on CLUSTER
AlterReplicaLogDirs           to the mover, replica by replica; ALTER on CLUSTER
CreateTopics and the like     all that a broker forwards: authorized here, carried out by the controller
                              (:mod:`.forwarding`)
DescribeDelegationToken       from the image (:mod:`.tokens`); the other requests for tokens are the controller's, but
                              for who has not shown who it is
============================  ==========================================================================================

What is not served is not offered: clients see it in ApiVersions, and say so. Every entry of ``listeners`` that is not a
controllers' one is bound at the start, before the broker registers, so that an address that is taken ends the start
with one line. Requests that come before the metadata are known wait for them. A fenced broker answers as any other.

All that a peer can cost is bounded: connections, the size of a request, and one request of a connection at a time,
since an answer about a hundred thousand replicas has some megabytes. An answer of more than :data:`AT_ONCE` parts is
made in a thread, from a copy of the metadata, once for all who ask the same (:mod:`kjbod.runtime.shared_work`): the
event loop also sends the agent's heartbeats.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.config.endpoints import Listener
from kjbod.config.hosts import connections_by_address
from kjbod.config.load import own_listener_problems
from kjbod.errors import KjbodError
from kjbod.metadata import describing
from kjbod.metadata.acls import AclIndex, Acls, Operation, ResourceType, Rules
from kjbod.metadata.image import BROKER, MetadataImage, shallow_copy
from kjbod.metadata.refusals import refusal
from kjbod.metadata.token_requests import Requester, refuse
from kjbod.metadata.versions import KRAFT_VERSION, UNDERSTOOD_FEATURES
from kjbod.runtime.listening import refusal_of
from kjbod.runtime.names import Log, UnresolvedError
from kjbod.runtime.shared_work import SharedWork
from kjbod.security.certificates import Certificates
from kjbod.security.credentials import MetadataCredentials
from kjbod.security.dynamic import DynamicStores
from kjbod.security.opening import listener_security, of_own_listener
from kjbod.wire.admin_messages import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeTopicPartitionsRequest,
    DescribeUserScramCredentialsRequest,
    ListConfigResourcesRequest,
)
from kjbod.wire.connection import Features, api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import EncodedResponse, Request, VersionRanges, encode_response
from kjbod.wire.limits import Limits, idle_limit_ms, queued_limit_bytes
from kjbod.wire.messages import (
    API,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirsResponsePartition,
    AlterReplicaLogDirsResponseTopic,
    ApiKey,
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    MetadataRequest,
    ResponseBody,
)
from kjbod.wire.principals import host_of_acls
from kjbod.wire.server import Logger, Peer, Server, serve
from kjbod_agent.admin import answers, listings, tokens
from kjbod_agent.admin.answer_sizes import AT_ONCE, parts_of
from kjbod_agent.admin.answers import Self
from kjbod_agent.admin.forwarding import FORWARDED, Forwarder, Sender, screen
from kjbod_agent.admin.own_configs import Own, screen_own_configs
from kjbod_agent.admin.tokens import TOKEN_APIS
from kjbod_agent.admin.view import SLICE, DirectoryViews

SERVED: Final[VersionRanges] = {
    key: (API[key].min_version, API[key].max_version)
    for key in (
        *FORWARDED,
        ApiKey.METADATA,
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
        *TOKEN_APIS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    )
}
"""APIs that are offered: those of a broker of Kafka 4.4.0, except data plane, groups and transactions."""
FROM_METADATA: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)
"""What the metadata alone answer."""
PRELOADED: Final[VersionRanges] = {
    key: (SERVED[key][1], SERVED[key][1])
    for key in (
        ApiKey.METADATA,
        ApiKey.API_VERSIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_CLUSTER,
    )
}
"""What tools of today ask most, in the versions that they ask in. All codecs of all versions would take 12 MiB."""
FRAME_BYTES_MAX: Final = 1024 * 1024
"""Of a request; 20,000 partitions in one. ``socket.request.max.bytes`` may lower it."""
_LONG_REQUESTS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        ApiKey.DESCRIBE_LOG_DIRS,
    }
)
FRAME_BYTES_MAX_OF: Final[Mapping[ApiKey, int]] = {key: 256 * 1024 for key in SERVED if key not in _LONG_REQUESTS}
"""All others are short. Metadata version 0 has room for an element in two bytes, and decoding takes a second per
megabyte."""
PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
UNREAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Answers that are not taken: half a megabyte of 10,000 replicas for each of a listener's connections."""
CONNECTIONS_MAX: Final = 100
"""Of each listener; ``max.connections`` may lower it. They must not take the files that the agent needs itself."""
QUEUED_BYTES_MAX: Final = CONNECTIONS_MAX * FRAME_BYTES_MAX
"""All that may come at a time; ``queued.max.request.bytes`` may set a limit."""
CLOSE_TIMEOUT_MS: Final = 100
"""How long the end of the agent waits for connections to end; the sockets are closed with the process anyway."""


class ListenerError(KjbodError):
    """A listener cannot be opened."""


class Mover(Protocol):
    """The part of :class:`kjbod_agent.moves.mover.Mover` that the listeners use."""

    def alter(self, topic: str, partition: int, path: str) -> ErrorCode: ...


class ServedBroker(Protocol):
    """The part of :class:`kjbod_agent.broker.Broker` that the listeners use."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def caught_up(self) -> asyncio.Event: ...

    @property
    def kraft_version(self) -> int: ...


def broker_listeners(config: Config) -> tuple[Listener, ...]:
    """The entries of ``listeners`` to bind; :func:`listener_problems` finds nothing wrong with them."""
    return tuple(one for one in config.listeners if one.name not in config.controller_listener_names)


async def require_free_ports(config: Config, log: Log) -> None:
    """Require that nobody else listens at the broker's ports. Opening them comes too late where something would be
    written before.

    Raises:
        ListenerError: an address is taken, or not this host's, or its name cannot be resolved now.
    """
    for one in broker_listeners(config):
        try:
            reason = await refusal_of(one.host, one.port, log)
        except UnresolvedError as error:
            raise ListenerError(f"{config.source}: listeners: {one}: {error}") from None
        if reason:
            raise ListenerError(
                f"{config.source}: listeners: {one}: cannot listen on {one.host}:{one.port}: {reason}: stop what "
                "listens there, or choose another"
            )


def listener_problems(config: Config) -> list[str]:
    """Demands of ``listeners`` that cannot be met: security that kjbod does not have, or port 0, at which nobody could
    find it."""
    listeners = broker_listeners(config)
    problems = own_listener_problems(config, one_of_controllers=False)
    problems += [
        f"{config.source}: listeners: {one}: clients cannot find a port of 0: give it a number"
        for one in listeners
        if one.port == 0
    ]
    return problems


class Parts(Struct, frozen=True, kw_only=True):
    """The parts of the agent that the listeners need.

    Attributes:
        broker: the metadata.
        view: the directories.
        mover: takes moves; asked for each time, since it comes after the broker.
        forwarder: to the controller.
        cluster_id: of the cluster.
        log_dirs: entries of ``log.dirs`` as they are now, as they are spelled there.
    """

    broker: ServedBroker
    view: DirectoryViews
    mover: Callable[[], Mover]
    forwarder: Forwarder
    cluster_id: str
    log_dirs: Callable[[], Collection[str]]


class Listeners:
    """All listeners of this broker.

    Args:
        config: addresses, limits, authorizer.
        parts: the agent.
        certificates: those of the listeners are added.
        clock: the time.
        log: for peers that send what they may not.
    """

    def __init__(self, config: Config, parts: Parts, certificates: Certificates, *, clock: Clock, log: Logger) -> None:
        self._config = config
        self._parts = parts
        self._certificates = certificates
        node = (BROKER, str(config.node_id))
        self.stores = DynamicStores(config, lambda: parts.broker.image.configs.get(node, {}), of_own_listener, log)
        """Stores that are altered in the metadata; to be run."""
        self._clock = clock
        self._log = log
        self._servers: list[Server] = []
        self._readings: SharedWork[EncodedResponse] = SharedWork("listener")
        self._measurings: SharedWork[EncodedResponse] = SharedWork("listener-directories")
        """Apart: a disk that hangs delays no answer from the metadata."""
        self._copy: MetadataImage | None = None
        """A copy of the metadata that may be current."""
        self._acl_index: tuple[MetadataImage, int, AclIndex] | None = None
        self._rules = Rules.of(config.authorizer_class_name, config.super_users, config.allow_everyone_if_no_acl_found)

    @property
    def connections(self) -> int:
        """Return the number of connected clients."""
        return sum(server.connections for server in self._servers)

    async def open(self) -> None:
        """Open the listeners.

        Raises:
            ConfigError: see :func:`connections_by_address`.
            UnresolvedError: a name of the configuration cannot be resolved now.
            ListenerError: an address is taken, or not this host's.
        """
        if not self._rules.known:
            self._log.warning("authorizer.unknown", class_name=self._config.authorizer_class_name, allowed="by ACLs")
        listeners = broker_listeners(self._config)
        overrides = await connections_by_address(self._config)
        for listener in listeners:
            try:
                self._servers.append(await self._serve(listener, overrides))
            except UnresolvedError as error:
                await self.close()
                raise ListenerError(f"{self._config.source}: listeners: {listener}: {error}") from None
            except KjbodError as error:
                await self.close()
                raise ListenerError(
                    f"{self._config.source}: listeners: {listener}: {error}: stop what listens there, or choose another"
                ) from None

    async def _serve(self, listener: Listener, overrides: Mapping[str, int]) -> Server:
        config = self._config
        me = Self(node_id=config.node_id, cluster_id=self._parts.cluster_id, listener=listener.name)
        credentials = MetadataCredentials(lambda: self._parts.broker.image, config.delegation_token_secret_key)
        security = await listener_security(config, listener, credentials, self._parts.broker.caught_up.wait)
        if security is not None:
            self._certificates.add(f"listener {listener.name}", security)
            self.stores.add(listener, security)
        return await serve(
            listener.host,
            listener.port,
            lambda request, peer: self.answer(request, peer, me),
            apis=SERVED,
            clock=self._clock,
            log=self._log,
            preloaded=PRELOADED,
            reader=self._readings.thread,
            security=security,
            limits=Limits(
                max_frame_bytes=min(FRAME_BYTES_MAX, config.socket_request_max_bytes),
                max_frame_bytes_of=FRAME_BYTES_MAX_OF,
                max_pending_bytes=PENDING_BYTES_MAX,
                max_unread_bytes=UNREAD_BYTES_MAX,
                send_buffer_bytes=config.socket_send_buffer_bytes,
                receive_buffer_bytes=config.socket_receive_buffer_bytes,
                max_connections=min(config.max_connections, CONNECTIONS_MAX),
                max_connections_per_ip=config.max_connections_per_ip,
                max_connections_per_ip_overrides=overrides,
                max_connection_creation_rate=config.max_connection_creation_rate,
                max_queued_bytes=queued_limit_bytes(config.queued_max_request_bytes, QUEUED_BYTES_MAX),
                idle_timeout_ms=idle_limit_ms(config.connections_max_idle_ms),
                listen_backlog=config.socket_listen_backlog_size,
                max_in_flight=1,
            ),
        )

    async def close(self) -> None:
        """Close the listeners and all connections, within :data:`CLOSE_TIMEOUT_MS`."""
        self._readings.close()
        self._measurings.close()
        servers, self._servers = self._servers, []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                for server in servers:
                    await server.close()

    # ---- requests

    async def answer(self, request: Request, peer: Peer, me: Self) -> ResponseBody | EncodedResponse:
        """A request."""
        await self._parts.broker.caught_up.wait()
        message, image = request.message, self._parts.broker.image
        if isinstance(message, ApiVersionsRequest):
            features = _features(image, self._parts.broker.kraft_version)
            return api_versions_response(request, SERVED, features, broker=(me.cluster_id, me.node_id))
        acls = Acls(self._rules, self._acls_of(image), principal=peer.principal, host=host_of_acls(peer.host))
        if request.api_key in FROM_METADATA:
            if parts_of(image, message) <= AT_ONCE:
                return self._from_metadata(request, image, acls, me)
            return await self._read(request, peer, me)
        match message:
            case DescribeLogDirsRequest():
                return await self._describe_log_dirs(request, message, acls)
            case AlterReplicaLogDirsRequest():
                return await self._alter_log_dirs(message, acls)
        if request.api_key in TOKEN_APIS:
            return await self._tokens(request, image, acls, peer)
        screened = screen(message, image, acls, request.version)
        if screened.allowed is None:
            return screened.merge(None)
        judged = screen_own_configs(screened.allowed, image, Own(self._config.node_id, self._parts.log_dirs()))
        done = None
        if judged.allowed is not None:
            done = await self._parts.forwarder.send(judged.allowed, _sender(request, peer))
        return screened.merge(judged.merge(done))

    def _acls_of(self, image: MetadataImage) -> AclIndex:
        """An index of the ACLs that is made again when the metadata have changed."""
        if not self._rules.class_name:
            return _NO_ACLS
        kept = self._acl_index
        if kept is None or kept[0] is not image or kept[1] != image.offset:
            kept = self._acl_index = (image, image.offset, AclIndex(image.acls.values()))
        return kept[2]

    async def _read(self, request: Request, peer: Peer, me: Self) -> EncodedResponse:
        """A long answer from the metadata."""
        asker = (peer.principal, peer.host) if self._rules.class_name else None

        async def begin() -> Callable[[], EncodedResponse]:
            image = self._copied()

            def work() -> EncodedResponse:
                index = AclIndex(image.acls.values()) if self._rules.class_name else _NO_ACLS
                acls = Acls(self._rules, index, principal=peer.principal, host=host_of_acls(peer.host))
                return _shared(request, self._from_metadata(request, image, acls, me))

            return work

        try:
            return await self._readings.get((request.message, request.version, me, asker), begin)
        finally:
            if not self._readings.asked:
                self._copy = None

    def _copied(self) -> MetadataImage:
        """Return a copy of the present metadata, for a thread."""
        image = self._parts.broker.image
        if self._copy is None or (self._copy.offset, self._copy.epoch) != (image.offset, image.epoch):
            self._copy = shallow_copy(image)
        return self._copy

    def _from_metadata(self, request: Request, image: MetadataImage, acls: Acls, me: Self) -> ResponseBody:
        """Answers that the metadata alone decide. On the event loop, or in a thread from a copy."""
        match request.message:
            case MetadataRequest():
                return answers.metadata(image, request.message, version=request.version, me=me, acls=acls)
            case DescribeClusterRequest():
                return answers.describe_cluster(image, request.message, me=me, acls=acls)
            case DescribeConfigsRequest():
                return answers.describe_configs(image, request.message, me=me, acls=acls)
        return self._listed(request, image, acls, me)

    def _listed(self, request: Request, image: MetadataImage, acls: Acls, me: Self) -> ResponseBody:
        """Answers from the metadata that need a right on the cluster, or none."""
        message, needs = request.message, _LISTED_NEED.get(request.api_key)
        if needs is not None and not acls.allow(needs, ResourceType.CLUSTER):
            return refusal(message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, request.version)
        match message:
            case DescribeAclsRequest():
                if not self._rules.class_name:
                    return describing.NO_AUTHORIZER
                return describing.describe_acls(AclIndex(image.acls.values()), message)
            case DescribeClientQuotasRequest():
                return listings.describe_client_quotas(image, message)
            case DescribeUserScramCredentialsRequest():
                return listings.describe_scram(image, message)
            case ListConfigResourcesRequest():
                return describing.list_config_resources(image, message, version=request.version)
            case DescribeTopicPartitionsRequest():
                return listings.describe_topic_partitions(image, message, listener=me.listener, acls=acls)
        raise AssertionError(f"{request.api_key.name} is served and has no answer")

    async def _tokens(self, request: Request, image: MetadataImage, acls: Acls, peer: Peer) -> ResponseBody:
        """Answer a request about delegation tokens."""
        message, secret_key = request.message, self._config.delegation_token_secret_key
        asks = Requester(peer.principal, acls, token_authenticated=peer.token_authenticated)
        if (refused := refuse(message, asks)) is not None:
            return refused
        if not isinstance(message, DescribeDelegationTokenRequest):
            return await self._parts.forwarder.send(message, _sender(request, peer))
        if secret_key is None:
            return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        found = []
        for number, token in enumerate(tokens.describe(image, message, asks, secret_key)):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            if token is not None:
                found.append(token)
        return DescribeDelegationTokenResponse(tokens=tuple(found))

    async def _describe_log_dirs(
        self, request: Request, message: DescribeLogDirsRequest, acls: Acls
    ) -> ResponseBody | EncodedResponse:
        if not acls.allow(Operation.DESCRIBE, ResourceType.CLUSTER):
            return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

        async def begin() -> Callable[[], EncodedResponse]:
            directories = await self._parts.view.directories(answers.wanted_log_dirs(message))
            return lambda: _shared(request, DescribeLogDirsResponse(results=tuple(map(answers.log_dir, directories))))

        if message.topics is None:
            return await self._measurings.get((message, request.version), begin)
        # Not one after the other: where a disk hangs, each takes some seconds.
        return await asyncio.get_running_loop().run_in_executor(self._measurings.thread, await begin())

    async def _alter_log_dirs(self, request: AlterReplicaLogDirsRequest, acls: Acls) -> ResponseBody:
        """Alter the directories of replicas, each on its own; of one that is named twice the last counts, as in Kafka's
        map."""
        allowed = acls.allow(Operation.ALTER, ResourceType.CLUSTER)
        wanted = {
            (topic.name, partition): directory.path
            for directory in request.dirs
            for topic in directory.topics
            for partition in topic.partitions
        }
        results: dict[str, list[AlterReplicaLogDirsResponsePartition]] = {}
        for number, ((topic, partition), path) in enumerate(wanted.items()):
            if number % SLICE == 0:
                await asyncio.sleep(0)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            if allowed:
                code = self._parts.mover().alter(topic, partition, path)
            results.setdefault(topic, []).append(
                AlterReplicaLogDirsResponsePartition(partition_index=partition, error_code=code)
            )
        return AlterReplicaLogDirsResponse(
            results=tuple(
                AlterReplicaLogDirsResponseTopic(topic_name=topic, partitions=tuple(partitions))
                for topic, partitions in results.items()
            )
        )


def _shared(request: Request, answer: ResponseBody) -> EncodedResponse:
    return EncodedResponse(request.api_key, encode_response(answer, request.version, 0), shared=True)


def _sender(request: Request, peer: Peer) -> Sender:
    return Sender(peer.principal, peer.host, request.client_id, request.version, peer.token_authenticated)


_NO_ACLS: Final = AclIndex(())
_LISTED_NEED: Final[Mapping[ApiKey, Operation]] = {
    ApiKey.DESCRIBE_ACLS: Operation.DESCRIBE,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Operation.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Operation.DESCRIBE,
    ApiKey.LIST_CONFIG_RESOURCES: Operation.DESCRIBE_CONFIGS,
}
"""What they need on the cluster."""


def _features(image: MetadataImage, kraft_version: int) -> Features:
    """``KRaftMetadataCache.features``: kraft.version comes from a control record, and counts where it is not 0."""
    finalized = image.features | ({KRAFT_VERSION: kraft_version} if kraft_version else {})
    return Features(supported=UNDERSTOOD_FEATURES, finalized=finalized, finalized_epoch=image.offset)
