"""A controller that is measured, and the processes around it: kjbod's or real Kafka's, on a directory of its own."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from kjbod.security.keys import PLAINTEXT
from kjbod.security.opening import client_security
from kjbod.wire.disconnections import AuthenticationFailed
from scripts.bench.agent_cost_usage import cpu_s, descendants, usage_of
from scripts.bench.controller_client import Observer, SimulatedBroker, Wire
from scripts.rig.cluster import NOTHING, Cluster, Properties
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from scripts.rig.rig_error import RigError
from scripts.rig.secured import Secured, scram_credentials

System = Literal["kjbod", "Kafka"]
START_TIMEOUT_S: Final = 300.0
LONG_SESSION_MS: Final = 3_600_000
"""For brokers that are silent while something is measured."""
# As bin/kafka-server-start.sh and kafka-run-class.sh have them: the kit's own are for a quick start, not for speed.
_JVM_OPTIONS: Final = (
    *(
        "-server",
        "-XX:TieredStopAtLevel=4",
        f"-XX:CICompilerCount={max(2, os.cpu_count() or 2)}",
        "-XX:-UseSerialGC",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
    ),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15"),
)
_RETRY_S = 0.01
_ROOT = Path(__file__).parents[2]
_LINE_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the controller's process, in MiB."""

    pss_mib: float
    rss_mib: float


