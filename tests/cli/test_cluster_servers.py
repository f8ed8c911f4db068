"""``kjbod cluster`` at servers that no test can have otherwise: what it does not know, it neither says nor does."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from kjbod.cli import main as cli
from kjbod.ids import ZERO
from kjbod.metadata.image import BrokerRegistration, MetadataImage
from kjbod.metadata.records import Endpoint
from kjbod.wire.admin_messages import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    RequestBody,
    ResponseBody,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from tests.cluster.test_asking import configs, server


class Broker:
    """A broker that shows no topic. Broker 2 of its cluster is down."""

    def __init__(self, authorizer: bool = False, describes: bool = True, refuses: int = 0) -> None:
        self._authorizer = authorizer
        self._describes = describes
        self._refuses = refuses
        self.unregistered: list[int] = []

    async def __call__(self, message: RequestBody[Any]) -> ResponseBody:
        match message:
            case DescribeClusterRequest() if not self._describes:
                return DescribeClusterResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
            case DescribeClusterRequest():
                down = DescribeClusterResponseBroker(broker_id=2, host="h", port=1, is_fenced=True)
                return DescribeClusterResponse(cluster_id="c", brokers=(down,))
            case DescribeAclsRequest():
                return DescribeAclsResponse(error_code=0 if self._authorizer else ErrorCode.SECURITY_DISABLED)
            case UnregisterBrokerRequest(broker_id=broker_id):
                self.unregistered.append(broker_id)
                return UnregisterBrokerResponse(error_code=self._refuses, error_message="java " * 100)
        return DescribeTopicPartitionsResponse()


def unregister(*brokers: Broker, more: tuple[str, ...] = ()) -> int:
    async def story() -> int:
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(server(broker)) for broker in brokers]
            servers = ",".join(f"{node.host}:{node.port}" for node in nodes)
            return await asyncio.to_thread(
                cli.run, ["cluster", "unregister", "--bootstrap-server", servers, "--id", "2", *more]
            )

    return asyncio.run(story())


def test_a_broker_is_left_where_topics_may_be_hidden_though_none_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    broker = Broker(authorizer=True)
    assert unregister(broker) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kjbod: it is not known whether broker 2 still has replicas") and "--yes" in line
    assert broker.unregistered == []


def test_with_yes_it_is_said_that_nobody_knows_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    broker = Broker(authorizer=True)
    assert unregister(broker, more=("--yes",)) == 0
    said = capsys.readouterr()
    assert said.out == "Broker 2 is no longer registered.\n"
    assert said.err == "kjbod: it is not known whether replicas of it stay in the metadata, without a broker\n"
    assert broker.unregistered == [2]


def test_without_an_authorizer_no_replica_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    broker = Broker()
    assert unregister(broker) == 0
    assert capsys.readouterr().err == ""
    assert broker.unregistered == [2]


def test_whom_was_asked_is_whom_is_told_and_no_other_server() -> None:
    silent, asked = Broker(describes=False), Broker()
    assert unregister(silent, asked) == 0
    assert (silent.unregistered, asked.unregistered) == ([], [2])


def test_a_missing_right_is_named_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert unregister(Broker(refuses=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)) == 1
    assert capsys.readouterr().err == (
        "kjbod: broker 2 was not unregistered: CLUSTER_AUTHORIZATION_FAILED: it takes ALTER on the cluster\n"
    )


async def deleting(message: RequestBody[Any]) -> ResponseBody:
    """A cluster whose topic is deleted as soon as it was told of. Its broker is not there, nor is its address one."""
    match message:
        case DescribeClusterRequest():
            broker = DescribeClusterResponseBroker(broker_id=1, host="h", port=70000)
            return DescribeClusterResponse(cluster_id="c", brokers=(broker, broker))
        case DescribeTopicPartitionsRequest():
            partition = DescribeTopicPartitionsResponsePartition(
                partition_index=0, leader_id=1, replica_nodes=(1, 9), isr_nodes=(1,), offline_replicas=()
            )
            topic = DescribeTopicPartitionsResponseTopic(name="t", topic_id=ZERO, partitions=(partition,))
            kept = DescribeTopicPartitionsResponseTopic(name="kept", topic_id=ZERO, partitions=(partition,))
            return DescribeTopicPartitionsResponse(topics=(topic, kept))
        case DescribeConfigsRequest():
            results = configs(message, min_insync_replicas="2").results
            gone = configs(message, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION).results
            return DescribeConfigsResponse(results=(results[0], gone[1]))  # kept, t
    assert isinstance(message, DescribeAclsRequest)
    return DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED)


def test_a_topic_that_is_deleted_meanwhile_counts_nowhere_and_blames_no_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story() -> int:
        async with server(deleting) as node:
            where = ["--bootstrap-server", f"{node.host}:{node.port}"]
            assert await asyncio.to_thread(cli.run, ["cluster", "log-dirs", *where]) == 1
            return await asyncio.to_thread(cli.run, ["cluster", "log-dirs", *where, "--json"])

    assert asyncio.run(story()) == 1
    said = capsys.readouterr()
    assert "DESCRIBE_CONFIGS" not in said.err
    assert "replicas on brokers that are not registered: 1 on broker 9\n" in said.err
    document = json.loads(said.out[said.out.index("{") :])
    assert document["partitions"] == {"count": 1, "leaderless": 0, "under_min_isr": 1}
    (broker,) = document["brokers"]
    assert (broker["id"], broker["replicas"], broker["error"]) == (1, 1, "h:70000 is no address of a server")
    assert [each["id"] for each in document["unregistered_brokers"]] == [9]


class NewerMetadata:
    """The metadata of a Kafka that is newer than kjbod, with which broker 1 of :func:`deleting` is registered."""

    def __init__(self, servers: Any, say: Callable[[str], None], security: Any) -> None:
        self._say = say
        end_point = Endpoint(name="PLAINTEXT", host="h", port=70000)
        self._image = MetadataImage()
        self._image.brokers[1] = BrokerRegistration(id=1, epoch=1, incarnation_id=ZERO, end_points=(end_point,))

    def __enter__(self) -> "NewerMetadata":
        self._say("metadata.version 34 is newer than kjbod knows: upgrade kjbod")
        self._say("the metadata have records that kjbod does not know (type 30 version 0): upgrade kjbod")
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self, use: Callable[[Any], Any]) -> Any:
        return use(SimpleNamespace(image=self._image))


def test_what_kjbod_does_not_know_of_the_metadata_is_said_once_though_they_are_read_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_one(*_: object) -> None: ...

    monkeypatch.setattr("kjbod.cli.cluster.LiveImage", NewerMetadata)
    monkeypatch.setattr("kjbod.cli.cluster.asking.require_controller", is_one)

    async def story() -> int:
        async with server(deleting) as node:
            address = f"{node.host}:{node.port}"
            where = ["--bootstrap-server", address, "--bootstrap-controller", address]
            return await asyncio.to_thread(cli.run, ["cluster", "log-dirs", *where])

    asyncio.run(story())
    told = [line for line in capsys.readouterr().err.splitlines() if line.endswith("upgrade kjbod")]
    assert len(told) == 2
    assert len(set(told)) == 2
