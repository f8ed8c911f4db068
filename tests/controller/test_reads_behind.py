"""However many ask for large answers, what brokers report goes before them; and the answers are made once."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.wire import frames
from kjbod.wire.client import Connection
from kjbod.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
    BrokerHeartbeatRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    RequestBody,
    ResponseBody,
)
from kjbod_controller_stub import server as serving_module
from kjbod_controller_stub.costs import LARGE_PARTITIONS
from kjbod_controller_stub.limits import IN_FLIGHT_MAX
from kjbod_controller_stub.server import ControllerServer
from tests.controller.conftest import Serving, Site, until
from tests.controller.test_server import connect, create, join
from tests.controller.test_turns import Gate
from tests.controller.world import directories

LARGE = LARGE_PARTITIONS + 100
READERS = 6
READS: dict[str, RequestBody[Any]] = {
    "all partitions": MetadataRequest(topics=None),
    "all by name": MetadataRequest(topics=(MetadataRequestTopic(name="large"),)),
    "reassignments": ListPartitionReassignmentsRequest(topics=None),
    "configurations": DescribeConfigsRequest(
        resources=tuple(DescribeConfigsRequestResource(resource_type=2, resource_name=f"t{n}") for n in range(300))
    ),
    "a question of many bytes": MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=f"a-topic-that-does-not-exist-{n}") for n in range(4_000))
    ),
}


@pytest.fixture(autouse=True)
def quiet(site: Site) -> None:
    site.configure(metadata_max_idle_interval_ms="600000")


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


async def lay(server: ControllerServer, connection: Connection) -> tuple[int, Uuid]:
    """Broker 1 with a large topic in its first directory; the broker's epoch and the topic's id."""
    epoch = await join(connection, 1)
    answer = await connection.request(create("large", LARGE), timeout_ms=60_000)
    await connection.request(assignment(epoch, answer.topics[0].topic_id, range(LARGE)), timeout_ms=60_000)
    return epoch, answer.topics[0].topic_id


def assignment(epoch: int, topic: Uuid, partitions: range, directory: int = 0) -> AssignReplicasToDirsRequest:
    return AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=epoch,
        directories=(
            AssignReplicasToDirsRequestDirectory(
                id_=directories(1)[directory],
                topics=(
                    AssignReplicasToDirsRequestTopic(
                        topic_id=topic,
                        partitions=tuple(AssignReplicasToDirsRequestPartition(partition_index=n) for n in partitions),
                    ),
                ),
            ),
        ),
    )


def alteration(epoch: int, topic: Uuid) -> AlterPartitionRequest:
    partition = AlterPartitionRequestPartition(
        partition_index=0,
        leader_epoch=0,
        new_isr_with_epochs=(AlterPartitionRequestBrokerState(broker_id=1, broker_epoch=epoch),),
        leader_recovery_state=0,
        partition_epoch=1,
    )
    topics = (AlterPartitionRequestTopic(topic_id=topic, partitions=(partition,)),)
    return AlterPartitionRequest(broker_id=1, broker_epoch=epoch, topics=topics)


async def test_what_brokers_report_is_recorded_while_large_reads_wait(site: Site, serving: Serving, gate: Gate) -> None:
    """As many reads as may be on their way, on connections of their own, and the thread that makes them stands still:
    no heartbeat with news, registration, assignment or AlterPartition waits for any of them, whatever its size."""
    async with serving(site) as server, await connect(server.port) as broker:
        epoch, topic = await lay(server, broker)
        server._readings.thread.submit(gate.pass_through)
        readers = [await connect(server.port) for _ in range(READERS)]
        reading = [
            asyncio.ensure_future(reader.request(message, timeout_ms=60_000))
            for reader in readers
            for message in list(READS.values())[-IN_FLIGHT_MAX:]
        ]
        await until(lambda: server._readings.asked + server.servers[0].queued.used_bytes)
        small = assignment(epoch, topic, range(10), 1)
        large = assignment(
            epoch, topic, range(LARGE, LARGE + 6_000), 1
        )  # is read in a thread; what it names does not exist
        messages: tuple[RequestBody[Any], ...] = (small, large, alteration(epoch, topic), large, small)
        for message in messages:
            answer = await broker.request(message, timeout_ms=60_000)
            assert answer.error_code == 0
        failed = BrokerHeartbeatRequest(
            broker_id=1,
            broker_epoch=epoch,
            current_metadata_offset=2**60,
            offline_log_dirs=directories(1)[1:2],
        )
        assert (await broker.request(failed, timeout_ms=60_000)).error_code == 0
        assert directories(1)[1] not in server.controller.image.brokers[1].log_dirs
        async with await connect(server.port) as other:
            await join(other, 2)
        assert not any(task.done() for task in reading)
        gate.open()
        await asyncio.gather(*reading)
        await asyncio.gather(*(reader.close() for reader in readers))


@pytest.mark.parametrize("name", READS)
async def test_a_large_answer_is_made_once_for_all_who_wait_and_outside_the_loop(
    site: Site, serving: Serving, gate: Gate, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made: list[ResponseBody] = []
    encode = frames.encode_response

    def counted(answer: ResponseBody, version: int, correlation_id: int) -> bytes:
        made.append(answer)
        return encode(answer, version, correlation_id)

    async with serving(site) as server, await connect(server.port) as broker:
        await lay(server, broker)
        server._readings.thread.submit(gate.pass_through)
        monkeypatch.setattr(serving_module, "encode_response", counted)
        readers = [await connect(server.port) for _ in range(READERS)]
        reading = [
            asyncio.ensure_future(reader.request(READS[name], timeout_ms=60_000))
            for reader in readers
            for _ in range(2 if "bytes" not in name else 1)
        ]
        if "bytes" not in name:  # its requests are read in that thread, too
            await until(lambda: server._readings.asked == len(reading))
        gate.open()
        answers = await asyncio.gather(*reading)
        assert all(answer == answers[0] for answer in answers)
        assert 1 <= len(made) <= (2 if "bytes" not in name else READERS)
        await asyncio.gather(*(reader.close() for reader in readers))


async def test_who_asks_after_an_answered_change_sees_it_however_many_wait(
    site: Site, serving: Serving, gate: Gate
) -> None:
    async with serving(site) as server, await connect(server.port) as admin, await connect(server.port) as reader:
        await lay(server, admin)
        server._readings.thread.submit(gate.pass_through)
        first = asyncio.ensure_future(reader.request(MetadataRequest(topics=None), timeout_ms=60_000))
        await until(lambda: server._readings.asked == 1 and not server._readings._waiting)
        await admin.request(create("new", 1), timeout_ms=60_000)
        later = asyncio.ensure_future(reader.request(MetadataRequest(topics=None), timeout_ms=60_000))
        await until(lambda: server._readings.asked == 2)
        gate.open()
        assert [topic.name for topic in (await first).topics] in (["large"], ["large", "new"])
        assert [topic.name for topic in (await later).topics] == ["large", "new"]


async def test_small_reads_are_answered_while_a_large_one_is_made(site: Site, serving: Serving, gate: Gate) -> None:
    async with serving(site) as server, await connect(server.port) as admin, await connect(server.port) as reader:
        await lay(server, admin)
        server._readings.thread.submit(gate.pass_through)
        large = asyncio.ensure_future(reader.request(MetadataRequest(topics=None), timeout_ms=60_000))
        await until(lambda: server._readings.asked == 1)
        messages: tuple[RequestBody[Any], ...] = (DescribeClusterRequest(), DescribeConfigsRequest(resources=()))
        for message in messages:
            await admin.request(message, timeout_ms=60_000)
        assert not large.done()
        gate.open()
        await large


async def test_large_reads_that_wait_never_take_the_places_of_what_brokers_report(
    site: Site, serving: Serving, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(site) as server, await connect(server.port) as broker:
        epoch, topic = await lay(server, broker)
        monkeypatch.setattr(serving_module, "WAITING_ANSWERS_MAX", 2)
        server._readings.thread.submit(gate.pass_through)
        readers = [await connect(server.port) for _ in range(READERS)]
        reading = [
            asyncio.ensure_future(one.request(MetadataRequest(topics=None), timeout_ms=60_000)) for one in readers
        ]
        await until(lambda: server._readings.asked == READERS)
        assert (await broker.request(assignment(epoch, topic, range(5), 1), timeout_ms=60_000)).error_code == 0
        gate.open()
        await asyncio.gather(*reading)
        await asyncio.gather(*(one.close() for one in readers))