class ControllerRig(Cluster):
    """Use it in a ``with`` block; at its end everything is gone.

    Args:
        base: for its files.
        logs: for what it says.
        system: which controller.
        kit: real Kafka, where it is that.
        rules: ``kjbod.controller.rules``.
        heap_mib: the JVM's heap, first and last size.
        protocol: of its listener; logins are by SCRAM-SHA-512.
    """

    def __init__(
        self,
        base: Path,
        logs: Path,
        system: System,
        *,
        kit: KafkaKit | None,
        rules: str,
        heap_mib: int,
        protocol: str = PLAINTEXT,
    ) -> None:
        self.system = system
        self._rules = rules
        self._protocol = protocol
        self._secured = Secured(base / "secured")
        self.client_file = self._secured.client_file(base / "client.properties", self._secured.client(protocol))
        self.security = client_security(self.client_file)
        super().__init__(
            base,
            Processes(logs),
            kafka=kit if system == "Kafka" else None,
            name=f"{system.lower()}-controller",
            heap_mib=heap_mib,
            jvm=(f"-Xms{heap_mib}m", *_JVM_OPTIONS),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.processes.close()
        shutil.rmtree(self.controller_dir, ignore_errors=True)

    def format(self) -> None:
        """Make its directory, each kind with its own tool."""
        scram = scram_credentials() if self._protocol.startswith("SASL") else ()
        self.format_controller(by_kafka=self.system == "Kafka", scram=scram)

    def configure_controller(self, properties: Properties = NOTHING) -> None:
        own: Properties = {"kjbod.controller.rules": self._rules} if self.system == "kjbod" else {}
        secured = {} if self._protocol == PLAINTEXT else self._secured.node(self._protocol)
        super().configure_controller({"broker.session.timeout.ms": LONG_SESSION_MS, **secured, **properties, **own})

    def start(self) -> float:
        """Start it, without waiting; when that was, on the clock of ``time.perf_counter``."""
        began_s = time.perf_counter()
        self.launch_controller()
        return began_s

    def events(self, event: str) -> list[dict[str, Any]]:
        """Lines of its log by that name, since its last start."""
        assert self.controller is not None
        return self.controller.events(event)

    def require_running(self) -> None:
        """Raises :class:`RigError` when it has ended."""
        if self.controller is None or not self.controller.running:
            tail = "" if self.controller is None else self.controller.tail().splitlines()[-1:]
            raise RigError(f"the controller of {self.system} has ended: {''.join(tail) or 'it said nothing'}")

    # ---- waiting until it serves

    async def wire(self) -> Wire:
        """A connection, as soon as it listens."""
        end_s = time.perf_counter() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(
                OSError, AuthenticationFailed
            ):  # Kafka's knows its users some time after it listens
                return await Wire.open(self.port, self.security)
            self.require_running()
            if time.perf_counter() > end_s:
                raise RigError(f"the controller of {self.system} did not listen within {START_TIMEOUT_S:g} s")
            await asyncio.sleep(_RETRY_S)

    async def first_fetch(self, offset: int = 0, epoch: int = 0) -> tuple[Observer, float]:
        """An observer that has had its first answer, and when; it has the log up to ``offset`` already."""
        end_s = time.perf_counter() + START_TIMEOUT_S
        while True:
            observer = Observer(await self.wire(), self.cluster_id, broker_id=1)
            observer.start_at(offset, epoch)
            try:
                while not observer.answered:
                    await observer.fetch(wait_ms=0)
                return observer, time.perf_counter()
            except RigError:  # not the leader yet, or it closed the connection
                observer.close()
                self.require_running()
                if time.perf_counter() > end_s:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def first_heartbeat(self, broker_id: int, epoch: int) -> float:
        """Moment of the first good answer to a broker that the controller knows from its log."""
        end_s = time.perf_counter() + START_TIMEOUT_S
        while True:
            broker = SimulatedBroker(broker_id, await self.wire(), (), epoch)
            try:
                return (await broker.beat(epoch)).at_s
            except RigError:  # not the controller yet
                self.require_running()
                if time.perf_counter() > end_s:
                    raise
                await asyncio.sleep(_RETRY_S)
            finally:
                broker.wire.close()

    # ---- what it uses

    @property
    def cpu_s(self) -> float:
        """Processor time of its processes by now."""
        assert self.controller is not None
        return sum(cpu_s(pid) for pid in descendants(self.controller.pid))

    def memory(self) -> Memory:
        """Of all its processes."""
        assert self.controller is not None
        pids = descendants(self.controller.pid)
        rss_kib = 0
        for pid in pids:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    rss_kib += int(line.split()[1])
        return Memory(sum(usage_of(pid, "").pss_kib for pid in pids) / 1024, rss_kib / 1024)

    def snapshots(self) -> set[str]:
        """Names of the snapshots that it has made; the one of offset 0 came with its format."""
        found = (self.controller_dir / "__cluster_metadata-0").glob("*.checkpoint")
        return {path.name for path in found if not path.name.startswith("0" * 20)}


class LoadProcess:
    """A process of simulated brokers (:mod:`scripts.bench.controller_load`)."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, rig: ControllerRig, first: int, brokers: int, interval_ms: float) -> Self:
        """Returns when all its brokers are unfenced. Raises :class:`RigError`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scripts.bench.controller_load", str(rig.port), rig.cluster_id),
            *("--first", str(first), "--brokers", str(brokers), "--interval-ms", str(interval_ms)),
            *("--command-config", str(rig.client_file)),
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        load = cls(process)
        try:
            await load._line()
        except BaseException:
            await load.close()
            raise
        return load

    @property
    def cpu_s(self) -> float:
        """Its processor time by now."""
        return cpu_s(self._process.pid)

    def tell_offset(self, offset: int) -> None:
        """Set the offset that the heartbeats name from now on."""
        self._write(f"offset {offset}\n")

    def reset(self) -> None:
        """Forget what was measured."""
        self._write("reset\n")

    async def report(self) -> tuple[list[float], int]:
        """Seconds that each heartbeat took since the reset, one that waits included; and how many failed."""
        self._write("report\n")
        told = await self._line()
        return [*told["seconds"], *told["unanswered"]], told["failures"]

    async def log_in(self, count: int) -> float:
        """Open so many connections more, and close them when all have logged in; seconds until then."""
        self._write(f"log-in {count}\n")
        return float((await self._line())["seconds"])

    async def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())

    async def _line(self) -> Any:
        assert self._process.stdout is not None and self._process.stderr is not None
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await self._process.stdout.readline()
        if not line:
            said = (await self._process.stderr.read()).decode(errors="replace").strip().splitlines()[-1:]
            raise RigError(f"simulated brokers ended: {''.join(said) or 'they said nothing'}")
        return json.loads(line)


class ReadersProcess(LoadProcess):
    """A process of clients that read (:mod:`scripts.bench.controller_readers`)."""

    @classmethod
    async def begin(cls, rig: ControllerRig, clients: int, epoch: int) -> Self:
        """Returns when they have their first answers. Raises :class:`RigError`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scripts.bench.controller_readers", str(rig.port), rig.cluster_id),
            *("--clients", str(clients), "--epoch", str(epoch)),
            *(("--metadata",) if rig.system == "kjbod" else ()),
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        readers = cls(process)
        try:
            while (await readers.read())["answers"] < clients:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(_RETRY_S)
        except BaseException:
            await readers.close()
            raise
        return readers

    async def read(self) -> dict[str, int]:
        """``answers`` and ``bytes`` that came by now, and clients that ``ended``."""
        self._write("report\n")
        told: dict[str, int] = await self._line()
        return told


async def close_all(loads: Sequence[LoadProcess]) -> None:
    """End them."""
    for load in loads:
        await load.close()
