"""A controller, and one broker that starts with very many replicas: a kjbod agent or a real Kafka broker."""

import asyncio
import contextlib
import datetime
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from kjbod.clock import SystemClock
from kjbod.wire.client import Connection
from kjbod.wire.messages import BrokerHeartbeatRequest
from kjbod_host.storage.memory import MemoryDisk
from scripts.bench import replicas_memory
from scripts.bench.agent_cost_rig import BROKER_ID, PARTITIONS_PER_TOPIC
from scripts.bench.agent_cost_rig import Rig as CostRig
from scripts.bench.agent_cost_usage import descendants, usage_of
from scripts.bench.replicas_log import ControllerLog
from scripts.rig.kafka import SERVER, KafkaKit
from scripts.rig.processes import Processes
from scripts.rig.rig_error import RigError

System = Literal["agent", "agent in memory", "Kafka"]
SESSION_MS: Final = 6_000
"""A broker that is killed counts as running for so long."""
_TIMEOUT_S = 900.0
_QUIET_S = 1.5
_QUIET_BYTES = 1_500
"""What signs of life add to the controller's log in that time."""
_POLL_S = 0.05
_MIB = 1 << 20
_BYTES_PER_REPLICA = 48 << 10
_CONTROLLER_HEAP_MIB = 2048
_BROKER_HEAP_MIB = 3072


@dataclass(frozen=True, slots=True)
class Start:
    """Times of a start, in seconds since the process was started (or since the topics were asked for).

    Attributes:
        system: what was started.
        case: ``new``: the replicas were given to it while it was down. ``moved``: they are there, each in another
            directory than the metadata say. ``running``: they are given to it while it runs.
        replicas: how many.
        registered_s: the controller has registered it; None where it was already.
        created_s: the last replica was made; None where they were there.
        assigned_s: the controller has recorded the last directory.
        unfenced_s: the broker may serve.
        memory_mib: PSS of its processes then.
        cpu_s: processor time of its processes by then.
    """

    system: System
    case: str
    replicas: int
    registered_s: float | None
    created_s: float | None
    assigned_s: float
    unfenced_s: float | None
    memory_mib: float
    cpu_s: float

    @property
    def ready_s(self) -> float:
        """Moment at which all was done: assigned, and unfenced."""
        return max(self.assigned_s, self.unfenced_s or 0.0)


