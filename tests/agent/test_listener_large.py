"""Large answers of the listener: the event loop, which sends the agent's heartbeats, makes no part of them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kjbod.config import Config
from kjbod.ids import Uuid
from kjbod.metadata.image import TOPIC, image_of
from kjbod.metadata.records import PartitionRecord, Record, TopicRecord
from kjbod.wire import frames
from kjbod.wire.admin_messages import DescribeTopicPartitionsRequest, ListConfigResourcesRequest
from kjbod.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    RequestBody,
    ResponseBody,
)
from kjbod_agent.admin import answers, listener
from kjbod_agent.admin.answer_sizes import AT_ONCE
from kjbod_agent.admin.view import DirectoryView, ReplicaView
from tests.agent.test_listener import FakeAgent, config, told

__all__ = ["config"]

CLIENTS = 95
PARTITIONS = 10_000
PARTITIONS_PER_TOPIC = 10
QUESTIONS: dict[str, RequestBody[Any]] = {
    "all partitions": MetadataRequest(topics=None),
    "a page": DescribeTopicPartitionsRequest(topics=(), response_partition_limit=2_000, cursor=None),
    "configurations": DescribeConfigsRequest(
        resources=tuple(DescribeConfigsRequestResource(resource_type=TOPIC, resource_name=f"t{n}") for n in range(200))
    ),
    "names": ListConfigResourcesRequest(resource_types=(TOPIC,)),
    "topics by name": MetadataRequest(topics=tuple(MetadataRequestTopic(name=f"t{n}") for n in range(200))),
    "directories": DescribeLogDirsRequest(topics=None),
}


def many() -> list[Record]:
    records: list[Record] = []
    for number in range(PARTITIONS // PARTITIONS_PER_TOPIC):
        topic_id = Uuid.of(7, number + 1)
        records.append(TopicRecord(name=f"t{number}", topic_id=topic_id))
        records += [
            PartitionRecord(partition_id=n, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1)
            for n in range(PARTITIONS_PER_TOPIC)
        ]
    return records


def full_directory() -> DirectoryView:
    return DirectoryView(
        path="/d1", directory_id=Uuid.of(1, 1), online=True, error=None, verdict="online", since_ms=None,
        cordoned=False, device="", model=None, serial=None, file_system=None, total_bytes=1, usable_bytes=1,
        replicas=tuple(
            ReplicaView(topic=f"t{n}", partition=0, topic_id=Uuid.of(7, n + 1), name=f"t{n}-0", size=1, lag=0)
            for n in range(PARTITIONS)
        ),
        leaders=0, remembered=False,
    )  # fmt: skip


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that made or encoded an answer, one entry for each time."""
    threads: list[threading.Thread] = []
    encode = frames.encode_response

    def encoded(answer: ResponseBody, version: int, correlation_id: int) -> bytes:
        threads.append(threading.current_thread())
        return encode(answer, version, correlation_id)

    monkeypatch.setattr(listener, "encode_response", encoded)
    for function in ("metadata", "describe_configs", "log_dir"):
        made = getattr(answers, function)

        def noted(*args: Any, made: Callable[..., Any] = made, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return made(*args, **options)

        monkeypatch.setattr(answers, function, noted)
    return threads


@pytest.mark.parametrize("name", QUESTIONS)
def test_many_clients_at_once_get_a_large_answer_that_is_made_once_and_aside(
    config: Callable[..., Config], makers: list[threading.Thread], name: str
) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.image = image_of([*image_records(agent), *many()], offset=10)
        agent.directories_seen = (full_directory(),)
        clients = [await agent.connect() for _ in range(CLIENTS)]
        makers.clear()
        found = await asyncio.gather(*(one.request(QUESTIONS[name], timeout_ms=60_000) for one in clients))
        assert all(answer == found[0] for answer in found)
        assert makers
        assert threading.main_thread() not in makers
        assert len(makers) < CLIENTS // 4  # a few rounds: who asks too late for one is in the next
        await asyncio.gather(*(one.close() for one in clients))

    told(config(), story)


def image_records(agent: FakeAgent) -> list[Record]:
    return [broker.to_record() for broker in agent.image.brokers.values()]


def test_an_answer_about_some_directories_is_encoded_aside_as_well(
    config: Callable[..., Config], makers: list[threading.Thread]
) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.directories_seen = (full_directory(),)
        some = DescribeLogDirsRequest(topics=(DescribeLogDirsRequestTopic(topic="t0", partitions=(0,)),))
        answer = await agent.ask(some)
        assert answer.results[0].log_dir == "/d1"
        assert makers
        assert threading.main_thread() not in makers

    told(config(), story)


def test_what_was_changed_before_the_question_is_in_the_answer(config: Callable[..., Config]) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.image = image_of([*image_records(agent), *many()], offset=10)
        async with await agent.connect() as first, await agent.connect() as second:
            early = asyncio.ensure_future(first.request(MetadataRequest(topics=None), timeout_ms=60_000))
            await asyncio.sleep(0.01)
            agent.image.replay(TopicRecord(name="new", topic_id=Uuid.of(9, 9)), 11)
            agent.image.offset = 11
            late = await second.request(MetadataRequest(topics=None), timeout_ms=60_000)
            assert "new" in {topic.name for topic in late.topics}
            assert len((await early).topics) in (PARTITIONS // PARTITIONS_PER_TOPIC, len(late.topics))

    told(config(), story)


def test_a_question_about_little_is_answered_without_a_copy_of_a_large_cluster(
    config: Callable[..., Config], makers: list[threading.Thread]
) -> None:
    async def story(agent: FakeAgent) -> None:
        agent.image = image_of([*image_records(agent), *many()], offset=10)
        answer = await agent.ask(MetadataRequest(topics=(MetadataRequestTopic(name="t5"),)))
        assert len(answer.topics[0].partitions) == PARTITIONS_PER_TOPIC <= AT_ONCE
        assert makers == [threading.main_thread()]

    told(config(), story)
