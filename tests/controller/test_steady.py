"""The short way of a steady heartbeat and the way of all requests give the same bytes."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kjbod.errors import ProtocolError
from kjbod.ids import Uuid
from kjbod.metadata.acls import Operation, ResourceType
from kjbod.wire.frames import EncodedResponse, Request, decode_request, encode_request, encode_response
from kjbod.wire.messages import API, ApiKey, BrokerHeartbeatRequest, BrokerHeartbeatResponse, ResponseBody
from kjbod.wire.server import Peer, Server
from kjbod_controller_stub.brokers.steady import FRAME_BYTES_MAX, SteadyHeartbeats
from kjbod_controller_stub.limits import FRAME_BYTES_MAX_OF, SERVED
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect, join
from tests.controller.world import World, directories
from tests.wire.strategies import Case, messages

VERSIONS = range(API[ApiKey.BROKER_HEARTBEAT].min_version, API[ApiKey.BROKER_HEARTBEAT].max_version + 1)
LENGTH_BYTES = 4


class Sent(NamedTuple):
    """A heartbeat on its way."""

    version: int
    correlation_id: int
    client_id: str | None
    message: BrokerHeartbeatRequest

    @property
    def data(self) -> bytes:
        return encode_request(self.message, self.version, self.correlation_id, self.client_id)

    def at_offset(self, offset: int) -> "Sent":
        return self._replace(message=structs.replace(self.message, current_metadata_offset=offset))


def any_heartbeat(version: int) -> st.SearchStrategy[Sent]:
    return st.builds(
        Sent,
        version=st.just(version),
        correlation_id=st.integers(-(2**31), 2**31 - 1),
        client_id=st.none() | st.text(max_size=20),
        message=messages(Case(ApiKey.BROKER_HEARTBEAT, version, "request")),
    )


heartbeats = st.sampled_from(VERSIONS).flatmap(any_heartbeat)
"""Whatever a frame can say."""


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Some heartbeats, each sent repeatedly with other correlation ids and offsets, as a broker does, in between bytes
    that are a little different."""
    said: list[bytes] = []
    for sent in draw(st.lists(heartbeats, min_size=1, max_size=4)):
        data = sent.data
        for _ in range(draw(st.integers(1, 3))):
            said.append(data)
            again = sent._replace(correlation_id=draw(st.integers(0, 2**31 - 1)))
            offset = draw(st.integers(-(2**63), 2**63 - 1))
            said.append(again.at_offset(offset).data)
        at = draw(st.integers(0, len(data) - 1))
        said.append(data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :])
        said.append(data[:at])
        said.append(data + data[:at])
    return said


def decide(request: BrokerHeartbeatRequest, offset: int) -> BrokerHeartbeatResponse | None:
    """Some answer that follows from all of the request."""
    number = hash(structs.replace(request, current_metadata_offset=offset))
    if number % 5 == 0:
        return None
    return BrokerHeartbeatResponse(is_caught_up=bool(number & 1), is_fenced=bool(number & 2), error_code=number % 3)


def the_way_of_all_requests(data: bytes) -> bytes | None:
    """None where it is no heartbeat, or none that is to be answered at once."""
    if len(data) > FRAME_BYTES_MAX or int.from_bytes(data[:LENGTH_BYTES]) != len(data) - LENGTH_BYTES:
        return None
    try:
        request = decode_request(data[LENGTH_BYTES:], SERVED, FRAME_BYTES_MAX_OF)
    except ProtocolError:
        return None
    if not isinstance(request.message, BrokerHeartbeatRequest):
        return None
    answer = decide(request.message, request.message.current_metadata_offset)
    return None if answer is None else encode_response(answer, request.version, request.correlation_id)


@given(conversations())
def test_whatever_is_sent_has_the_same_answer(said: Sequence[bytes]) -> None:
    short = SteadyHeartbeats(decide)
    for data in said:
        assert short(data) == the_way_of_all_requests(data)


