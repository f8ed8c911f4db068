"""Questions to the brokers and controllers of a cluster, as an admin client asks them. Whatever a peer does, an answer
comes in bounded time: what a broker does not say is a line about that broker.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final

from kjbod.clock import SystemClock
from kjbod.cluster.log_dirs import BrokerDirs, Known, Node, answered, unanswered
from kjbod.cluster.partitions import MinIsrs, Partition, Partitions, partition_of
from kjbod.errors import KjbodError, RemoteProtocolError
from kjbod.metadata.fetching import Address
from kjbod.metadata.image import TOPIC
from kjbod.quick_dataclass import dataclass
from kjbod.security.channel import Security
from kjbod.wire.admin_messages import (
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
)
from kjbod.wire.client import Connection
from kjbod.wire.error_codes import ErrorCode, name_of
from kjbod.wire.frames import MAX_FRAME_BYTES
from kjbod.wire.messages import (
    ApiKey,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponseResult,
    DescribeLogDirsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

CLIENT_ID: Final = "kjbod-cluster"
REQUEST_TIMEOUT_MS: Final = 30_000
"""``request.timeout.ms`` of Kafka's admin client."""
PARTITIONS_TIMEOUT_S: Final = 60.0
"""For everything that one broker tells of topics."""
ANSWERS_TIMEOUT_S: Final = 60.0
"""For the answers of all brokers about their directories; who is later did not answer."""
CONNECTIONS_MAX: Final = 256
"""To brokers, at a time."""
ANSWERS_MAX: Final = 16
"""Brokers that are asked for their replicas at a time, so that few such answers are in memory."""
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one of them: more than a million replicas."""
TOPICS_MAX: Final = 500
"""Of one DescribeConfigs: an agent takes a request of 256 KiB."""
BROKERS: Final = 1
CONTROLLERS: Final = 2
"""``DescribeClusterRequest.endpoint_type``."""
MIN_ISR: Final = "min.insync.replicas"
_MIN_ISR_DEFAULT: Final = 1
"""Kafka's. Brokers tell it; agents tell what is configured dynamically."""
_FENCED_SINCE: Final = 2
"""Version of DescribeCluster that tells of fenced brokers (KIP-1073)."""
_ENDPOINT_TYPE_SINCE: Final = 1
_FOREIGN_TYPE: Final = {
    BROKERS: "that is a controller's listener: give a broker's to --bootstrap-server",
    CONTROLLERS: "that is a broker's listener: give a controller's to --bootstrap-controller",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The nodes of a cluster that are of one kind."""

    cluster_id: str
    controller_id: int
    nodes: Sequence[Node]

    def node(self, node_id: int) -> Node | None:
        """The node of this id."""
        return next((node for node in self.nodes if node.id == node_id), None)


async def _open(address: Address, security: Security, max_frame_bytes: int = MAX_FRAME_BYTES) -> Connection:
    host, port = address
    return await Connection.open(
        host, port, client_id=CLIENT_ID, clock=SystemClock(), security=security, max_frame_bytes=max_frame_bytes
    )


@contextlib.asynccontextmanager
async def first(
    servers: Sequence[Address], security: Security, kind: int = BROKERS
) -> AsyncIterator[tuple[Connection, Members]]:
    """A connection to the first server that tells of its cluster, and what it tells.

    Raises:
        KjbodError: none does, with a line for each.
    """
    troubles: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        for address in servers:
            try:
                connection = await _open(address, security)
                await stack.enter_async_context(connection)
                members = await describe(connection, kind)
            except KjbodError as error:
                troubles.append(str(error))
                continue
            yield connection, members
            return
    raise KjbodError("\n".join(dict.fromkeys(troubles)) or "no server was named")


async def describe(connection: Connection, kind: int = BROKERS) -> Members:
    """The brokers, fenced ones too, or the controllers.

    Raises:
        KjbodError: it did not answer, refused, or is of another kind.
    """
    if ApiKey.DESCRIBE_CLUSTER not in connection.versions and kind == BROKERS:
        raise KjbodError(f"{connection.peer}: {_FOREIGN_TYPE[kind]}")
    version = connection.version_of(ApiKey.DESCRIBE_CLUSTER)
    tells_fenced = version >= _FENCED_SINCE and kind == BROKERS
    if kind == CONTROLLERS and version < _ENDPOINT_TYPE_SINCE:
        raise KjbodError(f"{connection.peer}: {_FOREIGN_TYPE[kind]}")
    question = DescribeClusterRequest(endpoint_type=kind, include_fenced_brokers=tells_fenced)
    told = await connection.request(question, timeout_ms=REQUEST_TIMEOUT_MS)
    if told.error_code in (ErrorCode.MISMATCHED_ENDPOINT_TYPE, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE):
        raise KjbodError(f"{connection.peer}: {_FOREIGN_TYPE[kind]}")
    if told.error_code:
        raise KjbodError(f"{connection.peer}: DescribeCluster: {told.error_message or name_of(told.error_code)}")
    nodes = [
        Node(id=each.broker_id, host=each.host, port=each.port, rack=each.rack,
             fenced=each.is_fenced if tells_fenced else None)
        for each in told.brokers
    ]  # fmt: skip
    nodes.sort(key=lambda node: node.id)
    return Members(cluster_id=told.cluster_id, controller_id=told.controller_id, nodes=nodes)


# ---------------------------------------------------------------- topics


async def partitions(connection: Connection, wanted: Collection[str] | None = None) -> Partitions:
    """The partitions of all topics that we may see, or of those that are ``wanted``.

    Raises:
        KjbodError: there is no such topic, or no answer.
    """
    if ApiKey.METADATA not in connection.versions:
        raise KjbodError(f"{connection.peer}: {_FOREIGN_TYPE[BROKERS]}")
    try:
        async with asyncio.timeout(PARTITIONS_TIMEOUT_S):
            if ApiKey.DESCRIBE_TOPIC_PARTITIONS in connection.versions:
                return await _by_pages(connection, wanted)
            return await _at_once(connection, wanted)
    except TimeoutError:
        raise KjbodError(
            f"{connection.peer} did not tell of all partitions within {PARTITIONS_TIMEOUT_S:.0f} s"
        ) from None


async def _by_pages(connection: Connection, wanted: Collection[str] | None) -> Partitions:
    """By DescribeTopicPartitions (KIP-966), some thousand partitions at a time.

    Raises:
        KjbodError: see :func:`partitions`.
        RemoteProtocolError: an answer goes on where one was before.
    """
    found: dict[str, dict[int, Partition]] = {}
    alike: dict[Partition, Partition] = {}
    topics = tuple(DescribeTopicPartitionsRequestTopic(name=name) for name in sorted(wanted or ()))
    cursor: DescribeTopicPartitionsCursor | None = None
    while True:
        question = DescribeTopicPartitionsRequest(topics=topics, cursor=cursor)
        page = await connection.request(question, timeout_ms=REQUEST_TIMEOUT_MS)
        for topic in page.topics:
            _require_topic(connection, topic.name, topic.error_code, wanted)
            if topic.name is not None and not topic.error_code:
                numbered = found.setdefault(topic.name, {})
                for told in topic.partitions:
                    each = partition_of(told)
                    numbered[told.partition_index] = alike.setdefault(each, each)
        following = page.next_cursor
        if following is None:
            return found
        if cursor is not None and _place(following) <= _place(cursor):
            raise RemoteProtocolError(f"{connection.peer}: DescribeTopicPartitions goes in circles")
        cursor = following


def _place(cursor: DescribeTopicPartitionsCursor) -> tuple[str, int]:
    return cursor.topic_name, cursor.partition_index


async def _at_once(connection: Connection, wanted: Collection[str] | None) -> Partitions:
    """By Metadata, of brokers before Kafka 3.7."""
    topics = None if wanted is None else tuple(MetadataRequestTopic(name=name) for name in sorted(wanted))
    question = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    answer = await connection.request(question, timeout_ms=REQUEST_TIMEOUT_MS)
    for topic in answer.topics:
        _require_topic(connection, topic.name, topic.error_code, wanted)
    return {
        topic.name: {told.partition_index: partition_of(told) for told in topic.partitions}
        for topic in answer.topics
        if topic.name is not None and not topic.error_code
    }


def _require_topic(connection: Connection, name: str | None, code: int, wanted: Collection[str] | None) -> None:
    if code and wanted is not None:
        raise KjbodError(f"{connection.peer}: topic {name}: {name_of(code)}: see --topic-list")


async def min_isrs(connection: Connection, topics: Iterable[str]) -> MinIsrs:
    """``min.insync.replicas`` of these topics; those that we may not look at are not there.

    Raises:
        KjbodError: no answer.
    """
    names, found = sorted(topics), dict[str, int]()
    try:
        async with asyncio.timeout(PARTITIONS_TIMEOUT_S):
            for start in range(0, len(names), TOPICS_MAX):
                question = DescribeConfigsRequest(
                    resources=tuple(
                        DescribeConfigsRequestResource(
                            resource_type=TOPIC, resource_name=name, configuration_keys=(MIN_ISR,)
                        )
                        for name in names[start : start + TOPICS_MAX]
                    )
                )
                answer = await connection.request(question, timeout_ms=REQUEST_TIMEOUT_MS)
                found.update(
                    (each.resource_name, value)
                    for each in answer.results
                    if not each.error_code and (value := _min_isr(each)) is not None
                )
    except TimeoutError:
        raise KjbodError(f"{connection.peer} did not tell of all topics within {PARTITIONS_TIMEOUT_S:.0f} s") from None
    return found


def _min_isr(told: DescribeConfigsResponseResult) -> int | None:
    value = next((each.value for each in told.configs if each.name == MIN_ISR), str(_MIN_ISR_DEFAULT))
    return int(value) if value is not None and value.isdecimal() else None


# ---------------------------------------------------------------- directories


async def log_dirs(nodes: Sequence[Node], security: Security, known: Known) -> list[BrokerDirs]:
    """The log directories of these brokers, in their order, all asked at the same time and for no longer than
    :data:`ANSWERS_TIMEOUT_S`."""
    connecting, answering = asyncio.Semaphore(CONNECTIONS_MAX), asyncio.Semaphore(ANSWERS_MAX)
    deadline = asyncio.get_running_loop().time() + ANSWERS_TIMEOUT_S

    async def ask(node: Node) -> BrokerDirs:
        try:
            async with (
                asyncio.timeout_at(deadline),
                connecting,
                await _open((node.host, node.port), security, ANSWER_BYTES_MAX) as connection,
                answering,
            ):
                version = connection.version_of(ApiKey.DESCRIBE_LOG_DIRS)
                answer = await connection.request(DescribeLogDirsRequest(), timeout_ms=REQUEST_TIMEOUT_MS)
                return answered(node, answer, version, known)
        except TimeoutError:
            reason = f"{node.host}:{node.port} did not answer within {ANSWERS_TIMEOUT_S:.0f} s"
        except KjbodError as error:
            reason = "; ".join(str(error).splitlines())
        return unanswered(node, reason, known)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(node)) for node in nodes]
    return [task.result() for task in tasks]


# ---------------------------------------------------------------- unregistering


async def unregister(connection: Connection, broker_id: int, security: Security) -> UnregisterBrokerResponse:
    """The outcome of UnregisterBroker; a controller that is not the active one is asked which one is.

    Raises:
        KjbodError: no answer.
    """
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = await connection.request(request, timeout_ms=REQUEST_TIMEOUT_MS)
    if answer.error_code != ErrorCode.NOT_CONTROLLER:
        return answer
    controllers = await describe(connection, CONTROLLERS)
    active = controllers.node(controllers.controller_id)
    if active is None:
        raise KjbodError(f"{connection.peer}: there is no active controller: try again")
    async with await _open((active.host, active.port), security) as leader:
        return await leader.request(request, timeout_ms=REQUEST_TIMEOUT_MS)


async def on_any(servers: Sequence[Address], security: Security, use: Callable[[Connection], Awaitable[Any]]) -> Any:
    """Result of ``use`` on the first server that can be reached.

    Raises:
        KjbodError: none can be, with a line for each, or ``use`` failed.
    """
    troubles: list[str] = []
    for address in servers:
        try:
            connection = await _open(address, security)
        except KjbodError as error:
            troubles.append(str(error))
            continue
        async with connection:
            return await use(connection)
    raise KjbodError("\n".join(troubles) or "no server was named")
