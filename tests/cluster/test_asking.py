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
from kjbod.ids import ZERO
from kjbod.security.channel import NO_SECURITY
from kjbod.wire.admin_messages import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
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
        *(ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.UNREGISTER_BROKER, ApiKey.DESCRIBE_ACLS),
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
            assert await asking.min_isrs(connection, ["t", "hidden"]) == ({"t": 2}, set())
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
            assert await asking.min_isrs(connection, ["t", "a", "b", "c", "d"]) == ({"t": 2}, set())

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


def controllers(cluster_id: str, port: int) -> DescribeClusterResponse:
    """One controller at this port, which is the active one."""
    nodes = (DescribeClusterResponseBroker(broker_id=3001, host="127.0.0.1", port=port),)
    return DescribeClusterResponse(cluster_id=cluster_id, endpoint_type=2, controller_id=3001, brokers=nodes)


def test_a_controller_that_is_not_the_active_one_is_asked_for_it() -> None:
    ports: list[int] = []

    async def standby(message: RequestBody[Any]) -> ResponseBody:
        if isinstance(message, UnregisterBrokerRequest):
            return UnregisterBrokerResponse(error_code=ErrorCode.NOT_CONTROLLER)
        return controllers("c", ports[0])

    async def active(message: RequestBody[Any]) -> ResponseBody:
        if isinstance(message, DescribeClusterRequest):
            return controllers("c", ports[0])
        assert message == UnregisterBrokerRequest(broker_id=5)
        return UnregisterBrokerResponse(error_message="by the active one")

    async def story() -> UnregisterBrokerResponse:
        async with server(standby) as first, server(active) as second, await to(first) as connection:
            ports.append(second.port)
            return await asking.unregister(connection, 5, NO_SECURITY)

    assert asyncio.run(story()).error_message == "by the active one"


def test_an_active_controller_of_another_cluster_is_told_nothing() -> None:
    ports: list[int] = []

    async def standby(message: RequestBody[Any]) -> ResponseBody:
        if isinstance(message, UnregisterBrokerRequest):
            return UnregisterBrokerResponse(error_code=ErrorCode.NOT_CONTROLLER)
        return controllers("c", ports[0])

    async def other(message: RequestBody[Any]) -> ResponseBody:
        assert isinstance(message, DescribeClusterRequest)
        return controllers("other", ports[0])

    async def story() -> None:
        async with server(standby) as first, server(other) as second, await to(first) as connection:
            ports.append(second.port)
            with pytest.raises(KjbodError, match=r"broker 5 was not unregistered: .* is of another cluster"):
                await asking.unregister(connection, 5, NO_SECURITY)

    asyncio.run(story())


async def closing(message: RequestBody[Any]) -> ResponseBody:
    """A server whose connection ends at the question."""
    raise RemoteProtocolError("gone")


async def never(message: RequestBody[Any]) -> ResponseBody:
    """A server that takes a question and does not answer."""
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", [closing, never])
def test_without_an_answer_it_is_not_known_whether_a_broker_was_unregistered(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "REQUEST_TIMEOUT_MS", 100)

    async def story() -> None:
        async with server(answer) as node, await to(node) as connection:
            with pytest.raises(
                KjbodError, match=r"it is not known whether broker 5 was unregistered: .* log-dirs shows"
            ):
                await asking.unregister(connection, 5, NO_SECURITY)

    asyncio.run(story())


@pytest.mark.parametrize("code", [0, ErrorCode.SECURITY_DISABLED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED])
def test_only_a_server_without_an_authorizer_certainly_tells_of_all_topics(code: int) -> None:
    async def answer(message: RequestBody[Any]) -> ResponseBody:
        assert isinstance(message, DescribeAclsRequest)
        return DescribeAclsResponse(error_code=code)

    async def story() -> None:
        async with server(answer) as node, await to(node) as connection:
            assert await asking.leaves_nothing_out(connection) == (code == ErrorCode.SECURITY_DISABLED)
        async with server(answer, OF_3_3) as node, await to(node) as connection:
            assert not await asking.leaves_nothing_out(connection)
        async with server(closing) as node, await to(node) as connection:
            assert not await asking.leaves_nothing_out(connection)

    asyncio.run(story())


EVIL = "no\nkjbod: all is well\x1b[2J\u202e\x9b"


def test_texts_of_a_server_are_printed_and_not_obeyed() -> None:
    async def answer(message: RequestBody[Any]) -> ResponseBody:
        if isinstance(message, DescribeClusterRequest):
            return DescribeClusterResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=EVIL * 1000)
        topic = DescribeTopicPartitionsResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=EVIL, topic_id=ZERO
        )
        return DescribeTopicPartitionsResponse(topics=(topic,))

    async def story() -> list[str]:
        async with server(answer) as node, await to(node) as connection:
            with pytest.raises(KjbodError) as described:
                await asking.describe(connection)
            with pytest.raises(KjbodError) as asked:
                await asking.partitions(connection, {"t"})
            return [str(described.value), str(asked.value)]

    for line in asyncio.run(story()):
        assert line.isprintable() and "kjbod: all is well" in line and len(line) < 400