@given(heartbeats, st.integers(-(2**63), 2**63 - 1))
def test_the_form_of_a_heartbeat_reads_the_next_one_as_the_decoder_does(sent: Sent, offset: int) -> None:
    seen: list[BrokerHeartbeatRequest] = []

    def note(request: BrokerHeartbeatRequest, offset: int) -> BrokerHeartbeatResponse:
        seen.append(structs.replace(request, current_metadata_offset=offset))
        return BrokerHeartbeatResponse()

    short = SteadyHeartbeats(note)
    following = sent.at_offset(offset)
    if len(sent.data) <= FRAME_BYTES_MAX:
        assert short(sent.data) and short(following.data)
        assert seen == [decode_request(each.data[LENGTH_BYTES:]).message for each in (sent, following)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_world_answers_the_same_both_ways(version: int) -> None:
    """Fenced, caught up, with a failed directory, with another offset: what is answered at all is what is handled."""
    world = World()
    world.join(1)
    world.join(2)
    lost = directories(1)[:1]
    epoch = world.broker(1).epoch
    answered = 0

    def steady(request: BrokerHeartbeatRequest, offset: int) -> BrokerHeartbeatResponse | None:
        found = world.controller.sessions.steady_heartbeat(request, world.now_ms, offset)
        return None if found is None else found[0]

    short = SteadyHeartbeats(steady)
    none: tuple[Uuid, ...] = ()
    for number, (offset, fence, offline) in enumerate(
        [(0, False, none), (epoch, False, none), (epoch + 5, False, none), (epoch + 5, False, none)]
        + [(epoch + 6, False, lost if version else none)] * 3
        + [(epoch + 6, True, none)] * 3
        + [(0, False, none)] * 2
        + [(2**60, False, none)] * 3
    ):
        request = BrokerHeartbeatRequest(
            broker_id=1, broker_epoch=epoch, current_metadata_offset=offset, want_fence=fence, offline_log_dirs=offline
        )
        at_once = short(encode_request(request, version, number, "1"))
        handled = encode_response(world.ask(request, version), version, number)
        assert at_once is None or at_once == handled
        answered += at_once is not None
    assert answered >= 7


# ---- over a connection


class Counted:
    """How many requests go the way of all requests."""

    def __init__(self, listener: Server) -> None:
        self.requests: list[Request] = []
        handler = listener.handler

        async def counted(request: Request, peer: Peer) -> ResponseBody | EncodedResponse | None:
            self.requests.append(request)
            return await handler(request, peer)

        listener.handler = counted


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
    writer.write(data)
    length = await reader.readexactly(LENGTH_BYTES)
    return length + await reader.readexactly(int.from_bytes(length))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_steady_broker_is_answered_the_short_way_with_the_same_bytes(
    site: Site, serving: Serving, version: int
) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        epoch = await join(connection, 1)
        short = await asyncio.open_connection("127.0.0.1", server.port)
        counted = Counted(server.servers[0])

        def heartbeat(number: int, **fields: object) -> bytes:
            values = {"broker_id": 1, "broker_epoch": epoch, "current_metadata_offset": 2**40 + number} | fields
            return encode_request(BrokerHeartbeatRequest(**values), version, number, "1")  # type: ignore[arg-type]

        await exchange(*short, heartbeat(0))
        begun = len(counted.requests)
        told = [await exchange(*short, heartbeat(number)) for number in range(1, 4)]
        assert len(counted.requests) == begun
        long = await asyncio.open_connection("127.0.0.1", server.port)
        long[1].write(b"".join(heartbeat(number) for number in range(1, 4)))  # in one piece: not the short way
        assert [await exchange(*long, b"") for _ in told] == told
        assert len(counted.requests) == begun + 3
        assert server.controller.heartbeats.contact(1, epoch).metadata_offset == 2**40 + 3  # type: ignore[union-attr]
        others: Sequence[dict[str, object]]
        others = ({"broker_epoch": epoch + 1}, {"broker_id": 9}, {"want_fence": True})
        for number, fields in enumerate(others):
            await exchange(*short, heartbeat(10 + number, **fields))
            assert len(counted.requests) == begun + 4 + number  # an error, or a change
        assert server.controller.image.brokers[1].fenced
        for _, writer in (short, long):
            writer.transport.abort()


class Nobody:
    """May do nothing."""

    unrestricted = False

    def allow(self, operation: Operation, resource_type: ResourceType, name: str = "") -> bool:
        return False

    def operations(self, resource_type: ResourceType, name: str = "") -> int:
        return 0


async def test_who_has_to_wait_or_may_not_ask_is_not_answered_the_short_way(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        epoch = await join(connection, 1)
        short = server._steady_heartbeats(Peer("127.0.0.1", 1))
        message = BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=epoch)
        data = encode_request(message, max(VERSIONS), 1, "1")
        assert short(data)
        for target, name, value in (
            (
                server.controller.sessions.registration_end_offsets,
                1,
                server.log.end_offset + 1_000,
            ),  # it would tell what is not durable
            (server, "_authorizer", lambda principal, host: Nobody()),
            (server, "_failure", OSError("Input/output error")),
            (server, "_ready", asyncio.Event()),
        ):
            with monkeypatch.context() as patch:
                if isinstance(name, str):
                    patch.setattr(target, name, value)
                else:
                    patch.setitem(server.controller.sessions.registration_end_offsets, name, cast(int, value))
                assert short(data) is None, name
            assert short(data)
