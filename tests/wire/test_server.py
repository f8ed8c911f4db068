"""The server over real loopback sockets, with clients that behave badly."""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.wire.connection import Features, api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import EncodedResponse, Request, decode_response, encode_request, encode_response
from kjbod.wire.limits import Limits
from kjbod.wire.messages import (
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    FetchRequest,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    ResponseBody,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kjbod.wire.server import LOG_LINES_PER_SECOND, Peer, Server, serve
from tests.wire.conftest import SERVED, Lines, Run, Serve, until

HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1")
BIG = b"x" * 1_000_000


async def answer(request: Request, peer: Peer) -> ResponseBody | None:
    """A controller that knows one broker."""
    match request.message:
        case ApiVersionsRequest():
            return api_versions_response(request, SERVED)
        case BrokerHeartbeatRequest(broker_id=broker_id):
            return BrokerHeartbeatResponse(is_caught_up=True, error_code=0 if broker_id == 1 else 77)
        case UnregisterBrokerRequest():
            return None
        case FetchRequest():
            partition = FetchResponsePartition(partition_index=0, records=BIG)
            return FetchResponse(responses=(FetchResponseTopic(partitions=(partition,)),))
    raise AssertionError(request)


class Wire:
    """A client that sends whatever it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, server: Server) -> "Wire":
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> bytes:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""
        finally:
            await self.close()

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


async def assert_still_serving(server: Server) -> None:
    wire = await Wire.to(server)
    wire.send(encode_request(BrokerHeartbeatRequest(broker_id=1), 1, 5, "me"))
    response = decode_response(await wire.frame(), ApiKey.BROKER_HEARTBEAT, 1)
    assert response.message == BrokerHeartbeatResponse(is_caught_up=True)
    await wire.close()


# ---------------------------------------------------------------- ApiVersions


def test_an_unsupported_api_versions_version_gets_error_35_in_version_0(
    run: Run[Any], start: Serve, log: Lines
) -> None:
    """``real-kafka``: ApiVersions v9 -> error 35 and the one entry (18, 0, 5); the connection stays usable."""

    async def story() -> None:
        async with await start(answer) as server:
            wire = await Wire.to(server)
            wire.send(struct.pack(">ihhih", 18, 18, 9, 42, -1) + b"whatever")  # a body of the future
            assert (await wire.frame()).hex() == "0000002a" + "0023" + "00000001" + "0012" + "0000" + "0005"
            wire.send(encode_request(HELLO, 3, 43, None))
            response = decode_response(await wire.frame(), ApiKey.API_VERSIONS, 3)
            assert response.correlation_id == 43
            await wire.close()

    run(story)
    assert log.lines == []


@pytest.mark.parametrize("version", range(5))
def test_api_versions_is_answered_in_every_version(run: Run[Any], start: Serve, version: int) -> None:
    async def story() -> ApiVersionsResponse:
        async with await start(answer) as server:
            wire = await Wire.to(server)
            wire.send(encode_request(HELLO, version, 1, "me"))
            message = decode_response(await wire.frame(), ApiKey.API_VERSIONS, version).message
            await wire.close()
            assert isinstance(message, ApiVersionsResponse)
            return message

    offered = {(entry.api_key, entry.min_version, entry.max_version) for entry in run(story).api_keys}
    assert offered == {(int(key), low, high) for key, (low, high) in SERVED.items()}


def test_a_software_name_that_is_none_is_an_invalid_request() -> None:
    def ask(name: str, version: int) -> int:
        message = ApiVersionsRequest(client_software_name=name, client_software_version="1")
        request = Request(ApiKey.API_VERSIONS, version, 1, None, message)
        return api_versions_response(request, SERVED).error_code

    assert ask("bad name!", 4) == ErrorCode.INVALID_REQUEST
    assert ask("", 3) == ErrorCode.INVALID_REQUEST
    assert ask("apache-kafka-java", 4) == 0
    assert ask("", 2) == 0


def test_features_with_minimum_zero_are_shown_from_version_4_only() -> None:
    features = Features(supported={"kraft.version": (0, 1), "metadata.version": (7, 30)}, finalized={"x": 3})
    names = {}
    for version in (3, 4):
        answered = api_versions_response(Request(ApiKey.API_VERSIONS, version, 1, None, HELLO), SERVED, features)
        names[version] = [feature.name for feature in answered.supported_features]
        assert [(f.name, f.max_version_level) for f in answered.finalized_features] == [("x", 3)]
    assert names == {3: ["metadata.version"], 4: ["kraft.version", "metadata.version"]}


# ---------------------------------------------------------------- order and pressure


def test_answers_come_in_the_order_of_the_requests(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        gates = [asyncio.Event() for _ in range(6)]
        begun: list[int] = []

        async def slow(request: Request, peer: Peer) -> ResponseBody:
            number = request.correlation_id
            begun.append(number)
            await gates[number].wait()
            if number:
                gates[number - 1].set()  # each is done before the one in front of it
            return BrokerHeartbeatResponse(error_code=number)

        async with await start(slow) as server:
            wire = await Wire.to(server)
            for number in range(6):
                wire.send(encode_request(BrokerHeartbeatRequest(broker_id=1), 1, number, "me"))
            await until(lambda: len(begun) == 6)
            gates[5].set()
            for number in range(6):
                response = decode_response(await wire.frame(), ApiKey.BROKER_HEARTBEAT, 1)
                assert response.correlation_id == number
                assert response.message == BrokerHeartbeatResponse(error_code=number)
            await wire.close()

    run(story)


def test_no_more_requests_are_handled_at_a_time_than_the_limit(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        active, peak, tickets = 0, 0, asyncio.Semaphore(0)

        async def slow(request: Request, peer: Peer) -> ResponseBody:
            nonlocal active, peak
            active += 1
            peak = max(peak, active)
            await tickets.acquire()
            active -= 1
            return BrokerHeartbeatResponse()

        async with await start(slow, max_in_flight=3) as server:
            wire = await Wire.to(server)
            wire.send(b"".join(encode_request(BrokerHeartbeatRequest(broker_id=1), 1, i, "me") for i in range(50)))
            for number in range(50):
                await until(lambda number=number: active == min(3, 50 - number))  # type: ignore[misc]
                tickets.release()
                assert decode_response(await wire.frame(), ApiKey.BROKER_HEARTBEAT, 1).correlation_id == number
            await wire.close()
        assert peak == 3

    run(story)


def test_a_client_that_does_not_read_is_read_from_no_more_and_cut_off(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        handled = 0

        async def counted(request: Request, peer: Peer) -> ResponseBody | None:
            nonlocal handled
            handled += request.api_key is ApiKey.FETCH
            return await answer(request, peer)

        async with await start(counted, max_in_flight=4, stall_timeout_ms=300, linger_timeout_ms=300) as server:
            wire = await Wire.to(server)
            cast("asyncio.Transport", wire.writer.transport).pause_reading()
            wire.send(b"".join(encode_request(FetchRequest(), 12, number, "me") for number in range(500)))
            await until(lambda: log.lines != [])
            assert handled < 100
            await assert_still_serving(server)
            await wire.close()
            await until(lambda: server.connections == 0)

    run(story)
    assert log.reasons() == ["did not read its answers for 300 ms"]


def test_a_slow_reader_gets_everything_in_the_end(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer, max_in_flight=2) as server:
            wire = await Wire.to(server)
            for number in range(10):
                wire.send(encode_request(FetchRequest(), 12, number, "me"))
            for number in range(10):
                response = decode_response(await wire.frame(), ApiKey.FETCH, 12)
                assert response.correlation_id == number
                assert isinstance(response.message, FetchResponse)
                assert response.message.responses[0].partitions[0].records == BIG
            await wire.close()

    run(story)
    assert log.lines == []


# ---------------------------------------------------------------- bad input


BAD: dict[str, tuple[bytes, str]] = {
    "negative length": (struct.pack(">i", -5), "a frame of -5 bytes"),
    "oversize": (struct.pack(">i", 10_001) + b"x" * 50, "a frame of 10001 bytes"),
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "looks like HTTP"),
    "tls": (bytes.fromhex("16030100c8010000c40303"), "looks like TLS"),
    "empty frame": (struct.pack(">i", 0), "has no header"),
    "header cut off": (struct.pack(">ihh", 4, 18, 0), "has no header"),
    "unknown api": (struct.pack(">ihhih", 10, 999, 0, 1, -1), "API 999 version 0 is not served"),
    "known api not offered": (struct.pack(">ihhih", 10, 73, 0, 1, -1), "API 73 version 0 is not served"),
    "unsupported version": (struct.pack(">ihhih", 10, 63, 3, 1, -1), "API 63 version 3 is not served"),
    "garbage body": (struct.pack(">ihhih", 14, 63, 1, 1, -1) + b"\0abc", "runs past the frame"),
    "client id past the frame": (struct.pack(">ihhih", 10, 63, 1, 1, 500), "client_id of 500 bytes"),
    "bytes left over": (struct.pack(">ihhihi", 14, 18, 0, 1, -1, 0), "leaves 4 bytes over"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_bytes_end_their_connection_with_one_line_and_the_server_goes_on(
    run: Run[Any], start: Serve, log: Lines, case: str
) -> None:
    data, reason = BAD[case]

    async def story() -> None:
        async with await start(answer, max_frame_bytes=10_000) as server:
            wire = await Wire.to(server)
            wire.send(data)
            assert await wire.rest() == b""
            await assert_still_serving(server)

    run(story)
    assert len(log.lines) == 1
    assert log.lines[0]["event"] == "connection.closed"
    assert reason in log.lines[0]["reason"]
    assert log.lines[0]["peer"].startswith("127.0.0.1:")


def test_what_came_before_the_garbage_is_answered(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        async with await start(answer) as server:
            wire = await Wire.to(server)
            wire.send(encode_request(BrokerHeartbeatRequest(broker_id=2), 1, 8, "me") + struct.pack(">i", -1))
            response = decode_response(await wire.frame(), ApiKey.BROKER_HEARTBEAT, 1)
            assert (response.correlation_id, response.message) == (
                8,
                BrokerHeartbeatResponse(is_caught_up=True, error_code=77),
            )
            assert await wire.rest() == b""

    run(story)


def test_a_client_that_hangs_up_in_the_middle_of_a_request_is_noted(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer) as server:
            wire = await Wire.to(server)
            wire.send(encode_request(HELLO, 3, 1, "me")[:-2])
            wire.writer.write_eof()
            assert await wire.rest() == b""
            await assert_still_serving(server)

    run(story)
    (reason,) = log.reasons()
    assert reason.startswith("closed in the middle of a request")


def test_half_a_request_and_then_silence_is_cut_off(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer, stall_timeout_ms=100) as server:
            wire = await Wire.to(server)
            wire.send(struct.pack(">i", 500) + b"half")
            assert await wire.rest() == b""

    run(story)
    assert log.reasons() == ["no more of a request for 100 ms, 8 bytes of it had come"]


def test_unfinished_requests_of_all_connections_together_are_bounded(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer, max_pending_bytes=5_000) as server:
            first, second = await Wire.to(server), await Wire.to(server)
            half = struct.pack(">i", 9_000) + bytes(2_996)
            first.send(half)
            await until(lambda: server.pending_bytes == 3_000)
            second.send(half)
            assert await second.rest() == b""
            await until(lambda: server.pending_bytes == 3_000)
            await assert_still_serving(server)
            await first.close()
            await until(lambda: server.pending_bytes == 0)

    run(story)
    assert log.reasons()[0] == "unread requests take more than 5000 bytes together"


def test_an_api_may_have_a_smaller_frame_than_others(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        limits = Limits(max_frame_bytes_of={ApiKey.UNREGISTER_BROKER: 20})
        server = await serve("127.0.0.1", 0, answer, apis=SERVED, clock=SystemClock(), log=log, limits=limits)
        async with server:
            wire = await Wire.to(server)
            wire.send(encode_request(UnregisterBrokerRequest(broker_id=1), 0, 5, "a long name for a client"))
            assert await wire.rest() == b""
            await assert_still_serving(server)

    run(story)
    assert log.reasons() == ["UNREGISTER_BROKER of 40 bytes, at most 20 are taken"]


def test_an_idle_connection_goes_without_a_word_and_one_that_waits_stays(
    run: Run[Any], start: Serve, log: Lines
) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def parked(request: Request, peer: Peer) -> ResponseBody:
            await gate.wait()
            return BrokerHeartbeatResponse()

        async with await start(parked, idle_timeout_ms=500) as server:
            waiting = await Wire.to(server)
            waiting.send(encode_request(BrokerHeartbeatRequest(broker_id=1), 1, 1, "me"))
            idle = await Wire.to(server)
            assert await idle.rest() == b""
            gate.set()
            assert await waiting.frame()
            await waiting.close()

    run(story)
    assert log.lines == []


def test_handlers_are_cancelled_when_their_client_goes(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        begun, cancelled = asyncio.Event(), asyncio.Event()

        async def parked(request: Request, peer: Peer) -> ResponseBody:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError

        async with await start(parked) as server:
            wire = await Wire.to(server)
            wire.send(encode_request(BrokerHeartbeatRequest(broker_id=1), 1, 1, "me"))
            await begun.wait()
            await wire.close()
            await cancelled.wait()
            await until(lambda: server.connections == 0)

    run(story)
    assert log.lines == []


def test_a_handler_that_fails_ends_its_connection_alone(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async def faulty(request: Request, peer: Peer) -> ResponseBody | None:
            if isinstance(request.message, ApiVersionsRequest):
                raise ValueError("a bug")
            if isinstance(request.message, FetchRequest):
                return UnregisterBrokerResponse()  # answers something else
            return await answer(request, peer)

        async with await start(faulty) as server:
            for message, version in ((HELLO, 3), (FetchRequest(), 12)):
                wire = await Wire.to(server)
                wire.send(encode_request(message, version, 1, "me"))
                assert await wire.rest() == b""
            await assert_still_serving(server)

    run(story)
    assert [(line["event"], line["api"]) for line in log.lines] == [
        ("request.failed", "API_VERSIONS"),
        ("request.failed", "FETCH"),
    ]


def test_a_handler_can_close_its_connection(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer) as server:
            wire = await Wire.to(server)
            wire.send(encode_request(UnregisterBrokerRequest(broker_id=1), 0, 1, "me"))
            assert await wire.rest() == b""

    run(story)
    assert log.lines == []


class HandClock(SystemClock):
    """Time that passes when told to."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


# ---------------------------------------------------------------- one peer beside others


def heartbeat(number: int = 1) -> bytes:
    return encode_request(BrokerHeartbeatRequest(broker_id=1), 1, number, "me")


def test_one_address_gets_so_many_connections_and_room_is_made_again(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer, max_connections_per_ip=2) as server:
            first, second = await Wire.to(server), await Wire.to(server)
            await until(lambda: server.connections == 2)
            assert await (await Wire.to(server)).rest() == b""
            await first.close()
            await until(lambda: server.connections == 1)
            await assert_still_serving(server)
            await second.close()

    run(story)
    assert log.reasons() == ["there are 2 connections from 127.0.0.1 already"]


def test_connections_that_come_too_fast_wait_and_are_served_then(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        handled: list[int] = []

        async def noted(request: Request, peer: Peer) -> ResponseBody | None:
            handled.append(request.correlation_id)
            return await answer(request, peer)

        # On a clock that stands still, one connection may come now and the next a quarter of a second later.
        async with await start(noted, clock=HandClock(), max_connection_creation_rate=4) as server:
            first, second = await Wire.to(server), await Wire.to(server)
            await until(lambda: server.connections == 2)
            second.send(heartbeat(2))
            first.send(heartbeat(1))
            assert await first.frame()
            assert await second.frame()
            assert handled == [1, 2]
            await first.close()
            await second.close()

    run(story)


def test_connections_that_would_wait_for_long_are_closed(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        limits = {"max_connection_creation_rate": 1, "stall_timeout_ms": 1_500}
        async with await start(answer, clock=HandClock(), **limits) as server:
            wires = [await Wire.to(server) for _ in range(3)]  # one now, one in a second, one in two
            assert await wires[2].rest() == b""
            assert server.connections == 2
            for wire in wires[:2]:
                await wire.close()

    run(story)
    assert log.reasons() == ["more than 1 connections a second come for long"]


def test_a_connection_that_asks_too_much_waits_and_others_do_not(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        handled: list[int] = []

        async def noted(request: Request, peer: Peer) -> ResponseBody | None:
            handled.append(request.correlation_id)
            return await answer(request, peer)

        async with await start(noted, clock=HandClock(), max_requests_per_second=4) as server:
            much, little = await Wire.to(server), await Wire.to(server)
            much.send(heartbeat(1) + heartbeat(2))
            await until(lambda: handled == [1])
            little.send(heartbeat(3))
            for _ in range(2):
                await much.frame()
            assert handled == [1, 3, 2]
            await much.close()
            await little.close()

    run(story)


def muting(handled: list[int], mute_ms: dict[int, int]) -> Callable[[Request, Peer], Awaitable[EncodedResponse]]:
    """Notes what comes, and mutes the connection after some correlation ids."""

    async def handler(request: Request, peer: Peer) -> EncodedResponse:
        handled.append(request.correlation_id)
        made = await answer(request, peer)
        assert made is not None
        frame = encode_response(made, request.version, request.correlation_id)
        return EncodedResponse(request.api_key, frame, mute_ms.get(request.correlation_id, 0))

    return handler


def test_a_client_that_used_up_its_quota_is_answered_at_once_and_heard_again_later(
    run: Run[Any], start: Serve, log: Lines
) -> None:
    async def story() -> None:
        handled: list[int] = []
        async with await start(muting(handled, {1: 600_000, 2: 50}), clock=HandClock()) as server:
            long, short, other = [await Wire.to(server) for _ in range(3)]
            long.send(heartbeat(1))
            short.send(heartbeat(2))
            assert await long.frame()
            assert await short.frame()
            long.send(heartbeat(3))
            short.send(heartbeat(4))
            assert await short.frame()
            for number in (5, 6, 7):
                other.send(heartbeat(number))
                assert await other.frame()
            assert sorted(handled) == [1, 2, 4, 5, 6, 7]
            for wire in (long, short, other):
                await wire.close()

    run(story)
    assert not log.reasons()


def test_a_connection_that_is_muted_for_very_long_goes_like_an_idle_one(
    run: Run[Any], start: Serve, log: Lines
) -> None:
    async def story() -> None:
        handled: list[int] = []
        async with await start(muting(handled, {1: 2**31 - 1}), clock=HandClock(), idle_timeout_ms=50) as server:
            wire = await Wire.to(server)
            wire.send(heartbeat(1))
            assert await wire.frame()
            wire.send(heartbeat(2))
            assert await wire.rest() == b""
            assert handled == [1]

    run(story)
    assert not log.reasons()


def test_a_flood_on_many_connections_does_not_delay_a_heartbeat(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        handled: list[ApiKey] = []

        async def noted(request: Request, peer: Peer) -> ResponseBody | None:
            handled.append(request.api_key)
            return await answer(request, peer)

        urgent = frozenset({ApiKey.BROKER_HEARTBEAT})
        async with await start(noted, requests_at_once=1, urgent=urgent) as server:
            broker = await Wire.to(server)
            flood = [await Wire.to(server) for _ in range(10)]
            for wire in flood:
                wire.send(b"".join(encode_request(HELLO, 3, number, "me") for number in range(300)))
            await until(lambda: handled != [])
            broker.send(heartbeat())
            await broker.frame()
            assert len(handled) < 1_500
            for wire in flood:
                await wire.close()
            await broker.close()

    run(story)


def test_large_requests_are_taken_in_as_far_as_there_is_room_and_small_ones_pass_them(
    run: Run[Any], start: Serve
) -> None:
    async def story() -> None:
        begun: list[int] = []
        gate = asyncio.Event()

        async def parked(request: Request, peer: Peer) -> ResponseBody | None:
            begun.append(request.correlation_id)
            if isinstance(request.message, MetadataRequest):
                await gate.wait()
                return MetadataResponse(brokers=(), topics=())
            return await answer(request, peer)

        def large(number: int) -> bytes:
            topics = tuple(MetadataRequestTopic(name="x" * 100) for _ in range(300))
            return encode_request(MetadataRequest(topics=topics), 12, number, "me")

        async with await start(parked, max_queued_bytes=40_000) as server:
            wires = [await Wire.to(server) for _ in range(3)]
            for number, wire in enumerate(wires):
                wire.send(large(number))
            await until(lambda: len(begun) == 1 and server.pending_bytes > 60_000)
            await assert_still_serving(server)
            await wires[1].close()  # one that waits may go
            gate.set()
            for wire in (wires[0], wires[2]):
                await wire.frame()
                await wire.close()
            await until(lambda: server.queued.used_bytes == server.pending_bytes == 0)
        assert 1 not in begun

    run(story)


def test_many_that_do_not_read_cost_so_much_together_and_the_slowest_goes(
    run: Run[Any], start: Serve, log: Lines
) -> None:
    async def story() -> None:
        async with await start(answer, max_unread_bytes=12_000_000) as server:
            slow = await Wire.to(server)
            cast("asyncio.Transport", slow.writer.transport).pause_reading()
            slow.send(b"".join(encode_request(FetchRequest(), 12, number, "me") for number in range(16)))
            good = await Wire.to(server)
            while not log.lines:
                good.send(encode_request(FetchRequest(), 12, 1, "me"))
                await good.frame()
            assert server.unread.bytes <= 12_000_000
            await until(lambda: server.connections == 1)
            await slow.close()
            await good.close()
            await until(lambda: server.unread.bytes == 0)

    run(story)
    assert log.reasons() == ["unread answers take more than 12000000 bytes together"]


def test_answers_that_wait_for_an_earlier_one_count_as_unread(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        gate = asyncio.Event()

        async def first_waits(request: Request, peer: Peer) -> ResponseBody | None:
            if request.correlation_id == 0:
                await gate.wait()
            return await answer(request, peer)

        async with await start(first_waits, max_unread_bytes=12_000_000) as server:
            wire = await Wire.to(server)
            wire.send(b"".join(encode_request(FetchRequest(), 12, number, "me") for number in range(16)))
            await until(lambda: bool(log.lines))
            await until(lambda: server.unread.bytes == 0)
            await wire.close()

    run(story)
    assert log.reasons() == ["unread answers take more than 12000000 bytes together"]


@pytest.mark.parametrize("size_bytes", [50_000, -1])
def test_what_the_kernel_holds_of_a_connection_is_what_the_configuration_says(
    run: Run[Any], start: Serve, size_bytes: int
) -> None:
    async def story() -> None:
        with socket.socket() as plain:
            systems = [plain.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
        async with await start(answer, send_buffer_bytes=size_bytes, receive_buffer_bytes=size_bytes) as server:
            assert server._listening is not None
            with socket.socket(fileno=os.dup(server._listening.sockets[0].fileno())) as listening:
                set_to = [listening.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
            await assert_still_serving(server)
        # The kernel doubles what it is told (socket(7)).
        assert set_to == ([2 * size_bytes] * 2 if size_bytes >= 0 else systems)

    run(story)


# ---------------------------------------------------------------- limits and shutdown


def test_connections_above_the_limit_are_closed_and_room_is_made_again(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer, max_connections=2) as server:
            first, second = await Wire.to(server), await Wire.to(server)
            await until(lambda: server.connections == 2)
            assert await (await Wire.to(server)).rest() == b""
            await first.close()
            await until(lambda: server.connections == 1)
            await assert_still_serving(server)
            await second.close()

    run(story)
    assert [line["event"] for line in log.lines] == ["connection.refused"]


def test_a_storm_of_bad_connections_is_counted_instead_of_filling_the_log(
    run: Run[Any], start: Serve, log: Lines
) -> None:
    clock = HandClock()

    async def offend(server: Server) -> None:
        wire = await Wire.to(server)
        wire.send(b"\xff\xff\xff\xff")
        await wire.rest()

    async def story() -> None:
        async with await start(answer, clock=clock) as server:
            for _ in range(LOG_LINES_PER_SECOND + 30):
                await offend(server)
            assert len(log.lines) == LOG_LINES_PER_SECOND
            clock.now_ms += 1000
            await offend(server)
            await offend(server)

    run(story)
    assert len(log.lines) == LOG_LINES_PER_SECOND + 2
    assert [line.get("suppressed") for line in log.lines[-2:]] == [30, None]


def test_closing_the_server_ends_connections_and_handlers(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def parked(request: Request, peer: Peer) -> ResponseBody:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        server = await start(parked)
        busy, idle = await Wire.to(server), await Wire.to(server)
        busy.send(encode_request(BrokerHeartbeatRequest(broker_id=1), 1, 1, "me"))
        await begun.wait()
        await until(lambda: server.connections == 2)
        await server.close()
        assert server.connections == 0
        assert await busy.rest() == b""
        assert await idle.rest() == b""

    run(story)
    assert log.lines == []


def test_a_port_that_is_taken_is_one_clear_error(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer) as server:
            with pytest.raises(KjbodError, match=f"cannot listen on 127.0.0.1:{server.port}"):
                await serve("127.0.0.1", server.port, answer, apis=SERVED, clock=SystemClock(), log=log)

    run(story)


def test_limits_default_to_those_of_kafka() -> None:
    limits = Limits()
    assert (limits.max_frame_bytes, limits.idle_timeout_ms) == (104_857_600, 600_000)