def test_a_broker_that_is_listed_more_than_once_is_one() -> None:
    async def answer(message: RequestBody[Any]) -> ResponseBody:
        brokers = [DescribeClusterResponseBroker(broker_id=number, host="h", port=1) for number in (2, 1, 2, 2)]
        return DescribeClusterResponse(cluster_id="c", brokers=tuple(brokers))

    async def story() -> None:
        async with server(answer) as node, await to(node) as connection:
            assert [each.id for each in (await asking.describe(connection)).nodes] == [1, 2]

    asyncio.run(story())


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 70000), ("127.0.0.1", -7), ("", 9092), ("a" * 300, 9092)])
def test_an_address_that_is_none_costs_its_own_line(host: str, port: int) -> None:
    async def story() -> list[BrokerDirs]:
        async with server(of_3_3) as node:
            return await asking.log_dirs([Node(id=2, host=host, port=port), node], NO_SECURITY, NOTHING)

    wrong, answered = asyncio.run(story())
    assert wrong.error is not None and len(wrong.error) < 400
    assert answered.error is None and answered.log_dirs


def configs(of: DescribeConfigsRequest, code: int = 0, **values: str | None) -> DescribeConfigsResponse:
    """The same answer about each resource; ``_`` in a key is a dot."""
    told = tuple(
        DescribeConfigsResponseConfig(name=key.replace("_", "."), value=value) for key, value in values.items()
    )
    return DescribeConfigsResponse(
        results=tuple(
            DescribeConfigsResponseResult(
                error_code=code, resource_type=each.resource_type, resource_name=each.resource_name, configs=told
            )
            for each in of.resources
        )
    )


@pytest.mark.parametrize("value", ["9" * 5000, "99999999999", "", "x", None])
def test_a_min_isr_that_is_no_number_is_unknown(value: str | None) -> None:
    async def answer(message: RequestBody[Any]) -> ResponseBody:
        assert isinstance(message, DescribeConfigsRequest)
        return configs(message, min_insync_replicas=value)

    async def story() -> None:
        async with server(answer) as node, await to(node) as connection:
            assert await asking.min_isrs(connection, ["t"]) == ({}, set())

    asyncio.run(story())


def test_a_topic_that_was_deleted_meanwhile_is_told_from_one_that_may_not_be_seen() -> None:
    async def answer(message: RequestBody[Any]) -> ResponseBody:
        assert isinstance(message, DescribeConfigsRequest)
        return configs(message, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def story() -> None:
        async with server(answer) as node, await to(node) as connection:
            assert await asking.min_isrs(connection, ["t"]) == ({}, {"t"})

    asyncio.run(story())


@pytest.mark.parametrize("code", [0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None])
def test_each_broker_is_asked_where_its_metadata_log_is_and_need_not_tell(code: int | None) -> None:
    asked: list[tuple[int, str]] = []

    async def answer(message: RequestBody[Any]) -> ResponseBody:
        if not isinstance(message, DescribeConfigsRequest):
            return await of_3_3(message)
        asked.extend((each.resource_type, each.resource_name) for each in message.resources)
        if code is None:
            raise RemoteProtocolError("gone")
        return configs(message, code, process_roles="broker", log_dirs="/d1,/d2")

    async def story() -> list[BrokerDirs]:
        async with server(answer) as node:
            return await asking.log_dirs([node], NO_SECURITY, NOTHING)

    (found,) = asyncio.run(story())
    assert asked == [(4, "1")]
    assert found.error is None
    assert [(each.path, each.has_metadata_log) for each in found.log_dirs] == [("/d1", True if code == 0 else None)]


def test_brokers_in_the_place_of_controllers_end_the_waiting_and_a_single_controller_is_enough() -> None:
    async def broker(message: RequestBody[Any]) -> ResponseBody:
        return DescribeClusterResponse(error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE)

    async def controller(message: RequestBody[Any]) -> ResponseBody:
        return controllers("c", 1)

    async def story() -> None:
        async with server(broker) as one, server(broker) as two, server(controller) as third, server(never) as hung:
            at = [(each.host, each.port) for each in (one, two, third, hung)]
            await asking.require_controller(at, NO_SECURITY)
            await asking.require_controller([at[0], ("127.0.0.1", 1)], NO_SECURITY)  # whoever reads says what is wrong
            with pytest.raises(KjbodError) as caught:
                await asking.require_controller(at[:2], NO_SECURITY)
            hint = "that is a broker's listener: give a controller's to --bootstrap-controller"
            assert set(str(caught.value).splitlines()) == {f"{host}:{port}: {hint}" for host, port in at[:2]}

    asyncio.run(story())
