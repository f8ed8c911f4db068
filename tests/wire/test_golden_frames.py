"""Every frame of a real Kafka 4.3.1 cluster: what we read, written again, is the same bytes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kjbod.wire.admin_messages  # noqa: F401  enters its messages into API
from kjbod.wire.codec import Field, MalformedMessageError, Schema, compile_codec
from kjbod.wire.frames import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_header_codec,
    response_codec,
    response_header_codec,
)
from kjbod.wire.messages import (
    API,
    ApiKey,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartition,
    FetchSnapshotResponseTopic,
    LeaderIdAndEpoch,
    MetadataRequest,
)
from scripts import wire_schemas

FRAMES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data" / "frames.jsonl").read_text("utf-8").splitlines()
]
OURS = [f for f in FRAMES if f["key"] in API]
FOREIGN = [f for f in FRAMES if f["key"] not in API]
LENGTH_BYTES = 4


def named(frame: dict[str, Any]) -> str:
    return f"{frame['id']}-{frame['api']}-v{frame['version']}-{frame['direction']}"


def test_the_capture_is_complete() -> None:
    assert len(FRAMES) == 130
    assert {f["api"] for f in FOREIGN} == {
        "FindCoordinator", "InitProducerId", "Produce",
    }  # fmt: skip


@pytest.mark.parametrize("frame", OURS, ids=named)
def test_real_frames_are_read_and_written_byte_for_byte(frame: dict[str, Any]) -> None:
    raw = bytes.fromhex(frame["hex"])
    if frame["direction"] == "request":
        request = decode_request(raw)
        assert (request.api_key, request.version) == (frame["key"], frame["version"])
        assert request.client_id == frame["client"]
        again = encode_request(request.message, request.version, request.correlation_id, request.client_id)
    else:
        response = decode_response(raw, ApiKey(frame["key"]), frame["version"])
        again = encode_response(response.message, frame["version"], response.correlation_id)
    assert again[LENGTH_BYTES:].hex() == raw.hex()


@pytest.mark.parametrize("frame", FOREIGN, ids=named)
def test_real_frames_of_apis_without_a_class_fit_their_schema(frame: dict[str, Any]) -> None:
    raw = bytes.fromhex(frame["hex"])
    schema = wire_schemas.schema_of(frame["key"], frame["version"], frame["direction"])
    if frame["direction"] == "request":
        header, at = request_header_codec(2 if schema.flexible else 1).decode(raw)
        assert isinstance(header, RequestHeader)
    else:
        _, at = response_header_codec(1 if schema.flexible else 0).decode(raw)
    codec = compile_codec(schema, generic_class(schema))
    assert codec.encode(codec.decode_exact(raw, at)).hex() == raw[at:].hex()


def generic_class(schema: Schema) -> type[Any]:
    """A class with just the fields of ``schema``."""
    fields = []
    for field in schema.fields:
        hint: Any = object
        if field.struct is not None:
            inner = generic_class(field.struct)
            hint = tuple[inner, ...] if field.array else inner  # type: ignore[valid-type]
        fields.append((field.name, hint, default_of(field, hint)))
    return msgspec.defstruct(schema.name, fields, kw_only=True, frozen=True)


def default_of(field: Field, hint: Any) -> Any:
    if field.tag is None:
        return None
    return hint() if field.kind == "struct" and not field.array else field.default


def test_an_absent_leader_in_a_snapshot_answer_is_leader_0_in_epoch_0_as_in_kafka() -> None:
    """The schema has no default of -1 there: an unknown leader has to be written out, or a broker would read 0."""
    codec = response_codec(ApiKey.FETCH_SNAPSHOT, 1)
    sizes = {}
    for leader in (LeaderIdAndEpoch(leader_id=0, leader_epoch=0), LeaderIdAndEpoch()):
        partition = FetchSnapshotResponsePartition(current_leader=leader)
        message = FetchSnapshotResponse(topics=(FetchSnapshotResponseTopic(partitions=(partition,)),))
        raw = codec.encode(message)
        sizes[leader.leader_id] = len(raw)
        assert codec.decode_exact(raw) == message
    assert sizes[-1] == sizes[0] + len(b"\x00\x09") + 9


def test_what_librdkafka_leaves_behind_a_request_for_all_topics_is_not_looked_at() -> None:
    """confluent-kafka 2.16.1: four bytes of an array's length where one says null."""
    frame = bytes.fromhex("0003000d00000003000772646b61666b61" + "00" + "00000000" + "010000")
    assert decode_request(frame).message == MetadataRequest(topics=None, allow_auto_topic_creation=False)
    with pytest.raises(MalformedMessageError, match="leaves 3 bytes over"):
        decode_request(bytes.fromhex("003c000200000003000772646b61666b61" + "00" + "00010000" + "000000"))


def test_an_absent_leader_in_a_fetch_answer_is_unknown() -> None:
    codec = response_codec(ApiKey.FETCH, 17)
    bare, named_leader = (
        codec.encode(FetchResponse(responses=(FetchResponseTopic(partitions=(partition,)),)))
        for partition in (
            FetchResponsePartition(partition_index=0),
            FetchResponsePartition(partition_index=0, current_leader=LeaderIdAndEpoch(leader_id=0, leader_epoch=0)),
        )
    )
    assert len(named_leader) > len(bare)
