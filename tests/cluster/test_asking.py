"""Questions to servers on real sockets that no test can have otherwise: old ones, those that refuse, go in circles, or
never answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.cluster import asking
from kjbod.cluster.log_dirs import BrokerDirs, Known, Node
from kjbod.cluster.partitions import Partition, shares_of, trouble_of
from kjbod.errors import KjbodError, RemoteProtocolError
from kjbod.security.channel import NO_SECURITY
from kjbod.wire.admin_messages import (
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kjbod.wire.client import Connection
from kjbod.wire.connection import api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request, VersionRanges
from kjbod.wire.messages import (
    API,
    ApiKey,
    ApiVersionsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseResult,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    RequestBody,
    ResponseBody,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kjbod.wire.server import Peer, serve

Answer = Callable[[RequestBody[Any]], Awaitable[ResponseBody]]
TODAY: VersionRanges = {
    key: (API[key].min_version, API[key].max_version)
    for key in (
        *(ApiKey.API_VERSIONS, ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS),
        *(ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.UNREGISTER_BROKER),
    )
}
OF_3_3: VersionRanges = {
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.METADATA: (0, 12),
    ApiKey.DESCRIBE_CLUSTER: (0, 0),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 3),
}


class Silence:
    """A log that nobody reads."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *_args, **_fields: None


@asynccontextmanager
async def server(answer: Answer, apis: VersionRanges = TODAY) -> AsyncIterator[Node]:
    """A broker that answers so."""

    async def handle(request: Request, peer: Peer) -> ResponseBody:
        if isinstance(request.message, ApiVersionsRequest):
            return api_versions_response(request, apis)
        return await answer(request.message)

    log: Any = Silence()
    async with await serve("127.0.0.1", 0, handle, apis=apis, clock=SystemClock(), log=log, preloaded={}) as listening:
        yield Node(id=1, host="127.0.0.1", port=listening.port)


async def to(node: Node) -> Connection:
    return await Connection.open(node.host, node.port, client_id="t", clock=SystemClock())


NOTHING = Known(partitions={}, min_isrs={}, shares=shares_of({}), trouble=trouble_of({}, {}))
PARTITION = MetadataResponsePartition(partition_index=3, leader_id=1, replica_nodes=(1, 2), isr_nodes=(1,))


async def of_3_3(message: RequestBody[Any]) -> ResponseBody:
    """A broker of Kafka 3.3 with a topic that may be seen and one that may not."""
    match message:
        case DescribeClusterRequest():
            brokers = (DescribeClusterResponseBroker(broker_id=1, host="h", port=1),)
            return DescribeClusterResponse(cluster_id="c", brokers=brokers)
        case MetadataRequest():
            hidden = MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name="hidden")
            return MetadataResponse(topics=(MetadataResponseTopic(name="t", partitions=(PARTITION,)), hidden))
        case DescribeConfigsRequest(resources=resources):
            value = DescribeConfigsResponseConfig(name=asking.MIN_ISR, value="2")
            return DescribeConfigsResponse(
                results=tuple(
                    DescribeConfigsResponseResult(
                        resource_type=2,
                        resource_name=each.resource_name,
                        error_code=0 if each.resource_name == "t" else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        configs=(value,) if each.resource_name == "t" else (),
                    )
                    for each in resources
                )
            )
        case DescribeLogDirsRequest():
            return DescribeLogDirsResponse(results=(DescribeLogDirsResponseResult(log_dir="/d1"),))
    raise AssertionError(message)


def test_an_old_broker_is_asked_for_what_it_knows() -> None:
    async def story() -> None:
        async with server(of_3_3, OF_3_3) as node, await to(node) as connection:
            members = await asking.describe(connection)
            assert [(each.id, each.fenced) for each in members.nodes] == [(1, None)]
            assert await asking.partitions(connection) == {"t": {3: Partition(1, (1, 2), (1,))}}
            assert await asking.min_isrs(connection, ["t", "hidden"]) == {"t": 2}
            (found,) = await asking.log_dirs([node], NO_SECURITY, NOTHING)
            assert [(each.path, each.cordoned, each.total_bytes) for each in found.log_dirs] == [("/d1", None, None)]
            with pytest.raises(KjbodError, match="topic hidden: TOPIC_AUTHORIZATION_FAILED: see --topic-list"):
                await asking.partitions(connection, {"t", "hidden"})

    asyncio.run(story())


