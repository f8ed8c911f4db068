"""The client against our own server, against servers that behave badly, and a foreign client against our server."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import LocalProtocolError, RemoteProtocolError, UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.security.channel import Security
from kjbod.security.keys import SSL, ChannelSettings
from kjbod.security.tls_keys import Tls
from kjbod.wire.client import Connection, Disconnected, ForeignPeer, RequestTimedOut
from kjbod.wire.connection import ClientConnection, Features, ServerConnection, api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request, decode_request, encode_request, encode_response
from kjbod.wire.messages import (
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    ResponseBody,
    UnregisterBrokerRequest,
)
from kjbod.wire.server import Peer, Server
from tests.wire.conftest import SERVED, Lines, Run, Serve, until

FEATURES = Features(supported={"kraft.version": (0, 1)}, finalized={"metadata.version": 30}, finalized_epoch=11)
BEAT = BrokerHeartbeatRequest(broker_id=1)


async def answer(request: Request, peer: Peer) -> ResponseBody | None:
    match request.message:
        case ApiVersionsRequest():
            return api_versions_response(request, SERVED, FEATURES)
        case BrokerHeartbeatRequest(current_metadata_offset=offset):
            return BrokerHeartbeatResponse(throttle_time_ms=offset)
    return None


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "as_controller", "as_broker"),
    [
        (None, -1, 0, 0),
        ("c", 1, 0, 0),
        ("c", 2, 0, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("d", 1, 0, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("", 1, 0, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("c", -2, 0, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, 1, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST),
        ("c", -1, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST),
        ("", -1, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_client_may_say_whom_it_means_and_a_broker_looks(
    cluster_id: str | None, node_id: int, as_controller: int, as_broker: int
) -> None:
    message = ApiVersionsRequest(
        client_software_name="x", client_software_version="1", cluster_id=cluster_id, node_id=node_id
    )
    request = decode_request(encode_request(message, 5, 1, None)[4:])
    assert request.message == message
    assert api_versions_response(request, SERVED).error_code == as_controller
    assert api_versions_response(request, SERVED, broker=("c", 1)).error_code == as_broker


async def connect(port: int, **options: Any) -> Connection:
    return await Connection.open("127.0.0.1", port, client_id="1", clock=SystemClock(), **options)


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def bad_server(script: Script) -> AsyncIterator[int]:
    """A server that does what ``script`` says; gives its port."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            done.set()

    done = asyncio.Event()
    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
        await done.wait()
    finally:
        server.close()
        await server.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Agree on versions."""
    frame = await read_frame(reader)
    key, version, correlation_id = struct.unpack_from(">hhi", frame)
    assert (key, version) == (ApiKey.API_VERSIONS, 4)
    entries = tuple(
        ApiVersionsResponseApiVersion(api_key=key, min_version=low, max_version=high)
        for key, (low, high) in SERVED.items()
    )
    writer.write(encode_response(ApiVersionsResponse(api_keys=entries), 4, correlation_id))


# ---------------------------------------------------------------- the good path


def test_a_connection_knows_versions_and_features(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        async with await start(answer) as server, await connect(server.port) as connection:
            assert connection.versions == {int(key): versions for key, versions in SERVED.items()}
            assert connection.features == FEATURES
            assert connection.version_of(ApiKey.BROKER_HEARTBEAT) == 2
            assert not connection.closed
            response = await connection.request(BEAT, timeout_ms=5_000)
            assert response == BrokerHeartbeatResponse()
            assert (await connection.request(BEAT, timeout_ms=5_000, version=0)) == BrokerHeartbeatResponse()

    run(story)


def test_small_requests_are_not_held_back_by_nagle(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        async with await start(answer) as server, await connect(server.port) as connection:
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0

    run(story)


def test_many_requests_in_flight_get_their_own_answers(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        async with await start(answer) as server, await connect(server.port, max_in_flight=7) as connection:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        connection.request(
                            BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=n), timeout_ms=9_999
                        )
                    )
                    for n in range(200)
                ]
            assert [task.result().throttle_time_ms for task in tasks] == list(range(200))

    run(story)


@pytest.mark.parametrize(("low", "high", "used"), [(0, 0, 0), (0, 2, 2), (3, 3, 3), (0, 9, 4)])
def test_negotiation_falls_back_to_what_the_server_has(
    run: Run[Any], start: Serve, low: int, high: int, used: int
) -> None:
    seen: list[int] = []

    async def noted(request: Request, peer: Peer) -> ResponseBody | None:
        seen.append(request.version)
        return await answer(request, peer)

    async def story() -> None:
        apis = {**SERVED, ApiKey.API_VERSIONS: (low, min(high, 4))}
        async with await start(noted, apis=apis) as server, await connect(server.port):
            pass

    run(story)
    assert seen == [used]


def test_an_answer_to_a_cancelled_request_is_thrown_away(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        gate, begun = asyncio.Event(), asyncio.Event()

        async def parked(request: Request, peer: Peer) -> ResponseBody | None:
            if isinstance(request.message, BrokerHeartbeatRequest) and request.message.want_fence:
                begun.set()
                await gate.wait()
            return await answer(request, peer)

        async with await start(parked) as server, await connect(server.port) as connection:
            parked_request = BrokerHeartbeatRequest(broker_id=1, want_fence=True, current_metadata_offset=1)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(connection.request(parked_request, timeout_ms=60_000))
                await begun.wait()
                task.cancel()
            gate.set()
            response = await connection.request(
                BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=2), timeout_ms=5_000
            )
            assert response.throttle_time_ms == 2

    run(story)


# ---------------------------------------------------------------- the bad paths


def test_a_version_that_the_server_lacks_is_an_error_and_the_connection_stays(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        apis = {**SERVED, ApiKey.BROKER_HEARTBEAT: (0, 0)}

        async def older(request: Request, peer: Peer) -> ResponseBody | None:
            if request.api_key is ApiKey.API_VERSIONS:
                return api_versions_response(request, apis)
            return await answer(request, peer)

        async with await start(older, apis=apis) as server, await connect(server.port) as connection:
            with pytest.raises(UnsupportedVersionError, match="does not offer ASSIGN_REPLICAS_TO_DIRS"):
                await connection.request(AssignReplicasToDirsRequest(broker_id=1), timeout_ms=5_000)
            with pytest.raises(UnsupportedVersionError, match="v0 has no field cordoned_log_dirs"):
                await connection.request(BrokerHeartbeatRequest(broker_id=1, cordoned_log_dirs=()), timeout_ms=5_000)
            with pytest.raises(LocalProtocolError):
                await connection.request(BrokerHeartbeatRequest(broker_id=2**40), timeout_ms=5_000)
            await connection.request(BEAT, timeout_ms=5_000)

    run(story)


def test_a_server_without_a_common_version_of_api_versions_is_refused(run: Run[Any]) -> None:
    async def story() -> None:
        async def newer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_frame(reader)
            writer.write(bytes.fromhex("00000010" + "00000000" + "0023" + "00000001" + "0012" + "0007" + "0009"))
            await reader.read()

        async with bad_server(newer) as port:
            with pytest.raises(UnsupportedVersionError, match="offers API_VERSIONS versions 7 to 9"):
                await connect(port)

    run(story)


def test_nobody_listening_is_a_clean_error(run: Run[Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening

        async def story() -> None:
            with pytest.raises(Disconnected, match=r"cannot connect to 127\.0\.0\.1:\d+: Connection refused$"):
                await connect(taken.getsockname()[1])

        run(story)


def test_a_server_that_accepts_and_says_nothing_is_given_up(run: Run[Any]) -> None:
    async def story() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(1000):
                pass

        async with bad_server(silent) as port:
            with pytest.raises(Disconnected, match="did not answer within 100 ms"):
                await connect(port, connect_timeout_ms=100)

    run(story)


def test_a_request_without_an_answer_times_out_and_ends_the_connection(run: Run[Any]) -> None:
    async def story() -> None:
        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await greet(reader, writer)
            while await reader.read(1000):
                pass

        async with bad_server(mute) as port:
            connection = await connect(port)
            async with asyncio.TaskGroup() as group:
                other = group.create_task(outcome(connection.request(BEAT, timeout_ms=60_000)))
                with pytest.raises(RequestTimedOut, match="did not answer BROKER_HEARTBEAT within"):
                    await connection.request(BEAT, timeout_ms=100)
            assert isinstance(other.result(), Disconnected)
            assert connection.closed
            with pytest.raises(Disconnected):
                await connection.request(BEAT, timeout_ms=100)
            await connection.close()

    run(story)


def test_of_a_request_that_timed_out_nothing_is_sent_later(run: Run[Any]) -> None:
    """The kernel would go on sending what it has taken, for minutes: a report might arrive when it is not true any
    more."""

    async def story() -> None:
        reset = asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await greet(reader, writer)
            try:
                while await reader.read(1000):
                    pass
            except ConnectionResetError:
                reset.set()

        async with bad_server(mute) as port:
            connection = await connect(port)
            with pytest.raises(RequestTimedOut):
                await connection.request(BEAT, timeout_ms=100)
            await asyncio.wait_for(reset.wait(), 10)
            await connection.close()

    run(story)


async def outcome(request: Awaitable[Any]) -> Any:
    try:
        return await request
    except Disconnected as error:
        return error


REPLIES = {
    "closed": (b"", "closed the connection"),
    "oversize": (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
    "wrong correlation id": (struct.pack(">iib", 5, 99, 0), "runs past the frame|an answer to 99"),
    "garbage body": (struct.pack(">iib", 7, 1, 0) + b"\xff\xff", "runs past the frame"),
    "left over": (struct.pack(">iib", 16, 1, 0) + bytes(11), "leaves 1 bytes over"),
    "cut off": (struct.pack(">iib", 5000, 1, 0), "closed the connection"),
}


@pytest.mark.parametrize("case", REPLIES)
def test_a_bad_answer_fails_the_request_and_ends_the_connection(run: Run[Any], case: str) -> None:
    reply, reason = REPLIES[case]

    async def story() -> None:
        async def faulty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await greet(reader, writer)
            await read_frame(reader)
            writer.write(reply)
            await writer.drain()
            if reason != "closed the connection":
                await reader.read()
            else:
                writer.close()
                await writer.wait_closed()

        async with bad_server(faulty) as port:
            connection = await connect(port)
            with pytest.raises(Disconnected, match=reason):
                await connection.request(BEAT, timeout_ms=10_000)
            assert connection.closed
            await connection.close()

    run(story)


def test_an_answer_that_nobody_asked_for_ends_the_connection(run: Run[Any]) -> None:
    async def story() -> None:
        async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await greet(reader, writer)
            writer.write(struct.pack(">iib", 5, 1, 0))
            await reader.read()

        async with bad_server(chatty) as port:
            connection = await connect(port)
            await until(lambda: connection.closed)
            with pytest.raises(Disconnected, match="an answer to nothing"):
                await connection.request(BEAT, timeout_ms=10_000)
            await connection.close()

    run(story)


def test_closing_fails_what_is_in_flight_and_leaves_nothing(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        begun = asyncio.Event()

        async def parked(request: Request, peer: Peer) -> ResponseBody | None:
            if isinstance(request.message, BrokerHeartbeatRequest):
                begun.set()
                await asyncio.Event().wait()
            return await answer(request, peer)

        async with await start(parked) as server:
            connection = await connect(server.port)
            async with asyncio.TaskGroup() as group:
                request = group.create_task(outcome(connection.request(BEAT, timeout_ms=60_000)))
                await begun.wait()
                await connection.close()
                await connection.close()
            assert isinstance(request.result(), Disconnected)
            assert connection.closed
            await until(lambda: server.connections == 0)

    run(story)


def test_a_server_that_goes_away_fails_what_is_in_flight(run: Run[Any], start: Serve) -> None:
    async def story() -> None:
        async def parked(request: Request, peer: Peer) -> ResponseBody | None:
            if isinstance(request.message, BrokerHeartbeatRequest):
                begun.set()
                await asyncio.Event().wait()
            return await answer(request, peer)

        begun = asyncio.Event()
        server: Server = await start(parked)
        connection = await connect(server.port)
        async with asyncio.TaskGroup() as group:
            request = group.create_task(outcome(connection.request(BEAT, timeout_ms=60_000)))
            await begun.wait()
            await server.close()
        assert isinstance(request.result(), Disconnected)
        await connection.close()

    run(story)


def test_a_tls_client_of_a_plain_server_fails_cleanly_on_both_sides(run: Run[Any], start: Serve, log: Lines) -> None:
    async def story() -> None:
        async with await start(answer) as server:
            with pytest.raises(ForeignPeer, match="speaks plain text, and it was asked in TLS"):
                await connect(server.port, security=Security(ChannelSettings(SSL, Tls("test"))))
            await until(lambda: log.lines != [])

    run(story)
    (reason,) = log.reasons()
    assert "looks like TLS" in reason


def test_a_server_that_offers_another_version_of_api_versions_each_time_is_not_asked_for_ever(run: Run[Any]) -> None:
    asked = 0

    async def fickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while True:
            frame = await read_frame(reader)
            asked += 1
            only = ApiVersionsResponseApiVersion(api_key=18, min_version=asked % 3, max_version=asked % 3)
            refused = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(only,))
            writer.write(encode_response(refused, 0, struct.unpack_from(">i", frame, 4)[0]))

    async def story() -> None:
        async with bad_server(fickle) as port:
            with pytest.raises(Disconnected, match="it offers ApiVersions 1 and refuses it"):
                await connect(port)

    run(story)
    assert asked == 2


# ---------------------------------------------------------------- the machines alone


@pytest.mark.parametrize(
    ("offered", "told"),
    {
        None: "k:1 does not offer FETCH: upgrade Kafka there, or ask another server",
        (18, 4): "k:1 offers FETCH versions 18 to 4, kjbod knows 12 to 18: is this Kafka?",
        (13, 12): "k:1 offers FETCH versions 13 to 12, kjbod knows 12 to 18: is this Kafka?",
        (30_000, -5): "k:1 offers FETCH versions 30000 to -5, kjbod knows 12 to 18: is this Kafka?",
        (-9, -1): "k:1 offers FETCH versions -9 to -1, kjbod knows 12 to 18: upgrade Kafka there",
        (4, 11): "k:1 offers FETCH versions 4 to 11, kjbod knows 12 to 18: upgrade Kafka there",
        (19, 600): "k:1 offers FETCH versions 19 to 600, kjbod knows 12 to 18: upgrade kjbod",
    }.items(),
)
def test_why_a_server_cannot_be_asked_is_said_with_what_to_do(offered: tuple[int, int] | None, told: str) -> None:
    machine = ClientConnection(client_id="1", peer="k:1")
    machine.versions = {} if offered is None else {ApiKey.FETCH: offered}
    with pytest.raises(UnsupportedVersionError) as raised:
        machine.version_of(ApiKey.FETCH)
    assert str(raised.value) == told


@pytest.mark.parametrize(("offered", "chosen"), [((4, 12), 12), ((0, 32_767), 18), ((18, 18), 18), ((-1, 15), 15)])
def test_the_highest_version_that_both_know_is_asked(offered: tuple[int, int], chosen: int) -> None:
    machine = ClientConnection(client_id="1")
    machine.versions = {ApiKey.FETCH: offered, -7: (0, 0), 9_999: (3, 1)}
    assert machine.version_of(ApiKey.FETCH) == chosen


def test_answers_out_of_turn_are_refused() -> None:
    machine = ClientConnection(client_id="1")
    machine.hello()
    with pytest.raises(RemoteProtocolError, match="an answer to 5 when 0 is due"):
        list(machine.receive(encode_response(ApiVersionsResponse(), 4, 5)))


def test_a_slot_takes_one_answer_of_the_right_kind() -> None:
    client, server = ClientConnection(client_id="1"), ServerConnection(SERVED)
    _, data = client.send(UnregisterBrokerRequest(broker_id=1), 0)
    (slot,) = server.receive(data)
    with pytest.raises(LocalProtocolError, match="does not answer"):
        server.answer(slot, BrokerHeartbeatResponse())
    assert server.data_to_send() == (b"", 0)
    assert slot.request is not None
    _, hello = client.hello()
    (early,) = server.receive(hello)
    server.answer(early, ApiVersionsResponse())
    assert server.data_to_send() == (b"", 0)  # its turn has not come
    assert server.outstanding == 2
    with pytest.raises(LocalProtocolError, match="one answer"):
        server.answer(early, ApiVersionsResponse())


# ---------------------------------------------------------------- a foreign client


@pytest.mark.filterwarnings("ignore:.*Use files:DeprecationWarning")
def test_kafka_pythons_own_client_agrees_on_versions_with_our_server(run: Run[Any], start: Serve, log: Lines) -> None:
    seen: list[tuple[str, int]] = []

    async def broker(request: Request, peer: Peer) -> ResponseBody | None:
        seen.append((request.api_key.name, request.version))
        if isinstance(request.message, MetadataRequest):
            here = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port[0])
            return MetadataResponse(brokers=(here,), cluster_id="kjbod-test", controller_id=1)
        return await answer(request, peer)

    port: list[int] = []

    def ask() -> Any:
        from kafka.admin import KafkaAdminClient  # its import warns

        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{port[0]}", client_id="foreign")
        try:
            return admin.describe_cluster()
        finally:
            admin.close()

    async def story() -> Any:
        async with await start(broker) as server:
            port.append(server.port)
            return await asyncio.get_running_loop().run_in_executor(None, ask)

    found = run(story)
    assert found["cluster_id"] == "kjbod-test"
    assert {name for name, _ in seen} == {"API_VERSIONS", "METADATA"}
    assert log.lines == []


def test_what_the_host_of_a_peer_that_does_not_answer_has_heard_is_known(run: Run[Any]) -> None:
    """A peer that is busy has what it will read; what does not even reach its host is lost on the way."""
    over = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await over.wait()

    async def story() -> None:
        async with bad_server(script) as port:
            connection = await connect(port)
            asking = asyncio.ensure_future(connection.request(BEAT, timeout_ms=60_000))
            await asyncio.sleep(0)
            await until(lambda: connection.unheard_bytes == 0)
            more_than_its_buffers = BrokerHeartbeatRequest(broker_id=1, offline_log_dirs=(Uuid.of(1, 1),) * 1_000_000)
            too_much = asyncio.ensure_future(connection.request(more_than_its_buffers, timeout_ms=60_000))
            await until(lambda: connection.unheard_bytes > 0)
            assert not asking.done() and not too_much.done()
            over.set()
            for each in (asking, too_much):
                with pytest.raises(Disconnected):
                    await each
            await connection.close()

    run(story)
