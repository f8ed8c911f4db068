"""A shortcut answers what stands alone; in every other case requests go the way that they go without it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from kjbod.clock import Clock, SystemClock
from kjbod.wire import server as wire_server
from kjbod.wire.frames import EncodedResponse, Request, decode_response, encode_request, encode_response
from kjbod.wire.limits import URGENT_PER_SECOND, Limits
from kjbod.wire.messages import ApiKey, BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kjbod.wire.server import Peer, Server, serve
from tests.wire.conftest import SERVED, Lines, Run, until
from tests.wire.test_server import HandClock, Wire, heartbeat

FROM_SHORTCUT, FROM_HANDLER = 1, 2
"""Error codes that tell who answered."""


class Answering:
    """A server whose handler and shortcut note what they are asked."""

    def __init__(self, log: Lines) -> None:
        self._log = log
        self.handled: list[int] = []
        self.offered: list[bytes] = []
        self.gate: asyncio.Event | None = None
        self.mute_ms = 0
        self.answer: Callable[[bytes], bytes | None] = lambda data: answer_to(data, FROM_SHORTCUT)

    async def handler(self, request: Request, peer: Peer) -> EncodedResponse:
        self.handled.append(request.correlation_id)
        if self.gate is not None:
            await self.gate.wait()
        answer = BrokerHeartbeatResponse(error_code=FROM_HANDLER)
        frame = encode_response(answer, request.version, request.correlation_id)
        return EncodedResponse(request.api_key, frame, self.mute_ms)

    def shortcut(self, data: bytes) -> bytes | None:
        self.offered.append(data)
        return self.answer(data)

    async def start(self, clock: Clock | None = None, **limits: Any) -> Server:
        return await serve(
            "127.0.0.1", 0, self.handler, apis=SERVED, clock=clock or SystemClock(), log=self._log,
            limits=Limits(**limits), shortcut=lambda peer: self.shortcut,
        )  # fmt: skip


def answer_to(data: bytes, error_code: int) -> bytes:
    return encode_response(BrokerHeartbeatResponse(error_code=error_code), 1, int.from_bytes(data[8:12]))


async def who_answers(wire: Wire, number: int) -> int:
    response = decode_response(await wire.frame(), ApiKey.BROKER_HEARTBEAT, 1)
    assert response.correlation_id == number
    assert isinstance(response.message, BrokerHeartbeatResponse)
    return response.message.error_code


def test_one_request_after_the_other_takes_it(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        async with await answering.start() as server:
            wire = await at_rest(server)
            handled = list(answering.handled)
            for number in range(3):
                wire.send(heartbeat(number))
                assert await who_answers(wire, number) == FROM_SHORTCUT
            assert answering.handled == handled
            await wire.close()

    run(story)
    assert log.lines == []


def test_what_it_does_not_answer_is_handled_and_the_next_one_is_offered_again(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        async with await answering.start() as server:
            wire = await at_rest(server)
            answering.answer = lambda data: None
            wire.send(heartbeat(1))
            assert await who_answers(wire, 1) == FROM_HANDLER
            answering.answer = lambda data: answer_to(data, FROM_SHORTCUT)
            wire.send(heartbeat(2))
            assert await who_answers(wire, 2) == FROM_SHORTCUT
            assert answering.offered[-2:] == [heartbeat(1), heartbeat(2)]
            await wire.close()

    run(story)


def test_nothing_passes_a_request_that_is_being_handled(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        async with await answering.start() as server:
            wire = await at_rest(server)
            answering.gate = asyncio.Event()
            answering.answer = lambda data: None
            wire.send(heartbeat(1))
            await until(lambda: 1 in answering.handled)
            answering.answer = lambda data: answer_to(data, FROM_SHORTCUT)
            wire.send(heartbeat(2))
            await until(lambda: 2 in answering.handled)
            answering.gate.set()
            assert [await who_answers(wire, 1), await who_answers(wire, 2)] == [FROM_HANDLER] * 2
            await wire.close()

    run(story)


def test_what_comes_before_its_forerunner_was_read_does_not_overtake_it(
    run: Run[Any], log: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocols = []

    class Kept(wire_server._Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            protocols.append(self)
            super().connection_made(transport)

    monkeypatch.setattr(wire_server, "_Protocol", Kept)

    async def story() -> None:
        answering = Answering(log)
        async with await answering.start() as server:
            wire = await at_rest(server)
            answering.answer = lambda data: None if data == heartbeat(1) else answer_to(data, FROM_SHORTCUT)
            for number in (1, 2):  # nobody else comes to run in between
                protocols[-1].data_received(heartbeat(number))
            assert [await who_answers(wire, 1), await who_answers(wire, 2)] == [FROM_HANDLER] * 2
            assert heartbeat(2) not in answering.offered
            await wire.close()

    run(story)


def test_the_rest_of_a_request_is_not_taken_for_one(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        async with await answering.start() as server:
            wire = await at_rest(server)
            inner = encode_request(BrokerHeartbeatRequest(broker_id=1, broker_epoch=1), 1, 1, "me")
            answering.answer = lambda data: answer_to(data, FROM_SHORTCUT) if data == inner else None
            outer = encode_request(
                BrokerHeartbeatRequest(broker_id=1), 1, 9, inner.decode()
            )  # an odd name for a client
            begin = outer.index(inner)
            wire.send(outer[:begin])
            await until(lambda: server.pending_bytes == begin)
            wire.send(inner)
            await until(lambda: server.pending_bytes == begin + len(inner))
            wire.send(outer[begin + len(inner) :])
            assert await who_answers(wire, 9) == FROM_HANDLER
            assert inner not in answering.offered
            await wire.close()

    run(story)
    assert log.lines == []


def test_several_requests_in_one_piece_are_answered_in_their_order(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        async with await answering.start() as server:
            wire = await at_rest(server)
            answering.answer = lambda data: answer_to(data, FROM_SHORTCUT) if len(data) == len(heartbeat()) else None
            wire.send(b"".join(heartbeat(number) for number in range(1, 6)))
            assert [await who_answers(wire, number) for number in range(1, 6)] == [FROM_HANDLER] * 5
            wire.send(heartbeat(6))
            assert await who_answers(wire, 6) == FROM_SHORTCUT
            await wire.close()

    run(story)


def test_requests_above_the_rate_of_a_connection_wait_as_all_do(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        clock = HandClock()
        async with await answering.start(clock, max_requests_per_second=4) as server:
            wire = await at_rest(server, clock)
            by = []
            for number in range(6):
                wire.send(heartbeat(number))
                by.append(await who_answers(wire, number))
            assert by == [FROM_SHORTCUT] * 4 + [FROM_HANDLER] * 2
            clock.now_ms += 10_000
            wire.send(heartbeat(7))
            assert await who_answers(wire, 7) == FROM_SHORTCUT
            await wire.close()

    run(story)


def test_who_sends_very_many_urgent_requests_waits_for_its_turn(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        clock = HandClock()
        async with await answering.start(clock, urgent=frozenset({ApiKey.BROKER_HEARTBEAT})) as server:
            wire = await at_rest(server, clock)
            by = []
            for number in range(URGENT_PER_SECOND + 2):
                wire.send(heartbeat(number))
                by.append(await who_answers(wire, number))
            assert by == [FROM_SHORTCUT] * URGENT_PER_SECOND + [FROM_HANDLER] * 2
            await wire.close()

    run(story)


def test_a_muted_connection_is_not_answered_before_its_time(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        clock = HandClock()
        async with await answering.start(clock) as server:
            wire = await at_rest(server, clock)
            answering.answer, answering.mute_ms = lambda data: None, 50
            wire.send(heartbeat(1))
            assert await who_answers(wire, 1) == FROM_HANDLER
            answering.answer, answering.mute_ms = lambda data: answer_to(data, FROM_SHORTCUT), 0
            wire.send(heartbeat(2))
            assert await who_answers(wire, 2) == FROM_HANDLER
            clock.now_ms += 50
            wire.send(heartbeat(3))
            assert await who_answers(wire, 3) == FROM_SHORTCUT
            await wire.close()

    run(story)


def test_a_client_that_does_not_read_gets_no_more_that_way(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        async with await answering.start() as server:
            wire = await at_rest(server)
            answering.answer = lambda data: bytes(8_000_000)
            cast("asyncio.Transport", wire.writer.transport).pause_reading()
            handled = len(answering.handled)
            offered = len(answering.offered)
            wire.send(heartbeat(1))
            await until(lambda: len(answering.offered) > offered)
            wire.send(heartbeat(2))
            await until(lambda: len(answering.handled) > handled)
            assert len(answering.offered) == offered + 1
            await wire.close()
            await until(lambda: server.connections == 0 and server.unread.bytes == 0)

    run(story)


def test_a_larger_request_than_may_be_is_not_offered(run: Run[Any], log: Lines) -> None:
    async def story() -> None:
        answering = Answering(log)
        async with await answering.start(max_frame_bytes=100) as server:
            wire = await at_rest(server)
            wire.send(encode_request(BrokerHeartbeatRequest(broker_id=1), 1, 1, "x" * 100))
            assert await wire.rest() == b""
            assert all(len(data) < 100 for data in answering.offered)

    run(story)
    assert "at most 100 are taken" in log.reasons()[0]


def test_a_connection_that_is_answered_that_way_is_not_idle_and_one_that_falls_silent_is(
    run: Run[Any], log: Lines
) -> None:
    idle_ms = 1_000

    async def story() -> None:
        answering = Answering(log)
        async with await answering.start(idle_timeout_ms=idle_ms) as server:
            wire = await at_rest(server)
            handled, number, loop = list(answering.handled), 0, asyncio.get_running_loop()
            end_s = loop.time() + 1.5 * idle_ms / 1_000
            while loop.time() < end_s:
                number += 1
                wire.send(heartbeat(number))
                assert await who_answers(wire, number) == FROM_SHORTCUT
                await asyncio.sleep(0.02)
            assert answering.handled == handled
            assert await wire.rest() == b""
            await until(lambda: server.connections == 0)

    run(story)
    assert log.lines == []


async def at_rest(server: Server, clock: HandClock | None = None) -> Wire:
    """A connection that has had an answer, and may ask as much as a new one."""
    wire = await Wire.to(server)
    wire.send(heartbeat(0))
    await wire.frame()
    if clock is not None:
        clock.now_ms += 10_000
    return wire
