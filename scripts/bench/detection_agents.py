"""The agent's side of the detection benchmark: real commands, real disks, one fault after the other."""

import concurrent.futures
import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kjbod.errors import KjbodError
from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.faults.faults_error import FaultsError
from kjbod.ids import Uuid
from kjbod.metadata.follower import Committed
from kjbod.metadata.records import BrokerRegistrationChangeRecord
from scripts.bench.detection_plan import DIRECTORIES, Planned
from scripts.rig.cluster import Cluster, directory_id
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.preloaded import Preloaded
from scripts.rig.processes import ManagedProcess, Processes, WaitTimeoutError, wait_until

HELPER = 1
"""The broker to which leadership moves."""
PARTITIONS = 2 * DIRECTORIES
BUSY_PAUSE_MS = 5
PROBE_INTERVAL_MS = 1000
"""``kjbod.probe.interval.ms``, at its default; the phase of the fault is uniform over it."""
START_TIMEOUT_S = 60.0
DISKS_AT_ONCE = 4
WITHOUT_OVERRIDE = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)
"""Starts a program that permissions stop even when it runs as root, as they stop a service's own user."""
_STOP_TIMEOUT_S = 20.0
_TRACEFS = Path("/sys/kernel/tracing")
_WRITER = Path(__file__).with_name("detection_writer.py")


def make_disks(wanted: Sequence[tuple[Path, str, str]], size_bytes: int | None = None) -> list[RealDisk]:
    """A disk for each (mount point, file system, sub-directory), a few side by side; all or none."""
    disks: list[RealDisk] = []
    with concurrent.futures.ThreadPoolExecutor(DISKS_AT_ONCE) as pool:
        futures = [
            pool.submit(RealDisk, path, fstype=fstype, log_dir=sub, size_bytes=size_bytes)
            for path, fstype, sub in wanted
        ]
        try:
            disks += [future.result() for future in futures]
        except BaseException:
            for future in futures:
                if not future.cancel() and future.exception() is None:
                    future.result().close()
            raise
    return disks


def close_disks(disks: Sequence[RealDisk]) -> None:
    """Take disks away, whatever state they are in."""

    def close(disk: RealDisk) -> None:
        with contextlib.suppress(FaultsError):
            disk.set(FaultMode.OK)
        disk.close()

    with concurrent.futures.ThreadPoolExecutor(DISKS_AT_ONCE) as pool:
        for future in [pool.submit(close, disk) for disk in disks]:
            future.result()


class RecordWatch(ClusterWatch):
    """Follows a metadata log and keeps when each directory was recorded as offline."""

    def __init__(self, port: int, cluster_id: str) -> None:
        self._offline_at: dict[tuple[int, Uuid], float] = {}
        super().__init__(port, cluster_id)

    def _on_committed(self, committed: Committed) -> None:
        now = time.time()
        for _, record in committed.records:
            if isinstance(record, BrokerRegistrationChangeRecord) and record.log_dirs:
                before = self._image.brokers.get(record.broker_id)
                for directory in set(before.log_dirs if before else ()) - set(record.log_dirs):
                    self._offline_at.setdefault((record.broker_id, directory), now)
        super()._on_committed(committed)

    def offline_at(self, broker: int, directory: Uuid) -> float | None:
        """Moment at which this observer saw the record, in seconds of the wall clock; None while it has not."""
        return self._offline_at.get((broker, directory))


@dataclass(slots=True)
class Slot:
    """A log directory of an agent."""

    disk: RealDisk
    directory: Uuid
    broken: int | None = None
    """Log lines of the agent before the fault; None: it is well."""

    @property
    def path(self) -> str:
        return str(self.disk.log_dir)


def sub_directory(planned: Planned) -> str:
    """Log directories are a directory of the file system or, in every other round, its root."""
    at_root = planned.repetition % 2 and planned.cell.fault not in ("directory-deleted", "permissions")
    return "" if at_root else "kafka"


@dataclass(slots=True)
class Life:
    """An agent from its start to its end, and its disks."""

    broker: int
    agent: ManagedProcess
    slots: dict[Planned | int, Slot]
    """Of each run, and of the spares by number."""
    topics: list[str] = field(default_factory=list)
    judged: int = 0
    """Log lines that were searched for verdicts on healthy directories."""

    def verdicts(self, since: int, path: str) -> list[dict[str, Any]]:
        """Verdicts of the agent about a directory after so many log lines."""
        return [e for e in self.agent.events()[since:] if e.get("event") == "directory.verdict" and e["path"] == path]


