"""What brokers forward for their clients: whose request it is, what may be forwarded, and what comes back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kjbod.ids import ZERO
from kjbod.metadata.acls import STANDARD_AUTHORIZER
from kjbod.wire.admin_messages import (
    AllocateProducerIdsRequest,
    ElectLeadersResponse,
)
from kjbod.wire.client import Connection
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_request, decode_response, encode_request
from kjbod.wire.messages import (
    ApiKey,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeQuorumResponse,
    EnvelopeRequest,
    EnvelopeResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    RequestBody,
)
from kjbod.wire.principals import (
    ForwardedPrincipal,
    decode_host,
    decode_principal,
    encode_host,
    encode_principal,
    host_of_acls,
)
from kjbod_controller_stub.access.envelope import FORWARDABLE
from kjbod_controller_stub.limits import FRAME_BYTES_MAX_OF, SERVED
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect, create, join

FRAMES = Path(__file__).parents[1] / "data" / "frames.jsonl"
LIST_NONE = ListPartitionReassignmentsRequest(timeout_ms=1_000, topics=None)
ALICE = encode_principal(ForwardedPrincipal(principal_type="User", name="alice"))
LOCALHOST = bytes((127, 0, 0, 1))


def inner(request: RequestBody[Any], version: int, correlation_id: int = 8) -> bytes:
    return encode_request(request, version, correlation_id, "adminclient-1")[4:]


def envelope(data: bytes, principal: bytes | None = ALICE, host: bytes = LOCALHOST) -> EnvelopeRequest:
    return EnvelopeRequest(request_data=data, request_principal=principal, client_host_address=host)


async def forward(connection: Connection, request: EnvelopeRequest) -> EnvelopeResponse:
    return await connection.request(request, timeout_ms=60_000)


def captured() -> Iterator[tuple[int, EnvelopeRequest, bytes]]:
    """The envelopes of real brokers, by pair, and the inner answers that a real controller gave."""
    frames: dict[int, dict[str, bytes]] = {}
    for line in FRAMES.read_text().splitlines():
        entry = json.loads(line)
        if entry["key"] == ApiKey.ENVELOPE:
            frames.setdefault(entry["id"], {})[entry["direction"]] = bytes.fromhex(entry["hex"])
    for pair, both in frames.items():
        request = decode_request(both["request"]).message
        answer = decode_response(both["response"], ApiKey.ENVELOPE, 0).message
        assert isinstance(request, EnvelopeRequest)
        assert isinstance(answer, EnvelopeResponse)
        yield pair, request, answer.response_data or b""


def test_a_principal_is_read_and_written_as_kafka_does() -> None:
    for _, request, _ in captured():
        principal = decode_principal(request.request_principal)
        assert str(principal) == "User:ANONYMOUS"
        assert encode_principal(principal) == request.request_principal
    assert ForwardedPrincipal.of("User:CN=a:b") == ForwardedPrincipal(principal_type="User", name="CN=a:b")


@pytest.mark.parametrize(
    "data", [None, b"", b"\0", b"\0\1" + ALICE[2:], ALICE[:-1], ALICE + b"\0", b"\0\0\xff\xff\xff\xff\x0f"]
)
def test_what_is_no_principal_is_refused(data: bytes | None) -> None:
    with pytest.raises(MalformedMessageError):
        decode_principal(data)


@pytest.mark.parametrize(
    ("text", "kafkas"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::a%eth0", "fe80:0:0:0:0:0:0:a"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
    ],
)
def test_a_host_is_what_kafkas_acls_say(text: str, kafkas: str) -> None:
    assert host_of_acls(text) == decode_host(encode_host(text)) == kafkas
    assert host_of_acls("somewhere") == "somewhere"


async def test_a_client_behind_a_broker_gets_the_answer_under_its_own_correlation_id(
    site: Site, serving: Serving
) -> None:
    async with serving(site) as server, await connect(server.port) as broker:
        answer = await forward(broker, envelope(inner(LIST_NONE, 0)))
        assert answer.error_code == 0
        assert answer.response_data == bytes.fromhex("0000000800000000000000000100")
        made = await forward(broker, envelope(inner(create("t"), 7, 9)))
        told = decode_response(made.response_data or b"", ApiKey.CREATE_TOPICS, 7)
        assert told.correlation_id == 9
        assert isinstance(told.message, CreateTopicsResponse)
        assert told.message.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR  # there is no broker


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        pytest.param(envelope(inner(LIST_NONE, 0), None), 97, id="no principal"),
        pytest.param(envelope(inner(LIST_NONE, 0), b"\0\0\1"), 97, id="half a principal"),
        pytest.param(envelope(inner(LIST_NONE, 0), host=b"\1\2\3"), 42, id="an address of three bytes"),
        pytest.param(envelope(inner(envelope(inner(LIST_NONE, 0)), 0)), 42, id="an envelope in an envelope"),
        pytest.param(envelope(b"\0\x3f" + bytes(30)), 42, id="a heartbeat"),
        pytest.param(envelope(b"\0\0" + bytes(30)), 42, id="a produce request"),
        pytest.param(envelope(b"\x03\xe7" + bytes(30)), 35, id="an unknown API"),
        pytest.param(envelope(b"\0\x2e\0\x63" + bytes(30)), 35, id="an unknown version"),
        pytest.param(envelope(inner(LIST_NONE, 0)[:-1]), 35, id="half a request"),
        pytest.param(envelope(inner(LIST_NONE, 0) + b"\0"), 35, id="more than a request"),
        pytest.param(envelope(b""), 35, id="nothing"),
        pytest.param(
            envelope(inner(LIST_NONE, 0) + bytes(FRAME_BYTES_MAX_OF[ApiKey.LIST_PARTITION_REASSIGNMENTS])),
            35,
            id="larger than the same request alone",
        ),
    ],
)
async def test_a_bad_envelope_gets_kafkas_error_and_the_connection_goes_on(
    site: Site, serving: Serving, request_: EnvelopeRequest, code: int
) -> None:
    async with serving(site) as server, await connect(server.port) as broker:
        assert await forward(broker, request_) == EnvelopeResponse(error_code=code)
        assert (await forward(broker, envelope(inner(LIST_NONE, 0)))).error_code == 0


async def test_who_may_not_act_for_the_cluster_may_not_forward_and_a_client_is_judged_by_its_own_name(
    site: Site, serving: Serving
) -> None:
    site.configure(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:alice")
    async with serving(site) as server, await connect(server.port) as broker:
        assert await forward(broker, envelope(inner(LIST_NONE, 0))) == EnvelopeResponse(error_code=31)
    site.configure(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS;User:alice")
    async with serving(site) as server, await connect(server.port) as broker:
        good = await forward(broker, envelope(inner(LIST_NONE, 0)))
        bob = encode_principal(ForwardedPrincipal.of("User:bob"))
        bad = await forward(broker, envelope(inner(LIST_NONE, 0), bob))
    codes = []
    for answer in (good, bad):
        assert answer.error_code == 0
        told = decode_response(answer.response_data or b"", ApiKey.LIST_PARTITION_REASSIGNMENTS, 0).message
        assert isinstance(told, ListPartitionReassignmentsResponse)
        codes.append(told.error_code)
    assert codes == [0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def test_all_that_may_be_forwarded_is_served() -> None:
    assert not FORWARDABLE - set(SERVED)


async def test_a_stranger_gets_no_producer_ids(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as broker:
        answer = await broker.request(AllocateProducerIdsRequest(broker_id=1, broker_epoch=5), timeout_ms=60_000)
        assert (answer.error_code, answer.producer_id_len) == (ErrorCode.STALE_BROKER_EPOCH, 0)


SINCE_4_4 = {
    "errors.deadletterqueue.group.enable",
    "max.decompressed.message.bytes",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
}
"""Keys of topics that the captured answers, of 4.3.1, do not have."""


def blank(frame: bytes, key: ApiKey, version: int) -> Any:
    """An answer without what differs from cluster to cluster: topic ids, offsets, times and addresses."""
    message: Any = decode_response(frame, key, version).message
    if isinstance(message, DescribeQuorumResponse):
        (topic,) = message.topics
        (partition,) = topic.partitions
        voters = [voter.replica_id for voter in partition.current_voters]
        return message.error_message, partition.error_message, partition.leader_id, partition.leader_epoch, voters
    if isinstance(message, CreateTopicsResponse):
        return [
            structs.replace(
                topic, topic_id=ZERO, configs=tuple(one for one in topic.configs or () if one.name not in SINCE_4_4)
            )
            for topic in message.topics
        ]
    assert isinstance(message, DeleteTopicsResponse)
    return [structs.replace(topic, topic_id=ZERO) for topic in message.responses]


async def test_what_real_brokers_forward_gets_a_real_controllers_answers(site: Site, serving: Serving) -> None:
    site.configure(broker_session_timeout_ms="600000", kjbod_controller_rules="kafka")
    differs = {ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.DESCRIBE_QUORUM}
    pairs = {pair: (request, real) for pair, request, real in captured()}
    assert set(pairs) == set(range(37, 50))
    async with serving(site) as server, await connect(server.port) as broker:
        for broker_id in (1, 2, 3):
            await join(broker, broker_id)
        for name in ("__consumer_offsets", "__transaction_state"):
            await broker.request(create(name), timeout_ms=60_000)
        for pair in (37, 43, *(pair for pair in pairs if pair not in (37, 43))):  # before a leader is not preferred
            request, real = pairs[pair]
            if pair == 46:
                await broker.request(create("gone"), timeout_ms=60_000)
            answer = await forward(broker, request)
            assert answer.error_code == 0
            ours = answer.response_data or b""
            inner_ = decode_request(request.request_data)
            if inner_.api_key in differs:
                assert blank(ours, inner_.api_key, inner_.version) == blank(real, inner_.api_key, inner_.version), pair
            elif pair == 43:
                assert _elections(ours) == _elections(real)  # topics in the order of a hash
            else:
                assert ours == real, pair


def _elections(frame: bytes) -> dict[str, Any]:
    message = decode_response(frame, ApiKey.ELECT_LEADERS, 2).message
    assert isinstance(message, ElectLeadersResponse)
    return {each.topic: each.partition_result for each in message.replica_election_results}
