"""What one peer may take from the controller while others are served."""

import asyncio
import socket

import pytest

from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.messages import BrokerHeartbeatRequest, CreateTopicsRequest, CreateTopicsRequestTopic, MetadataRequest
from kjbod_controller_stub.limits import QUEUED_BYTES_MAX, REQUESTS_PER_SECOND_MAX, UNREAD_BYTES_MAX
from tests.controller.conftest import Serving, Site
from tests.controller.test_server import connect, join, refusal


async def test_an_address_gets_as_many_connections_as_the_configuration_says(site: Site, serving: Serving) -> None:
    site.configure(max_connections_per_ip="2")
    async with serving(site) as server, await connect(server.port), await connect(server.port) as second:
        with pytest.raises(Disconnected):
            await connect(server.port)
        assert (await second.request(MetadataRequest(topics=None), timeout_ms=60_000)).controller_id


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_some_hosts_get_more_connections_than_others(site: Site, serving: Serving, host: str) -> None:
    site.configure(max_connections_per_ip="0", max_connections_per_ip_overrides=f"{host}:2,192.0.2.1:50")
    async with serving(site) as server, await connect(server.port), await connect(server.port) as second:
        with pytest.raises(Disconnected):
            await connect(server.port)
        assert (await second.request(MetadataRequest(topics=None), timeout_ms=60_000)).controller_id


async def test_a_host_may_be_kept_out(site: Site, serving: Serving) -> None:
    site.configure(max_connections_per_ip_overrides="127.0.0.1:0")
    async with serving(site) as server:
        with pytest.raises(Disconnected):
            await connect(server.port)


async def test_a_name_without_an_address_is_one_line_at_the_start(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    site.configure(max_connections_per_ip_overrides="nobody.invalid:1")
    text = await refusal(site)
    assert "max.connections.per.ip.overrides=nobody.invalid:1: expected an address" in text
    assert len(text.splitlines()) == 1


async def test_a_broker_is_heard_while_others_send_what_takes_long(site: Site, serving: Serving) -> None:
    """4,000 equal names in one request make every connection of a shipped controller wait for seconds."""
    names = tuple(CreateTopicsRequestTopic(name="t", num_partitions=1, replication_factor=1) for _ in range(4_000))

    async def flood(connection: Connection) -> None:
        for _ in range(3):
            await connection.request(CreateTopicsRequest(topics=names), timeout_ms=60_000)

    async with serving(site) as server, await connect(server.port) as broker:
        epoch = await join(broker, 1)
        others = [await connect(server.port) for _ in range(4)]
        flooding = [asyncio.ensure_future(flood(connection)) for connection in others]
        beat = BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=epoch)
        for _ in range(3):
            assert (await broker.request(beat, timeout_ms=30_000)).error_code == 0
        assert not any(task.done() for task in flooding)
        await asyncio.gather(*flooding)
        for connection in others:
            await connection.close()


async def test_the_limits_are_those_of_the_readme(site: Site, serving: Serving) -> None:
    site.configure(
        queued_max_request_bytes="1000", socket_request_max_bytes="1000", connections_max_idle_ms="-1",
        max_connection_creation_rate="7", socket_listen_backlog_size="9",
    )  # fmt: skip
    async with serving(site) as server:
        limits = server.servers[0].limits
    assert (limits.max_queued_bytes, limits.max_connection_creation_rate, limits.listen_backlog) == (1_000, 7, 9)
    assert limits.idle_timeout_ms > 10**9
    assert (limits.max_unread_bytes, limits.max_requests_per_second) == (UNREAD_BYTES_MAX, REQUESTS_PER_SECOND_MAX)
    assert QUEUED_BYTES_MAX <= 4 * 1024 * 1024