class AgentRig(Cluster):
    """A controller, a helper agent, and one life of the watched agent after the other. Use it in a ``with`` block.

    ``preloaded``: begins them, where a test asks for verdicts and not for what a start costs.
    """

    def __init__(self, base: Path, logs: Path, preloaded: Preloaded | None = None) -> None:
        super().__init__(base, Processes(logs, preloaded=preloaded))
        self._loads = Processes(base / "loads")
        self._broker = HELPER
        self._topics = 0
        self._life: Life | None = None
        self._disks: Sequence[RealDisk] = ()
        self._watch: RecordWatch | None = None
        self._agents: list[ManagedProcess] = []
        self._tracing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take everything away; also after half a start, and twice."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._tracing.close)
            stack.callback(self.processes.close)
            stack.callback(self._end_disks)
            stack.callback(self._stop_agents)
            stack.callback(self._loads.close)
            if self._watch is not None:
                stack.callback(self._watch.close)
                self._watch = None

    def _stop_agents(self) -> None:
        """By SIGTERM: an agent that is killed leaves its trace instance in the kernel."""
        for agent in self._agents:
            if agent.running:
                agent.signal(signal.SIGTERM)
        for agent in self._agents:
            with contextlib.suppress(WaitTimeoutError):
                agent.wait(_STOP_TIMEOUT_S)
            agent.close()
            with contextlib.suppress(OSError):
                (_TRACEFS / "instances" / f"kjbod-{agent.pid}-0").rmdir()
        self._agents.clear()

    # set-up ----------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._tracing.enter_context(_tracefs())
        self.format_controller()
        self.start_controller(START_TIMEOUT_S)
        self._watch = RecordWatch(self.port, self.cluster_id)
        dirs = [self.base / "helper" / f"d{number}" for number in (1, 2)]
        self._start_agent(HELPER, dirs).wait_for_event("agent.unfenced", START_TIMEOUT_S)

    def _start_agent(self, broker: int, dirs: Sequence[Path], prefix: Sequence[str] = ()) -> ManagedProcess:
        home = self.base / f"b{broker}"
        own = {
            "metadata.log.dir": home / "metadata",
            "kjbod.state.dir": home / "state",
            "kjbod.host": f"bench-{broker}",
            "kjbod.placement.full.percent": 100,  # whatever else lies on this machine's disk
        }
        config = self.configure_broker(broker, dirs, own)
        self.format_broker(config)
        agent = self.start_agent(config, name=f"agent-{broker}", prefix=prefix)
        self._agents.append(agent)
        return agent

    @property
    def watch(self) -> RecordWatch:
        assert self._watch is not None
        return self._watch

    def begin(self, runs: Sequence[Planned], directories: int = DIRECTORIES) -> Life:
        """A new agent with a fresh disk for each run and spares up to ``directories``, leading partitions on each."""
        unprivileged = any(run.unprivileged for run in runs)
        self._broker += 1
        broker = self._broker
        base = self.base / "mnt" / f"b{broker}"
        wanted: list[tuple[Planned | int, str, str]] = [(run, run.cell.fstype, sub_directory(run)) for run in runs]
        wanted += [(number, "ext4", "kafka") for number in range(len(runs), directories)]
        disks = make_disks([(base / f"disk{n}", fstype, sub) for n, (_, fstype, sub) in enumerate(wanted)])
        self._disks = disks
        agent = self._start_agent(broker, [disk.log_dir for disk in disks], WITHOUT_OVERRIDE if unprivileged else ())
        slots = {key: Slot(disk, directory_id(disk.log_dir)) for (key, _, _), disk in zip(wanted, disks, strict=True)}
        life = self._life = Life(broker, agent, slots)
        agent.wait_for_event("agent.unfenced", START_TIMEOUT_S)
        self._lead_everywhere(life)
        # Each directory has been probed once, and what the start brought about is over.
        time.sleep(PROBE_INTERVAL_MS / 1000 + 0.2)
        return life

    def _lead_everywhere(self, life: Life) -> None:
        name = f"events-{life.broker}"
        self.create_topic(name, PARTITIONS, brokers=(life.broker, HELPER))
        life.topics.append(name)
        wanted = {(life.broker, slot.directory) for slot in life.slots.values()}
        wait_until(
            lambda: (
                self.watch.assigned_replicas(name) == 2 * PARTITIONS
                and wanted <= set(self.watch.leaders_by_directory())
            ),
            START_TIMEOUT_S,
            f"broker {life.broker} to lead a partition on each of its {len(wanted)} directories",
        )

    def end(self, life: Life) -> str | None:
        """Controlled shutdown, disks away, topics away. What was not as it should be, or None."""
        trouble = None
        try:
            code = life.agent.stop(_STOP_TIMEOUT_S) if life.agent.running else life.agent.exit_code
            trouble = f"the agent's exit code was {code}" if code else None
        except WaitTimeoutError:
            trouble = f"the agent did not stop in {_STOP_TIMEOUT_S:g} s"
        life.agent.close()
        self._end_disks()
        with contextlib.suppress(KjbodError, OSError):
            self.delete_topics(*life.topics)
        self._life = None
        return trouble

    def _end_disks(self) -> None:
        disks, self._disks = self._disks, ()
        close_disks(disks)
        if self._life is not None:
            shutil.rmtree(self.base / "mnt" / f"b{self._life.broker}", ignore_errors=True)

    # for runs --------------------------------------------------------------------------------------------------------

    def make_work(self, life: Life) -> None:
        """A new topic with a replica for every directory of the agent under test."""
        self._topics += 1
        name = f"work-{self._topics}"
        life.topics.append(name)
        self.create_topic(name, DIRECTORIES, brokers=(life.broker,))

    @contextlib.contextmanager
    def busy(self, slot: Slot) -> Iterator[None]:
        """A process that appends and syncs on the disk, for the ``with`` block."""
        command = [sys.executable, "-I", "-S", str(_WRITER), f"{slot.path}/kjbod-bench-writer", str(BUSY_PAUSE_MS)]
        writer = self._loads.start(command, name="writer")
        try:
            writer.wait_for_text("ready", START_TIMEOUT_S)
            yield
        finally:
            writer.close()


@contextlib.contextmanager
def _tracefs() -> Iterator[None]:
    """Mounted as on every host that systemd has booted; taken away again where it was not."""
    mounted = any(_TRACEFS.iterdir()) if _TRACEFS.is_dir() else True
    if not mounted:
        try:
            syscalls.mount("tracefs", _TRACEFS, "tracefs")
        except OSError:  # a kernel without it: the agent says that it has none
            mounted = True
    try:
        yield
    finally:
        if not mounted:
            syscalls.umount(_TRACEFS, syscalls.MNT_DETACH)