def test_many_topics_are_asked_for_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "TOPICS_MAX", 2)
    asked: list[int] = []

    async def answer(message: RequestBody[Any]) -> ResponseBody:
        assert isinstance(message, DescribeConfigsRequest)
        asked.append(len(message.resources))
        return await of_3_3(message)

    async def story() -> None:
        async with server(answer) as node, await to(node) as connection:
            assert await asking.min_isrs(connection, ["t", "a", "b", "c", "d"]) == {"t": 2}

    asyncio.run(story())
    assert asked == [2, 2, 1]


def test_pages_that_go_in_circles_end() -> None:
    async def answer(message: RequestBody[Any]) -> ResponseBody:
        assert isinstance(message, DescribeTopicPartitionsRequest)
        return DescribeTopicPartitionsResponse(
            next_cursor=DescribeTopicPartitionsCursor(topic_name="t", partition_index=1)
        )

    async def story() -> None:
        async with server(answer) as node, await to(node) as connection:
            with pytest.raises(RemoteProtocolError, match="goes in circles"):
                await asking.partitions(connection)

    asyncio.run(story())


def test_a_broker_that_never_answers_costs_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWERS_TIMEOUT_S", 0.3)

    async def never(message: RequestBody[Any]) -> ResponseBody:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def story() -> list[BrokerDirs]:
        async with server(never) as silent, server(of_3_3) as node:
            return await asking.log_dirs([silent, node], NO_SECURITY, NOTHING)

    silent, answered = asyncio.run(story())
    assert silent.error is not None and silent.error.endswith("did not answer within 0 s")
    assert [each.path for each in answered.log_dirs] == ["/d1"]


def test_few_answers_are_taken_at_a_time_however_many_brokers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWERS_MAX", 2)
    asked, most = 0, 0

    async def answer(message: RequestBody[Any]) -> ResponseBody:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(0)
        asked -= 1
        return await of_3_3(message)

    async def story() -> list[BrokerDirs]:
        async with server(answer) as node:
            return await asking.log_dirs([node] * 20, NO_SECURITY, NOTHING)

    assert all(broker.error is None for broker in asyncio.run(story()))
    assert most <= 2


def test_the_first_server_that_tells_of_its_cluster_is_asked_and_of_others_each_is_named() -> None:
    async def controller(message: RequestBody[Any]) -> ResponseBody:
        assert isinstance(message, DescribeClusterRequest)
        return DescribeClusterResponse(error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE)

    async def story() -> None:
        async with server(controller) as wrong, server(of_3_3) as node:
            addresses = [("127.0.0.1", 1), (wrong.host, wrong.port), (node.host, node.port)]
            async with asking.first(addresses, NO_SECURITY) as (connection, members):
                assert (connection.peer, members.cluster_id) == (f"127.0.0.1:{node.port}", "c")
            with pytest.raises(KjbodError) as caught:
                async with asking.first(addresses[:2], NO_SECURITY):
                    pass
            assert str(caught.value).splitlines() == [
                "cannot connect to 127.0.0.1:1: Connection refused",
                f"127.0.0.1:{wrong.port}: that is a controller's listener: give a broker's to --bootstrap-server",
            ]

    asyncio.run(story())


def test_a_controller_that_is_not_the_active_one_is_asked_for_it() -> None:
    ports: list[int] = []

    async def standby(message: RequestBody[Any]) -> ResponseBody:
        if isinstance(message, UnregisterBrokerRequest):
            return UnregisterBrokerResponse(error_code=ErrorCode.NOT_CONTROLLER)
        nodes = (DescribeClusterResponseBroker(broker_id=3001, host="127.0.0.1", port=ports[0]),)
        return DescribeClusterResponse(cluster_id="c", endpoint_type=2, controller_id=3001, brokers=nodes)

    async def active(message: RequestBody[Any]) -> ResponseBody:
        assert message == UnregisterBrokerRequest(broker_id=5)
        return UnregisterBrokerResponse(error_message="by the active one")

    async def story() -> UnregisterBrokerResponse:
        async with server(standby) as first, server(active) as second, await to(first) as connection:
            ports.append(second.port)
            return await asking.unregister(connection, 5, NO_SECURITY)

    assert asyncio.run(story()).error_message == "by the active one"
