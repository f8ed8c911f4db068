"""Row *secured*: a guard beside a broker, and an agent, where controllers and brokers listen with SASL_SSL alone."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from kjbod.clock import SystemClock
from kjbod.faults.orders import FaultMode
from kjbod.security.opening import client_security
from kjbod.wire.client import AuthenticationFailed, Connection
from scripts.matrix.agents import agent_lines
from scripts.matrix.stage import Stage, claim
from scripts.rig.cluster import Cluster, wait_until_guarding, wait_until_serving
from scripts.rig.processes import free_port, wait_until
from scripts.rig.secured import MECHANISMS, Secured, scram_credentials

_PROTOCOL: Final = "SASL_SSL"
_MECHANISM: Final = MECHANISMS[-1]
_WAIT_S: Final = 60.0
_STOP_S: Final = 120.0


def secured(stage: Stage) -> None:
    """With the broker's own file the guard follows, and saves the broker from a disk that hangs; an agent serves."""
    stores = Secured(stage.base / "stores")
    cluster = stage.cluster(stores.node(_PROTOCOL, _MECHANISM), scram=scram_credentials())
    disks = [stage.disk() for _ in range(2)]
    lines = {**stores.broker(_PROTOCOL, free_port(), _MECHANISM), "metadata.log.dir": stage.base / "m1"}
    config = cluster.configure_broker(1, [disk.log_dir for disk in disks], lines)
    cluster.format_broker(config)
    wait_until(lambda: _knows_its_users(cluster, stores), _WAIT_S, "users by SCRAM")
    broker = cluster.launch_broker(stage.kit, config, name="broker")
    wait_until_serving(broker)

    beside = stage.guard(config, act=True)
    checked = stage.kjbod("guard", "check", *beside.arguments)
    claim("broker 1 is registered" in checked, f"guard check: {checked}")
    guard = beside.start()
    wait_until_guarding(guard)
    disks[1].set(FaultMode.HANG)
    guard.wait_for_event("guard.kafka.view", _WAIT_S, path=str(disks[1].log_dir), view="offline")
    claim(broker.running and not guard.events("guard.done", means="kill"), "the broker was given up")
    told = stage.kjbod("status", *beside.arguments)
    claim("1 of 3 directories failed" in told, f"status: {told}")

    own = agent_lines(stage.base, 2)
    config = cluster.configure_broker(2, [stage.base / "b2" / "d1"], {**stores.node(_PROTOCOL, _MECHANISM), **own})
    cluster.format_broker(config)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced", _WAIT_S)
    claim(agent.stop(_WAIT_S) == 0, f"the agent's end: {agent.tail()}")
    claim(guard.stop(_STOP_S) == 0, f"the guard's end: {guard.tail()}")


def _knows_its_users(cluster: Cluster, stores: Secured) -> bool:
    """Whether the controller has read the credentials of SCRAM: it says that it is up before it has."""
    file: Path = cluster.base / "users.properties"
    security = client_security(stores.client_file(file, stores.client(_PROTOCOL, _MECHANISM)))

    async def log_in() -> None:
        opened = Connection.open("127.0.0.1", cluster.port, client_id="rig", clock=SystemClock(), security=security)
        await (await opened).close()

    with contextlib.suppress(AuthenticationFailed):
        asyncio.run(log_in())
        return True
    return False
