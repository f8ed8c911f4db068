"""Requests to the brokers and controllers of a cluster, like an admin client's. Every answer comes within a time limit;
missing data of a broker becomes a line about that broker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import Final

from msgspec import Struct

from kjbod.clock import SystemClock
from kjbod.cluster.log_dirs import BrokerDirs, Known, Node, answered, unanswered
from kjbod.cluster.metadata_log import KEYS, mark, metadata_log_dir
from kjbod.cluster.partitions import MinIsrs, Partition, Partitions, partition_of
from kjbod.cluster.unregistering import unknown_outcome
from kjbod.errors import KjbodError, RemoteProtocolError, UnsupportedVersionError
from kjbod.metadata.acls import ANY, ResourceType
from kjbod.metadata.fetching import Address
from kjbod.metadata.image import BROKER, TOPIC
from kjbod.printable import printable
from kjbod.security.channel import Security
from kjbod.wire.admin_messages import (
    DescribeAclsRequest,
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
)
from kjbod.wire.client import Connection, Disconnected
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
"""Time limit for all facts about topics from one broker."""
ANSWERS_TIMEOUT_S: Final = 60.0
"""Time limit for the answers of all brokers about their directories; a slower broker counts as silent."""
CONNECTIONS_MAX: Final = 256
"""Maximum connections to brokers at a time."""
ANSWERS_MAX: Final = 16
"""Maximum brokers that are asked for replicas at a time, so that few large answers are in memory."""
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum size of such an answer: more than a million replicas."""
TOPICS_MAX: Final = 500
"""Maximum topics of one DescribeConfigs: an agent accepts requests of 256 KiB."""
BROKERS: Final = 1
CONTROLLERS: Final = 2
"""``DescribeClusterRequest.endpoint_type``."""
TEXT_CHARS_MAX: Final = 200
"""Maximum characters of a server's text in a line of ours."""
PORT_MAX: Final = 65535
MIN_ISR: Final = "min.insync.replicas"
_INT32_DIGITS_MAX: Final = 10
_MIN_ISR_DEFAULT: Final = 1
"""Kafka's default. Brokers report it; agents report only dynamically configured values."""
_FENCED_SINCE: Final = 2
"""First version of DescribeCluster that shows fenced brokers (KIP-1073)."""
_ENDPOINT_TYPE_SINCE: Final = 1
_FOREIGN_TYPE: Final = {
    BROKERS: "that is a controller's listener: give a broker's to --bootstrap-server",
    CONTROLLERS: "that is a broker's listener: give a controller's to --bootstrap-controller",
}


class ForeignListenerError(KjbodError):
    """A broker's listener was given instead of a controller's, or the reverse."""


class Members(Struct, frozen=True, kw_only=True):
    """Nodes of a cluster of one kind: brokers or controllers."""

    cluster_id: str
    controller_id: int
    nodes: Sequence[Node]

    def node(self, node_id: int) -> Node | None:
        """Return the node with this id."""
        return next((node for node in self.nodes if node.id == node_id), None)


async def _open(address: Address, security: Security, max_frame_bytes: int = MAX_FRAME_BYTES) -> Connection:
    host, port = address
    where = f"{_shown(host)}:{port}"
    if not host or not 0 < port <= PORT_MAX:
        raise KjbodError(f"{where} is no address of a server")
    try:
        return await Connection.open(
            host, port, client_id=CLIENT_ID, clock=SystemClock(), security=security, max_frame_bytes=max_frame_bytes
        )
    except ValueError:  # a name that the resolver refuses
        raise KjbodError(f"{where} is no address of a server") from None


def _shown(text: str) -> str:
    return printable(text, TEXT_CHARS_MAX)


def address_of(connection: Connection) -> Address:
    """Return the address to which a connection was opened."""
    host, _, port = connection.peer.rpartition(":")
    return host, int(port)


