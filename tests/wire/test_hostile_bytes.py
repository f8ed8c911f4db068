"""What a peer may send to hurt: it costs one clean error, and no more memory than it sent itself."""

import contextlib
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kjbod.errors import LocalProtocolError, UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.wire.codec import MalformedMessageError, put_uvarint
from kjbod.wire.frames import (
    FrameSplitter,
    UnsupportedRequestError,
    decode_request,
    decode_response,
    encode_request,
    request_codec,
    response_codec,
)
from kjbod.wire.messages import (
    API,
    ApiKey,
    ApiVersionsRequest,
    BrokerHeartbeatRequest,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    MetadataRequest,
    UnregisterBrokerRequest,
)
from tests.depth import examples
from tests.wire.strategies import CASES, messages

ID = Uuid(bytes(range(16)))


def uvarint(value: int) -> bytes:
    out = bytearray()
    put_uvarint(out, value)
    return bytes(out)


def peak_bytes(codec: Any, body: bytes) -> int:
    """Most memory that an attempt to decode ``body`` holds."""
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError):
            codec.decode_exact(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@settings(max_examples=examples(600), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_message_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(CASES))
    raw = bytearray(case.codec.encode(data.draw(messages(case))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        damage = data.draw(st.sampled_from(["cut", "flip", "insert", "huge", "remove"]))
        if damage == "cut":
            del raw[at:]
        elif damage == "flip" and at < len(raw):
            raw[at] ^= data.draw(st.integers(1, 255))
        elif damage == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=8))
        elif damage == "huge":
            raw[at:at] = b"\xff\xff\xff\xff\x0f"
        else:
            del raw[at : at + data.draw(st.integers(1, 8))]
    with contextlib.suppress(MalformedMessageError):
        case.codec.decode_exact(bytes(raw))


@settings(max_examples=examples(500))
@given(st.binary(max_size=200), st.sampled_from(CASES))
def test_garbage_behind_a_valid_header_is_read_or_refused(garbage: bytes, case: Any) -> None:
    with contextlib.suppress(MalformedMessageError):
        decode_request(struct.pack(">hhi", case.key, case.version, 7) + garbage)
    with contextlib.suppress(MalformedMessageError):
        decode_response(struct.pack(">i", 7) + garbage, case.key, case.version)


def test_seventeen_bytes_that_claim_four_billion_directories_are_refused_without_allocating() -> None:
    body = struct.pack(">iq", 1, 1) + b"\xff\xff\xff\xff\x0f"
    assert len(body) == 17
    assert peak_bytes(request_codec(ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0), body) < 16_384


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_count_or_length_makes_a_decoder_allocate(case: Any) -> None:
    with contextlib.suppress(MalformedMessageError):
        case.codec.decode_exact(b"")  # compiles it, where no test before has
    for fill in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x07"):
        body = fill * 20
        tracemalloc.start()
        try:
            case.codec.decode_exact(body)
        except MalformedMessageError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 65_536


class CountingBytes(bytes):
    """Bytes that count how much of them is copied."""

    copied = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, slice):
            CountingBytes.copied += len(found)
        return found


def test_many_tagged_fields_do_not_copy_the_frame_many_times() -> None:
    partition = FetchRequestPartition(partition=1, replica_directory_id=ID)
    message = FetchRequest(topics=(FetchRequestTopic(topic_id=ID, partitions=(partition,) * 2_000),))
    raw = CountingBytes(request_codec(ApiKey.FETCH, 17).encode(message))
    CountingBytes.copied = 0
    assert request_codec(ApiKey.FETCH, 17).decode_exact(raw) == message
    assert CountingBytes.copied <= len(raw)


def test_unknown_tagged_fields_are_skipped() -> None:
    codec = request_codec(ApiKey.BROKER_HEARTBEAT, 1)
    body = codec.encode(BrokerHeartbeatRequest(broker_id=1, broker_epoch=5, offline_log_dirs=(ID,)))
    head, tags = body[: 4 + 8 + 8 + 1 + 1], body[4 + 8 + 8 + 1 + 1 :]
    assert tags[0] == 1
    newer = head + b"\x03" + tags[1:] + uvarint(7) + uvarint(3) + b"new" + uvarint(9999) + uvarint(0)
    assert codec.decode_exact(newer) == codec.decode_exact(body)


