"""Real brokers side by side, for tests of guards."""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.wire.client import Connection
from kjbod.wire.messages import DescribeQuorumRequest
from scripts.rig.cluster import Cluster, wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess


def start_brokers(cluster: Cluster, kit: KafkaKit, configs: Sequence[Path]) -> list[ManagedProcess]:
    """Brokers of these files, ``broker-1`` and so on, formatted and started; returns when all of them serve."""
    brokers = []
    for number, config in enumerate(configs, 1):
        cluster.format_broker(config)
        brokers.append(cluster.launch_broker(kit, config, name=f"broker-{number}"))
    for broker in brokers:
        wait_until_serving(broker)
    return brokers


def active_controller(ports: Iterable[int]) -> int:
    """Node id of the active one of these controllers, as it says of itself; -1: there is none."""
    for port in ports:
        with contextlib.suppress(OSError, KjbodError):
            if (leader := asyncio.run(_leader_of(port))) > 0:
                return leader
    return -1


async def _leader_of(port: int) -> int:
    """The active controller, by what the one at this port says; one that is not it does not know, or says 0."""
    async with await Connection.open("127.0.0.1", port, client_id="test", clock=SystemClock()) as connection:
        answer = await connection.request(DescribeQuorumRequest(), timeout_ms=2_000)
    return answer.topics[0].partitions[0].leader_id
