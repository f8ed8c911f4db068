"""Controller mutation quotas: ours, under Kafka's rules, beside a real controller of 4.3.1.

The rates are so low that a wait is a matter of minutes: the seconds between the two controllers do not show in it, and
how long it is tells which limit was applied.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.wire.admin_messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntity,
    AlterClientQuotasRequestEntry,
    AlterClientQuotasRequestOp,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_response, encode_request
from kjbod.wire.messages import (
    BrokerHeartbeatRequest,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    EnvelopeRequest,
    RequestBody,
)
from kjbod.wire.principals import ForwardedPrincipal, encode_principal
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from tests.controller.pair import Pair, Side
from tests.controller.random_requests import register
from tests.controller.test_differential import CLUSTER_ID, both

LOCALHOST = bytes((127, 0, 0, 1))
TOLERANCE_MS = 30_000
BROKER = 1
PROBE_RATE = 0.0005
Limit = tuple[str | None, str | None]
"""User and client id; None is the default, the empty text: not a part of it."""


def create(*topics: tuple[str, int], validate_only: bool = False) -> CreateTopicsRequest:
    wanted = (CreateTopicsRequestTopic(name=name, num_partitions=count, replication_factor=1) for name, count in topics)
    return CreateTopicsRequest(topics=tuple(wanted), validate_only=validate_only)


def delete(*names: str) -> DeleteTopicsRequest:
    topics = tuple(DeleteTopicsRequestTopic(name=name) for name in names)
    return DeleteTopicsRequest(topics=topics, timeout_ms=30_000)


def delete_old(*names: str) -> DeleteTopicsRequest:
    """Before version 6."""
    return DeleteTopicsRequest(topic_names=names, timeout_ms=30_000)


def grow(name: str, count: int, *, validate_only: bool = False) -> CreatePartitionsRequest:
    topic = CreatePartitionsRequestTopic(name=name, count=count, assignments=None)
    return CreatePartitionsRequest(topics=(topic,), timeout_ms=30_000, validate_only=validate_only)


def limits(rates: dict[Limit, float | None]) -> AlterClientQuotasRequest:
    """Set these, or remove them."""

    def parts(limit: Limit) -> Iterator[AlterClientQuotasRequestEntity]:
        for kind, name in zip(("user", "client-id"), limit, strict=True):
            if name != "":
                yield AlterClientQuotasRequestEntity(entity_type=kind, entity_name=name)

    return AlterClientQuotasRequest(
        entries=tuple(
            AlterClientQuotasRequestEntry(
                entity=tuple(parts(limit)),
                ops=(
                    AlterClientQuotasRequestOp(
                        key="controller_mutation_rate", value=0.0 if rate is None else rate, remove=rate is None
                    ),
                ),
            )
            for limit, rate in rates.items()
        )
    )


async def forwarded(side: Side, request: RequestBody[Any], version: int, user: str, client_id: str) -> Any:
    """The answer to a client behind a broker."""
    envelope = EnvelopeRequest(
        request_data=encode_request(request, version, 5, client_id)[4:],
        request_principal=encode_principal(ForwardedPrincipal.of(f"User:{user}")),
        client_host_address=LOCALHOST,
    )
    answer = await side.connection.request(envelope, timeout_ms=30_000)
    assert answer.error_code == 0
    assert answer.response_data is not None
    return decode_response(answer.response_data, request.API_KEY, version).message


async def set_limits(side: Side, step: int, rates: dict[Limit, float | None]) -> None:
    """Set them, and wait until they are applied: a real controller does so some time after its answer."""
    probe = f"probe-{step}"
    answer = await side.connection.request(limits({**rates, (probe, ""): PROBE_RATE}), timeout_ms=30_000)
    assert not any(entry.error_code for entry in answer.entries)
    while True:
        told = await forwarded(side, create(("probe", 1), validate_only=True), 7, probe, "probe")
        if told.throttle_time_ms > 1_000_000:
            return
        await asyncio.sleep(0.01)


def plain(answer: Any) -> list[tuple[Any, ...]]:
    """What is said of each topic; ids are random, and answers to a deletion are shuffled."""
    topics = getattr(answer, "topics", None) or getattr(answer, "results", None) or answer.responses
    return sorted((topic.name, topic.error_code, topic.error_message) for topic in topics)


STORY: tuple[tuple[str, RequestBody[Any], int], ...] = (
    ("the first finds the bucket full and overdraws it", create(("a", 3), ("b", 2)), 7),
    ("what could not be created costs nothing", create(("a", 100), ("d", 0)), 7),
    ("nor does a name that is there twice", create(("e", 1), ("e", 1)), 7),
    ("an old client is not refused", create(("b", 2), ("c", 1)), 5),
    ("validation counts too", create(("d", 4), validate_only=True), 7),
    ("and overdraws", create(("d", 4), validate_only=True), 5),
    ("partitions are refused", grow("a", 5), 3),
    ("but not to an old client", grow("a", 5), 2),
    ("nor when validated", grow("a", 7, validate_only=True), 2),
    ("what is wrong is said first", grow("a", 1), 3),
    ("deletion is refused", delete("a", "b"), 6),
    ("and by names", delete_old("c"), 5),
    ("but not to an old client", delete_old("a"), 4),
    ("what is not there is said", delete("a"), 6),
    ("the rest", delete_old("b", "c"), 4),
)
ORDER: tuple[Limit, ...] = (
    ("alice", "x"),
    ("alice", None),
    ("alice", ""),
    (None, "x"),
    (None, None),
    (None, ""),
    ("", "x"),
    ("", None),
)
CALLERS = (("alice", "x"), ("alice", "y"), ("alice", ""), ("bob", "x"), ("bob", "y"), ("bob", ""))


@pytest.fixture
async def pair(tmp_path: Path, processes: Processes, newest_kit: KafkaKit) -> AsyncIterator[Pair]:
    async with both(newest_kit, processes, tmp_path / "quotas") as pair:
        for side in (pair.real, pair.ours):
            joined = await side.connection.request(register(BROKER, CLUSTER_ID)(side.view), timeout_ms=30_000)
            beat = BrokerHeartbeatRequest(
                broker_id=BROKER, broker_epoch=joined.broker_epoch, current_metadata_offset=joined.broker_epoch
            )
            while True:
                if not (await side.connection.request(beat, timeout_ms=30_000)).is_fenced:
                    break
                await asyncio.sleep(0.01)
        yield pair


@pytest.mark.usefixtures("newest_kit")
async def test_clients_are_slowed_down_as_by_kafka(pair: Pair) -> None:
    sides = (pair.real, pair.ours)
    for side in sides:
        await set_limits(side, 0, {("alice", ""): 0.001})
    throttled = 0
    for name, request, version in STORY:
        real, ours = [await forwarded(side, request, version, "alice", "x") for side in sides]
        assert plain(ours) == plain(real), name
        assert abs(ours.throttle_time_ms - real.throttle_time_ms) < TOLERANCE_MS, name
        throttled += any(code == ErrorCode.THROTTLING_QUOTA_EXCEEDED for _, code, _ in plain(real))
    assert throttled == 5

    # All limits there can be, and one after the other is taken away: the wait tells which rate was applied.
    for side in sides:
        await set_limits(side, 1, {limit: 0.002 * (number + 1) for number, limit in enumerate(ORDER)})
    waits = set()
    for step, limit in enumerate(ORDER):
        for user, client_id in CALLERS:
            request = create((f"{user}-{client_id}", 10), validate_only=True)
            real, ours = [await forwarded(side, request, 5, user, client_id) for side in sides]
            assert abs(ours.throttle_time_ms - real.throttle_time_ms) < TOLERANCE_MS, (step, user, client_id)
            waits.add(round(real.throttle_time_ms, -5))
        for side in sides:
            await set_limits(side, 2 + step, {limit: None})
    assert len(waits) > len(ORDER)

    # What does not fit into an answer.
    for side in sides:
        await set_limits(side, 99, {("tiny", ""): 1e-9})
    for version in (7, 7, 5):
        request = create(("t", 5), validate_only=True)
        real, ours = [await forwarded(side, request, version, "tiny", "x") for side in sides]
        assert abs(ours.throttle_time_ms - real.throttle_time_ms) < TOLERANCE_MS
    assert real.throttle_time_ms