@contextlib.asynccontextmanager
async def first(
    servers: Sequence[Address], security: Security, kind: int = BROKERS
) -> AsyncIterator[tuple[Connection, Members]]:
    """Return a connection to the first server that describes its cluster, with that description.

    Raises:
        KjbodError: no server does, with a line for each.
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
    """Return the brokers, including fenced ones, or the controllers.

    Raises:
        KjbodError: the server did not answer, refused, or is of the other kind.
    """
    foreign = ForeignListenerError(f"{connection.peer}: {_FOREIGN_TYPE[kind]}")
    if ApiKey.DESCRIBE_CLUSTER not in connection.versions and kind == BROKERS:
        raise foreign
    version = connection.version_of(ApiKey.DESCRIBE_CLUSTER)
    tells_fenced = version >= _FENCED_SINCE and kind == BROKERS
    if kind == CONTROLLERS and version < _ENDPOINT_TYPE_SINCE:
        raise foreign
    question = DescribeClusterRequest(endpoint_type=kind, include_fenced_brokers=tells_fenced)
    told = await connection.request(question, timeout_ms=REQUEST_TIMEOUT_MS)
    if told.error_code in (ErrorCode.MISMATCHED_ENDPOINT_TYPE, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE):
        raise foreign
    if told.error_code:
        why = _shown(told.error_message or name_of(told.error_code))
        raise KjbodError(f"{connection.peer}: DescribeCluster: {why}")
    nodes: dict[int, Node] = {}
    for each in told.brokers:
        fenced = each.is_fenced if tells_fenced else None
        node = Node(id=each.broker_id, host=each.host, port=each.port, rack=each.rack, fenced=fenced)
        nodes.setdefault(node.id, node)
    return Members(
        cluster_id=told.cluster_id, controller_id=told.controller_id, nodes=[nodes[each] for each in sorted(nodes)]
    )


async def require_controller(servers: Sequence[Address], security: Security) -> None:
    """Require that at least one server is not a broker, before waiting for a controller.

    Raises:
        KjbodError: all are brokers, with a line for each.
    """
    answers = asyncio.Queue[str | None]()

    async def ask(address: Address) -> None:
        answers.put_nowait(await _foreign(address, security))

    lines = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(address)) for address in servers]
        for _ in tasks:
            line = await answers.get()
            if line is None:
                for task in tasks:
                    task.cancel()
                return
            lines.append(line)
    raise KjbodError("\n".join(dict.fromkeys(lines)))


async def _foreign(address: Address, security: Security) -> str | None:
    """Return a line about a server that is certainly not a controller; None: it may be one."""
    try:
        async with await _open(address, security) as connection:
            await describe(connection, CONTROLLERS)
    except ForeignListenerError as error:
        return str(error)
    except KjbodError:
        pass  # the reader of the metadata reports the reason
    return None


# ---------------------------------------------------------------- topics


async def leaves_nothing_out(connection: Connection) -> bool:
    """Return whether the server certainly lists all topics. That is certain only if it reports that it has no
    authorizer: topics without permission to DESCRIBE are silently left out."""
    if ApiKey.DESCRIBE_ACLS not in connection.versions:
        return False
    question = DescribeAclsRequest(
        resource_type_filter=ResourceType.CLUSTER, resource_name_filter="kafka-cluster", operation=ANY,
        permission_type=ANY,
    )  # fmt: skip
    try:
        answer = await connection.request(question, timeout_ms=REQUEST_TIMEOUT_MS)
    except KjbodError:
        return False
    return answer.error_code == ErrorCode.SECURITY_DISABLED


async def partitions(connection: Connection, wanted: Collection[str] | None = None) -> Partitions:
    """Return the partitions of all visible topics, or of the ``wanted`` topics.

    Raises:
        KjbodError: no such topic, or no answer.
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
    """Read the partitions with DescribeTopicPartitions (KIP-966), some thousand at a time.

    Raises:
        KjbodError: see :func:`partitions`.
        RemoteProtocolError: the next page begins at an earlier position.
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
    """Read the partitions with Metadata, for brokers before Kafka 3.7."""
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
        raise KjbodError(f"{connection.peer}: topic {_shown(str(name))}: {name_of(code)}: see --topic-list")


async def min_isrs(connection: Connection, topics: Iterable[str]) -> tuple[MinIsrs, set[str]]:
    """Return ``min.insync.replicas`` of these topics, without topics that we may not read, and the topics that were
    deleted since.

    Raises:
        KjbodError: no answer.
    """
    names, found, deleted = sorted(topics), dict[str, int](), set[str]()
    try:
        async with asyncio.timeout(PARTITIONS_TIMEOUT_S):
            for start in range(0, len(names), TOPICS_MAX):
                answer = await connection.request(
                    _question(TOPIC, names[start : start + TOPICS_MAX], (MIN_ISR,)), timeout_ms=REQUEST_TIMEOUT_MS
                )
                for each in answer.results:
                    if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        deleted.add(each.resource_name)
                    elif not each.error_code and (value := _min_isr(each)) is not None:
                        found[each.resource_name] = value
    except TimeoutError:
        raise KjbodError(f"{connection.peer} did not tell of all topics within {PARTITIONS_TIMEOUT_S:.0f} s") from None
    return found, deleted


def _question(kind: int, names: Iterable[str], keys: tuple[str, ...]) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for name in names
        )
    )


def _min_isr(told: DescribeConfigsResponseResult) -> int | None:
    value = next((each.value for each in told.configs if each.name == MIN_ISR), str(_MIN_ISR_DEFAULT))
    return int(value) if value and value.isdecimal() and len(value) <= _INT32_DIGITS_MAX else None


# ---------------------------------------------------------------- directories


async def log_dirs(
    nodes: Sequence[Node],
    security: Security,
    known: Known,
    *,
    replicas: bool = True,
    timeout_s: float | None = None,
) -> list[BrokerDirs]:
    """Return the log directories of these brokers, in their order. All brokers are asked in parallel.

    Args:
        nodes: the brokers.
        security: of the connections.
        known: facts about the cluster.
        replicas: also ask for replicas, the largest part of an answer, and mark the directory of the metadata log.
        timeout_s: time limit for all answers together; None: :data:`ANSWERS_TIMEOUT_S`.
    """
    connecting, answering = asyncio.Semaphore(CONNECTIONS_MAX), asyncio.Semaphore(ANSWERS_MAX)
    timeout_s = ANSWERS_TIMEOUT_S if timeout_s is None else timeout_s
    deadline = asyncio.get_running_loop().time() + timeout_s

    async def ask(node: Node) -> BrokerDirs:
        found: BrokerDirs | None = None
        try:
            async with (
                asyncio.timeout_at(deadline),
                connecting,
                await _open((node.host, node.port), security, ANSWER_BYTES_MAX) as connection,
                answering,
            ):
                version = connection.version_of(ApiKey.DESCRIBE_LOG_DIRS)
                question = DescribeLogDirsRequest() if replicas else DescribeLogDirsRequest(topics=())
                answer = await connection.request(question, timeout_ms=REQUEST_TIMEOUT_MS)
                found = answered(node, answer, version, known)
                if not replicas:
                    return found
                mark(found, await _metadata_log_dir(connection, node, known))
                return found
        except TimeoutError:
            reason = f"{node.host}:{node.port} did not answer within {timeout_s:.0f} s"
        except KjbodError as error:
            reason = "; ".join(str(error).splitlines())
        return found or unanswered(node, reason, known)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(node)) for node in nodes]
    return [task.result() for task in tasks]


async def _metadata_log_dir(connection: Connection, node: Node, known: Known) -> str | None:
    """Return the directory whose failure ends the broker: see :func:`metadata_log_dir`.

    Raises:
        KjbodError: no answer.
    """
    try:
        answer = await connection.request(_question(BROKER, [str(node.id)], KEYS), timeout_ms=REQUEST_TIMEOUT_MS)
    except UnsupportedVersionError:
        return None
    controllers = None if known.image is None else known.image.controllers
    return metadata_log_dir(answer.results, node.id in controllers if controllers else None)


# ---------------------------------------------------------------- unregistering


async def unregister(connection: Connection, broker_id: int, security: Security) -> UnregisterBrokerResponse:
    """Send UnregisterBroker and return its outcome. A controller that is not active is asked for the active one.

    Raises:
        KjbodError: the request was not sent, or its outcome is unknown.
    """
    answer = await _unregister(connection, broker_id)
    if answer.error_code != ErrorCode.NOT_CONTROLLER:
        return answer
    controllers = await describe(connection, CONTROLLERS)
    active = controllers.node(controllers.controller_id)
    if active is None:
        raise KjbodError(f"{connection.peer}: there is no active controller: try again")
    undone = f"broker {broker_id} was not unregistered"
    async with contextlib.AsyncExitStack() as stack:
        try:
            leader = await stack.enter_async_context(await _open((active.host, active.port), security))
            leads = await describe(leader, CONTROLLERS)
        except KjbodError as error:
            raise KjbodError(f"{undone}: {_shown(str(error))}") from None
        if leads.cluster_id != controllers.cluster_id:
            raise KjbodError(f"{undone}: the active controller {_shown(leader.peer)} is of another cluster")
        return await _unregister(leader, broker_id)


async def _unregister(connection: Connection, broker_id: int) -> UnregisterBrokerResponse:
    """Return the answer of this server.

    Raises:
        KjbodError: no answer came.
    """
    try:
        return await connection.request(UnregisterBrokerRequest(broker_id=broker_id), timeout_ms=REQUEST_TIMEOUT_MS)
    except Disconnected as error:
        raise KjbodError(unknown_outcome(broker_id, _shown(str(error)))) from None
