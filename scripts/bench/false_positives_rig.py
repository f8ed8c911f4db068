"""Agents, or guards and real brokers, their disks, control groups and swap for ``scripts/bench/false-positives``;
everything is gone at the end."""

import contextlib
import ctypes
import errno
import gzip
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from kjbod.faults.disks import RealDisk
from scripts.rig.cluster import Cluster, wait_until_guarding, wait_until_serving
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command, wait_until
from scripts.rig.rig_error import RigError

SWAP_BYTES = 256 << 20
_START_TIMEOUT_S = 90.0
_BROKER_HEAP_MIB = 256
_PARTITIONS = 2
_CGROUPS = Path("/sys/fs/cgroup")
_PROCESS_MADVISE = 440
_MADV_PAGEOUT = 21


def run(*command: str) -> None:
    """Run to the end; :class:`RigError` with what it said when it fails."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["no output"]
        raise RigError(f"{' '.join(command)}: exit code {result.returncode}: {lines[-1]}")


# control groups -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group of ours, v1 or v2."""

    path: Path
    version: int

    def enter(self) -> list[str]:
        """Words to put before a command so that it runs in here."""
        return ["sh", "-c", f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"', "sh"]

    def write(self, name: str, value: str) -> None:
        """Set a value; raises OSError."""
        (self.path / name).write_text(value)

    def read(self, name: str) -> str:
        """Read a value; raises OSError."""
        return (self.path / name).read_text()


def make_control_group(controller: str, name: str) -> ControlGroup:
    """A group under ``blkio`` (v1) or ``io`` (v2), or under ``memory``. Raises :class:`RigError`: why there is none."""
    v1 = _CGROUPS / {"io": "blkio"}.get(controller, controller)
    if (v1 / "cgroup.procs").exists():
        path, version = v1 / name, 1
    else:
        controllers = _CGROUPS / "cgroup.controllers"
        if not controllers.exists() or controller not in controllers.read_text().split():
            raise RigError(f"this kernel offers no {controller} control group, neither v1 nor v2")
        path, version = _CGROUPS / name, 2
    try:
        if version == 2:
            (_CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        path.mkdir()
    except OSError as error:
        raise RigError(f"no control group {path}: {error.strerror}") from None
    return ControlGroup(path, version)


# swap -----------------------------------------------------------------------------------------------------------------


class SwapFile:
    """A swap file of the machine, used by whoever is short of memory: by our control group alone."""

    def __init__(self, tag: str) -> None:
        self.path = Path(f"/var/tmp/kjbod-{tag}-memory.swap")
        try:
            with open(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, SWAP_BYTES)
            run("/sbin/mkswap", str(self.path))
            run("/sbin/swapon", str(self.path))
        except (OSError, RigError) as error:
            self.path.unlink(missing_ok=True)
            raise RigError(f"no swap file in /var/tmp: {error}") from None

    def close(self) -> None:
        """Take it away; what is in it goes back to memory."""
        with contextlib.suppress(RigError):
            run("/sbin/swapoff", str(self.path))
        self.path.unlink(missing_ok=True)


def page_out(pid: int) -> None:
    """Ask the kernel to write all private memory of a process to swap, and to drop what it mapped of files."""
    vectors = []
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, _, end = line.split(" ", 1)[0].partition("-")
            if "[v" not in line:  # vdso, vvar, vsyscall
                vectors.append((int(start, 16), int(end, 16) - int(start, 16)))
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            return
        raise
    try:
        for address, length in vectors:  # one by one: a mapping that is locked ends a call early
            vector = (ctypes.c_size_t * 2)(address, length)
            libc.syscall(_PROCESS_MADVISE, pidfd, ctypes.byref(vector), 1, _MADV_PAGEOUT, 0)
    finally:
        os.close(pidfd)


def swapped_kib(pids: Sequence[int]) -> int:
    """KiB of these processes that are in swap."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in status if line.startswith("VmSwap"))
    return total


# an agent and its disks -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Member:
    """An agent under one condition, or a guard that acts and the real broker that it stands beside.

    Attributes:
        name: of the condition.
        node_id: of the agent, or of the broker.
        disks: of it.
        agent: its process, or the guard's.
        broker: the process of the real broker; None: there is none.
        cluster: where it is registered.
        reports: directory of its health reports.
        chance: for what happens at random.
        duration_s: how long the condition lasts.
        notes: what a reader of the table should know.
    """

    name: str
    node_id: int
    disks: list[RealDisk]
    agent: ManagedProcess
    cluster: Cluster
    reports: Path
    chance: random.Random
    duration_s: float
    broker: ManagedProcess | None = None
    group: ControlGroup | None = None
    notes: list[str] = field(default_factory=list)

    def wait_registered(self) -> None:
        """Wait until it may lead. Raises :class:`RigError` for a guard that can do nothing."""
        if self.broker is None:
            self.agent.wait_for_event("agent.unfenced", _START_TIMEOUT_S)
            return
        wait_until_serving(self.broker, _START_TIMEOUT_S)
        wait_until_guarding(self.agent, _START_TIMEOUT_S)
        if lacks := self.agent.events("guard.hand.missing", level="error"):
            raise RigError(f"{self.agent.name}: {lacks[0]['reason']}")

    def lead(self, others: "Sequence[Member]") -> None:
        """Have a real broker lead something on each of its disks. Another one has it too, where there is one: a disk
        with the only replica in sync is never cut, nor its broker given up."""
        beside = [one.node_id for one in others if one is not self and one.cluster is self.cluster][:1]
        if self.broker is not None:
            partitions = _PARTITIONS * len(self.disks)
            self.cluster.create_topic(f"of-{self.name}", partitions, brokers=(self.node_id, *beside))

    @property
    def host(self) -> list[int]:
        """Processes of all that there is of the host: controller, agent or guard, broker, workers."""
        assert self.cluster.controller is not None
        broker = () if self.broker is None else (self.broker.pid,)
        return [self.cluster.controller.pid, self.agent.pid, *broker, *self.workers()]

    def serves(self) -> bool:
        """Whether the broker may lead, by what was logged last."""
        if self.broker is None:
            told = [one["event"] for one in self.agent.events() if one["event"] in ("agent.fenced", "agent.unfenced")]
            return told[-1:] == ["agent.unfenced"]
        states = [one["state"] for one in self.agent.events("guard.broker")]
        return self.broker.running and states[-1:] == ["serving"]

    def deeds(self) -> list[str]:
        """Deeds of a guard, and such as its limits kept it from."""
        did = [f"{one['means']} {one.get('path') or 'the broker'}" for one in self.agent.events("guard.does")]
        would = [f"would {one['would']} {one['path']}" for one in self.agent.events("guard.would")]
        return (
            did + would + [f"gives up: {one['reason']}" for one in self.agent.events("guard.broker", state="crippled")]
        )

    def workers(self) -> list[int]:
        """Processes that touch disks for the agent, and those that fork them and keep the locks."""
        try:
            return [child.pid for child in psutil.Process(self.agent.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def disk_workers(self) -> list[int]:
        """Workers among the processes: those that have a parent among them, the zygote's children."""
        try:
            zygotes = psutil.Process(self.agent.pid).children()
            return [child.pid for zygote in zygotes for child in zygote.children()]
        except psutil.NoSuchProcess:
            return []

    def verdicts(self) -> list[dict[str, Any]]:
        """All ``directory.verdict`` lines so far."""
        return self.agent.events("directory.verdict")

    def not_online(self) -> dict[str, str]:
        """Directories whose last verdict is not ``online``."""
        last = {line["path"]: line["state"] for line in self.verdicts()}
        return {path: state for path, state in last.items() if state != "online"}

    def offline_sent(self) -> int:
        """Number of directories that were reported to the controller as offline."""
        return sum(len(line["directory_ids"]) for line in self.agent.events("directory.offline.sent"))

    def probes(self) -> tuple[int, float | None]:
        """Number of probes that the reports tell of, and the longest in ms (bucket of 19 %: its upper end)."""
        histogram: Counter[int] = Counter()
        for path in [*self.reports.rglob("*.jsonl"), *self.reports.rglob("*.jsonl.gz")]:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for line in content.decode().splitlines():
                with contextlib.suppress(ValueError):
                    found = json.loads(line).get("probe_histogram") or {}
                    histogram.update({int(bucket): count for bucket, count in found.items()})
        if not histogram:
            return 0, None
        return histogram.total(), 2 ** ((max(histogram) + 1) / 4) / 1000


class Rig:
    """Work directory, controllers, members. Nothing of it is left when :meth:`close` returns.

    Args:
        work: for all files.
        tag: in the names of what is the machine's.
        processes: starts what is started here.
        seed: of what happens at random.
        kafka: members are guards beside real brokers of it; None: they are agents.
    """

    def __init__(self, work: Path, tag: str, processes: Processes, seed: int, kafka: KafkaKit | None = None) -> None:
        self.work = work
        self._kafka = kafka
        self.tag = tag
        self.chance = random.Random(seed)
        self._processes = processes
        self._closing = contextlib.ExitStack()
        self._shared: Cluster | None = None
        self._nodes = 0

    def close(self) -> None:
        """Take everything away, last first."""
        self._processes.close()
        self._closing.close()

    def control_group(self, controller: str, name: str) -> ControlGroup:
        """A control group (:func:`make_control_group`), removed at the end."""
        group = make_control_group(controller, f"kjbod-{self.tag}-{name}")
        self._closing.callback(_remove_group, group.path)
        return group

    def swap(self) -> SwapFile:
        """A swap file (:class:`SwapFile`), removed at the end."""
        swap = SwapFile(self.tag)
        self._closing.callback(swap.close)
        return swap

    def load(self, *command: str, name: str) -> ManagedProcess:
        """Start something beside the agents."""
        return self._processes.start(command, name=name)

    def _cluster(self, name: str) -> Cluster:
        cluster = Cluster(self.work, self._processes, name=name)
        cluster.format_controller()
        cluster.start_controller(_START_TIMEOUT_S)
        return cluster

    def start(
        self,
        name: str,
        disk_count: int,
        duration_s: float,
        *,
        prefix: Sequence[str] = (),
        own_controller: bool = False,
        group: ControlGroup | None = None,
        file_systems: Sequence[str] = ("ext4",),
    ) -> Member:
        """Start an agent on new disks, or a guard beside a broker on new disks.

        ``prefix`` goes before the command; disks have the file systems in turn.
        """
        if own_controller:
            cluster = self._cluster(f"controller-{name}")
        else:
            cluster = self._shared = self._shared or self._cluster("controller")
        home = self.work / name
        disks = [
            self._closing.enter_context(
                RealDisk(home / "mnt" / f"disk{number}", fstype=file_systems[(number - 1) % len(file_systems)])
            )
            for number in range(1, disk_count + 1)
        ]
        self._nodes += 1
        # apart, or the loss of one disk would be the broker's
        apart = {"metadata.log.dir": home / "metadata"}
        own = {
            "kjbod.state.dir": home / "state",
            "kjbod.host": name,
            "kjbod.reports.dir": home / "reports",
            "kjbod.reports.interval.ms": 1000,
        }
        log_dirs = [disk.log_dir for disk in disks]
        properties = apart if self._kafka is not None else {**apart, **own}
        config = cluster.configure_broker(self._nodes, log_dirs, properties, config=home / "server.properties")
        cluster.format_broker(config)
        broker = None
        if self._kafka is None:
            agent = cluster.start_agent(config, prefix=prefix)
        else:
            broker = cluster.launch_broker(self._kafka, config, name=f"broker-{name}", heap_mib=_BROKER_HEAP_MIB)
            agent = self._start_guard(config, own, name, prefix)
        return Member(
            name=name,
            node_id=self._nodes,
            disks=disks,
            agent=agent,
            broker=broker,
            cluster=cluster,
            reports=home / "reports",
            chance=random.Random(self.chance.random()),
            duration_s=duration_s,
            group=group,
        )

    def _start_guard(self, config: Path, own: Mapping[str, object], name: str, prefix: Sequence[str]) -> ManagedProcess:
        """A guard that acts, with a file of its own."""
        file = config.with_name("guard.properties")
        file.write_text(render_properties(own))
        files = ("-c", str(config), "--guard-config", str(file))
        return self._processes.start([*prefix, kjbod_command(), "guard", "run", "--act", *files], name=f"guard-{name}")


def _remove_group(path: Path) -> None:
    """A group can be removed once its last process is reaped."""

    def removed() -> bool:
        try:
            path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    wait_until(removed, 20, f"the end of all processes in {path}")


def every(seconds: float, until_s: float) -> Generator[float, None, None]:
    """Waits of that many seconds until the monotonic clock says ``until_s``."""
    while time.monotonic() < until_s:
        yield seconds