@pytest.mark.parametrize(
    "tags",
    [b"\x02\x00\x01\x01\x00\x01\x01", b"\x01\x00\x05\x01", b"\x01\x00\x02\x01\x00", b"\x7f", b"\x01\x09\xff\x7f"],
    ids=["same tag twice", "size beyond the frame", "size is not the value's", "count beyond the frame", "long size"],
)
def test_a_broken_tag_section_is_refused(tags: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        request_codec(ApiKey.BROKER_HEARTBEAT, 1).decode_exact(bytes(22) + tags)


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="leaves 1 bytes over"):
        request_codec(ApiKey.UNREGISTER_BROKER, 0).decode_exact(bytes(6))


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedMessageError, match="UTF-8"):
        response_codec(ApiKey.UNREGISTER_BROKER, 0).decode_exact(bytes(6) + b"\x03\xff\xfe" + b"\x00")


# ---------------------------------------------------------------- our own mistakes


def test_a_value_that_the_version_cannot_carry_is_not_dropped_silently() -> None:
    with pytest.raises(UnsupportedVersionError, match="offline_log_dirs"):
        request_codec(ApiKey.BROKER_HEARTBEAT, 0).encode(BrokerHeartbeatRequest(broker_id=1, offline_log_dirs=(ID,)))


def test_null_where_the_version_has_no_null_is_not_written() -> None:
    with pytest.raises(UnsupportedVersionError, match="topics cannot be null"):
        request_codec(ApiKey.METADATA, 0).encode(MetadataRequest(topics=None))


def test_a_number_that_does_not_fit_is_an_error_of_ours() -> None:
    with pytest.raises(LocalProtocolError):
        request_codec(ApiKey.UNREGISTER_BROKER, 0).encode(UnregisterBrokerRequest(broker_id=2**31))


# ---------------------------------------------------------------- frames


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 20), min_size=1, max_size=30))
def test_frames_come_whole_however_the_stream_is_cut(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
    splitter, at = FrameSplitter(), 0
    got: list[bytes] = []
    while at < len(stream):
        step = cuts[at % len(cuts)]
        got += splitter.feed(stream[at : at + step])
        at += step
    assert got == frames
    assert splitter.pending_bytes == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_frame_of_impossible_length_is_refused_at_its_first_four_bytes(length: int) -> None:
    feed = FrameSplitter(1000).feed(struct.pack(">i", 2) + b"ok" + struct.pack(">i", length))
    assert next(feed) == b"ok"
    with pytest.raises(MalformedMessageError, match=f"a frame of {length} bytes"):
        next(feed)


@pytest.mark.parametrize(
    ("start", "guess"), [(b"\x16\x03\x01\x02\x00\x01", "TLS"), (b"GET / HTTP/1.1\r\n", "HTTP")], ids=["TLS", "HTTP"]
)
def test_a_client_of_another_protocol_is_named(start: bytes, guess: str) -> None:
    with pytest.raises(MalformedMessageError, match=f"looks like {guess}"):
        list(FrameSplitter().feed(start))


@pytest.mark.parametrize(
    ("key", "version"), [(999, 0), (-1, 0), (63, 3), (63, -1), (1, 3), (0, 9)], ids=lambda value: str(value)
)
def test_an_api_or_version_that_is_not_served_is_named_with_its_correlation_id(key: int, version: int) -> None:
    with pytest.raises(UnsupportedRequestError) as caught:
        decode_request(struct.pack(">hhi", key, version, 77))
    assert (caught.value.api_key, caught.value.version, caught.value.correlation_id) == (key, version, 77)


def test_a_server_serves_no_more_than_it_offers() -> None:
    frame = encode_request(ApiVersionsRequest(), 0, 1, None)[4:]
    assert decode_request(frame, {ApiKey.API_VERSIONS: (0, 4)}).version == 0
    with pytest.raises(UnsupportedRequestError):
        decode_request(frame, {ApiKey.API_VERSIONS: (3, 4)})
    with pytest.raises(UnsupportedRequestError):
        decode_request(frame, {ApiKey.FETCH: (4, 18)})


def test_every_api_has_both_codecs_in_every_version() -> None:
    assert len(CASES) == 2 * sum(spec.max_version - spec.min_version + 1 for spec in API.values())
    for case in CASES:
        assert case.codec.schema.name == case.codec.cls.__name__