class ReplicaRig(CostRig):
    """Use it in a ``with`` block; at its end everything is gone.

    Args:
        base: for files.
        logs: for what processes say.
        system: which broker.
        directories: how many log directories.
        replicas: how many there will be.
        kit: real Kafka; None: the controller is kjbod's.
        plain: log directories on the disk of ``work``, and not each on an ext4 of its own.
        session_ms: for how long a broker that was killed counts as running.
    """

    def __init__(
        self,
        base: Path,
        logs: Path,
        system: System,
        *,
        directories: int,
        replicas: int,
        kit: KafkaKit | None,
        plain: bool,
        session_ms: int = SESSION_MS,
    ) -> None:
        session = {"broker.session.timeout.ms": session_ms}
        super().__init__(base, logs, kit, session, _CONTROLLER_HEAP_MIB)
        self._session_ms = session_ms
        self.system = system
        self.replicas = replicas
        self._memory = base / "disks.json"
        self._began_s = 0.0
        self.begin()
        self.log_dirs = self._make_directories(directories, plain)
        self._config = self._format()
        self._command = self._broker_command()
        self.log = ControllerLog(self.controller_dir / "__cluster_metadata-0", BROKER_ID)

    # ---- what there is

    def _make_directories(self, directories: int, plain: bool) -> list[Path]:
        if plain or self.system == "agent in memory":
            return [self.base / f"d{number + 1}" for number in range(directories)]
        return self.make_disks(directories, 64 * _MIB + self.replicas // directories * _BYTES_PER_REPLICA)

    def _format(self) -> Path:
        more: dict[str, object] = {
            "broker.session.timeout.ms": self._session_ms,
            "broker.heartbeat.interval.ms": min(2000, self._session_ms // 3),
        }
        if self.system != "Kafka":
            more |= {"kjbod.state.dir": self.base / "state", "kjbod.placement.full.percent": 100}
        config = self.configure_broker(BROKER_ID, self.log_dirs, more)
        self.format_broker(config)
        if self.system == "agent in memory":
            disks = {
                str(path): MemoryDisk(meta_properties=(path / "meta.properties").read_bytes()) for path in self.log_dirs
            }
            replicas_memory.save(self._memory, disks)
            with open(config, "a", encoding="utf-8") as file:
                file.write(f"kjbod.storage.agent={replicas_memory.NAME}\n")
        return config

    def _broker_command(self) -> list[str]:
        if self.system == "Kafka":
            assert self.kafka is not None
            return self.kafka.command(SERVER, str(self._config), heap_mib=_BROKER_HEAP_MIB)
        command = [*self.plain_kjbod(), "agent", "-c", str(self._config)]
        if self.system == "agent in memory":
            replicas_memory.install(self.base / "packages")
        return command

    # ---- what is done

    def start(self) -> None:
        """Start the broker."""
        environment = {**os.environ, replicas_memory.ENVIRONMENT: str(self._memory)}
        name = self.system.replace(" ", "-").lower()
        processes = self._stack.enter_context(Processes(self.processes.log_directory, environment))
        self._began_s = time.time()
        self.broker = processes.start(self._command, name=f"{name}-{int(self._began_s * 1000)}")

    def wait_until_unfenced(self) -> None:
        self._wait(lambda: not self.log.read().fenced, "the broker to be unfenced")

    def stop_broker(self) -> None:
        """In good order; and until its session is over, since a controller refuses a new incarnation before."""
        assert self.broker is not None
        self.broker.signal(signal.SIGTERM)
        self.broker.wait(120)
        time.sleep(self._session_ms / 1000)

    def kill_and_wait_until_fenced(self) -> None:
        assert self.broker is not None
        self.broker.close()
        self.broker = None
        self._wait(lambda: self.log.read().fenced, "the controller to fence the broker")

    def give_replicas(self, *, unnoticed: bool) -> None:
        """Create the topics. ``unnoticed``: the broker is stopped for so long; only its heartbeats go on, sent in its
        name, since no controller places a replica on a broker that is fenced."""
        assert self.broker is not None
        if unnoticed:
            self.broker.signal(signal.SIGSTOP)
        self._began_s = time.time()
        asyncio.run(self._create(heartbeats=unnoticed))

    async def _create(self, *, heartbeats: bool) -> None:
        beating = asyncio.ensure_future(self._beat()) if heartbeats else None
        try:
            await asyncio.to_thread(self._create_topics)
        finally:
            if beating is not None:
                beating.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await beating

    def _create_topics(self) -> None:
        for number, first in enumerate(range(0, self.replicas, PARTITIONS_PER_TOPIC)):
            partitions = min(PARTITIONS_PER_TOPIC, self.replicas - first)
            self.create_topic(f"topic{number}", partitions, brokers=[BROKER_ID])

    async def _beat(self) -> None:
        epoch = self.log.read().epoch
        address = ("127.0.0.1", self.port)
        async with await Connection.open(*address, client_id="kjbod-bench", clock=SystemClock()) as connection:
            while True:
                request = BrokerHeartbeatRequest(broker_id=BROKER_ID, broker_epoch=epoch, current_metadata_offset=1)
                await connection.request(request, timeout_ms=10_000, version=1)
                await asyncio.sleep(self._session_ms / 4000)

    def swap_directories(self) -> None:
        """Give each disk the id of the next one: so each replica lies elsewhere than the metadata say."""
        self.log.read()
        self.log.all_to_be_assigned_anew()
        if self.system == "agent in memory":
            disks = replicas_memory.load(self._memory)
            metas = [disk.meta_properties for disk in disks.values()]
            for disk, meta in zip(disks.values(), [*metas[1:], metas[0]], strict=True):
                disk.meta_properties = meta
            replicas_memory.save(self._memory, disks)
            return
        files = [path / "meta.properties" for path in self.log_dirs]
        contents = [file.read_bytes() for file in files]
        for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
            file.write_bytes(content)

    # ---- what is measured

    def measure(self, case: str) -> Start:
        """Wait until all is done, and say when what was."""
        self._wait(self._is_done, f"{self.replicas} replicas to be assigned")
        assert self.broker is not None
        used = [usage_of(pid, "") for pid in descendants(self.broker.pid)]
        recorded = self.log.read()
        started = case != "running"
        created_s = None if case == "moved" else self._last_created_s() - self._began_s
        return Start(
            system=self.system,
            case=case,
            replicas=self.replicas,
            registered_s=recorded.registered_s - self._began_s if started else None,
            created_s=created_s,
            assigned_s=recorded.assigned_s - self._began_s,
            unfenced_s=recorded.unfenced_s - self._began_s if started else None,
            memory_mib=sum(usage.pss_kib for usage in used) / 1024,
            cpu_s=sum(usage.cpu_s for usage in used),
        )

    def _is_done(self) -> bool:
        """The log is read only while it is still: reading it takes time of the machine that is measured."""
        before = self.log.size_bytes
        time.sleep(_QUIET_S)
        if self.log.size_bytes - before > _QUIET_BYTES:
            return False
        now = self.log.read()
        return now.registered_s >= 0 and not now.fenced and not now.waiting and len(now.partitions) == self.replicas

    def _last_created_s(self) -> float:
        if self.system == "agent in memory":
            return _last_logged_s(Path(self.broker.stderr_path)) if self.broker is not None else 0.0
        return max(
            (entry / "partition.metadata").stat().st_mtime for path in self.log_dirs for entry in path.glob("topic*-*")
        )

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _TIMEOUT_S
        while not until():
            if self.broker is not None and not self.broker.running:
                raise RigError(f"the broker ended with {self.broker.exit_code}:\n{self.broker.tail()}")
            if time.monotonic() > end:
                raise RigError(f"waited {_TIMEOUT_S:g} s for {what}")
            time.sleep(_POLL_S)


_CREATED = re.compile(rb'"event": ?"replica\.created"')
_TIMESTAMP = re.compile(rb'"timestamp": ?"([^"]+)"')


def _last_logged_s(log: Path) -> float:
    """Moment at which the agent said that it had made its last replica."""
    last: bytes = b""
    with open(log, "rb") as file:
        for line in file:
            if _CREATED.search(line):
                last = line
    found = _TIMESTAMP.search(last)
    if found is None:
        raise RigError(f"{log}: no replica was created")
    return datetime.datetime.fromisoformat(found[1].decode()).timestamp()


def per_replica_ms(starts: Sequence[Start]) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """By system and case: how many replicas, and milliseconds for each of them until all was done."""
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for start in starts:
        found.setdefault((start.system, start.case), []).append((start.replicas, 1000 * start.ready_s / start.replicas))
    return found
