"""Rig of the quorum benchmark: brokers on hosts of their own, under :mod:`scripts.bench.quorum_controllers`."""

import concurrent.futures
import contextlib
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.faults.model import Target
from kjbod.faults.revive import revive, works
from kjbod.ids import Uuid
from kjbod.metadata.records import PartitionChangeRecord
from scripts.bench.detection_agents import close_disks, make_disks
from scripts.bench.guard_watch import sleep_until
from scripts.bench.quorum_controllers import CONTROLLERS, HEAP_MIB, PORT, WAIT_S, AppendWatch, Controllers
from scripts.bench.quorum_network import Network
from scripts.bench.quorum_plan import (
    ACTORS,
    AGENT,
    ALONE,
    END_MS,
    FAILURE_TIMEOUT_MS,
    GUARDED,
    LASTING,
    LOOK_S,
    Actor,
    Outcome,
    Trial,
)
from scripts.rig.cluster import Cluster, directory_id, wait_until_guarding, wait_until_serving
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.processes import ManagedProcess, Processes, WaitTimeoutError, at_wall_s, kjbod_command, wait_until

HOST: Final = {AGENT: 5, GUARDED: 6, ALONE: 7, "helper": 8, "agent-helper": 9}
BROKER: Final = {AGENT: 1, GUARDED: 2, ALONE: 3, "helper": 4, "agent-helper": 5}
HELPER: Final = {AGENT: "agent-helper", GUARDED: "helper", ALONE: "helper"}
"""The broker with the other replicas of the partitions of each."""
FAULT: Final = {AGENT: FaultMode.EIO, GUARDED: FaultMode.HANG, ALONE: FaultMode.EIO}
DISKS: Final = 3
DISK_BYTES: Final = 320 << 20
PARTITIONS: Final = 6
_BROKER_PORT: Final = 9092
_STOP_S: Final = 4.0
_QUIET_S: Final = 1.0
_POLL_S: Final = 0.05
_NO_CHANGE: Final = -2
_NO_LEADER: Final = -1
_AT_ONCE: Final = {"kjbod.guard.fence.max.brokers": len(ACTORS)}
"""All three lose a disk at the same moment, which a guard takes for a fault of more than its host."""
_SMALL: Final = {"replica.high.watermark.checkpoint.interval.ms": 500}
"""A broker notices a dead disk when it writes a checkpoint, by default each 5 s."""


class QuorumRig(Cluster):
    """Controllers and brokers, and one trial after the other. Use it in a ``with`` block."""

    def __init__(self, kit: KafkaKit, base: Path, logs: Path) -> None:
        super().__init__(base, Processes(logs), kafka=kit)
        self._kit = kit
        self._stack = contextlib.ExitStack()
        self._disks: dict[str, list[RealDisk]] = {}
        self._configs: dict[str, Path] = {}
        self._running: dict[str, ManagedProcess] = {}
        self._guard: ManagedProcess | None = None
        self._number = 0
        self._starts = 0

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
        """Take everything away; also after half a start, and twice. First the disks answer."""
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: close_disks([disk for disks in self._disks.values() for disk in disks]))
            stack.callback(self.processes.close)
            stack.callback(self._stack.close)
            if self._guard is not None:
                stack.callback(self._guard.kill)
            for disks in self._disks.values():
                stack.callback(disks[-1].set, FaultMode.OK)

    # ---- set-up

    def _start(self) -> None:
        self._network = Network(self.processes)
        for host in (*CONTROLLERS, *HOST.values()):
            self._network.add(host)
        self._controllers = Controllers(self, self._kit, self._network)
        self._controllers.start()
        self._watch = self._stack.enter_context(
            contextlib.closing(AppendWatch(self.cluster_id, self._controllers.servers))
        )
        mounts = self.base / "mnt"
        for name in ACTORS:
            wanted = [(mounts / name / f"d{n}", "ext4", "kafka") for n in range(1, DISKS + 1)]
            self._disks[name] = make_disks(wanted, DISK_BYTES)
        for name in HOST:
            self._configure(name)
            self._launch(name)
        self._ids = {name: [directory_id(disk.log_dir) for disk in disks] for name, disks in self._disks.items()}
        for name in HOST:
            self._await_serving(name)

    def _configure(self, name: str) -> None:
        home, address = self.base / name, self._network.address(HOST[name])
        dirs = [disk.log_dir for disk in self._disks.get(name, ())] or [home / "d1", home / "d2"]
        own = {
            "controller.quorum.bootstrap.servers": ",".join(f"{host}:{PORT}" for host, _ in self._controllers.servers),
            "listeners": f"PLAINTEXT://{address}:{_BROKER_PORT}",
            "metadata.log.dir": home / "metadata",
            "log.dir.failure.timeout.ms": FAILURE_TIMEOUT_MS,
            **_SMALL,
        }
        if AGENT in name:
            own |= {"kjbod.state.dir": home / "state", "kjbod.host": name}
        config = self.base / f"{name}.properties"
        self._configs[name] = self.configure_broker(BROKER[name], dirs, own, config=config)
        self.format_broker(config)

    def _launch(self, name: str) -> None:
        enter = self._network.enter(HOST[name])
        self._starts += 1
        unique = f"{name}-{self._starts}"
        if AGENT in name:
            self._running[name] = self.start_agent(self._configs[name], name=unique, prefix=enter)
        else:
            self._running[name] = self.launch_broker(
                self._kit, self._configs[name], name=unique, prefix=enter, heap_mib=HEAP_MIB
            )

    def _await_serving(self, name: str) -> None:
        if AGENT in name:
            self._running[name].wait_for_event("agent.unfenced", WAIT_S)
        else:
            wait_until_serving(self._running[name], WAIT_S)
        wait_until(lambda: BROKER[name] in self._watch.unfenced(), WAIT_S, f"{name}, unfenced")

    def _start_guard(self) -> None:
        """Beside the broker that has one; a new one, which knows nothing of the trials before."""
        state = self.base / f"guard-{self._number}"
        state.mkdir()
        file = state / "guard.properties"
        file.write_text(render_properties({"kjbod.state.dir": state, "kjbod.host": GUARDED, **_AT_ONCE}))
        command = [kjbod_command(), "guard", "run", "--act", "-c", str(self._configs[GUARDED])]
        self._guard = self.processes.start(
            [*self._network.enter(HOST[GUARDED]), *command, "--guard-config", str(file)], name=f"guard-{self._number}"
        )
        wait_until_guarding(self._guard)

    # ---- a trial

    def measure(self, trial: Trial, offset_ms: int) -> Outcome:
        """Let it happen, look on, and mend everything."""
        self._number += 1
        outcome = Outcome(trial, offset_ms=offset_ms, actors={name: Actor() for name in ACTORS})
        active = self._controllers.wait_for_active()
        self.host, self.port = self._network.address(active), PORT
        topics = self._make_topics()
        self._start_guard()
        time.sleep(_QUIET_S)
        led = {name: self._watch.led_on(BROKER[name], self._ids[name][-1]) for name in ACTORS}
        due_s = time.time() + max(0, -offset_ms) / 1000
        try:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                happening = pool.submit(self._happen, trial.case, active, due_s)
                fault_s = self._break_disks(due_s + offset_ms / 1000)
                self._look_on(trial, outcome, fault_s)
                happened_s = happening.result()
            self._note(outcome, fault_s, happened_s, led)
        finally:
            self._mend(active)
        self.host = self._network.address(self._controllers.wait_for_active())
        self.delete_topics(*topics)
        return outcome

    def _make_topics(self) -> list[str]:
        """A topic for each, that it leads; returns when each replica has its directory."""
        topics = {name: f"{name}-{self._number}" for name in ACTORS}
        for name, topic in topics.items():
            self.create_topic(topic, PARTITIONS, brokers=(BROKER[name], BROKER[HELPER[name]]))
        wait_until(
            lambda: all(self._watch.assigned_replicas(topic) == 2 * PARTITIONS for topic in topics.values()),
            WAIT_S,
            "directories of all replicas",
        )
        return list(topics.values())

    def _happen(self, case: str, active: int, at_s: float) -> float:
        """Do to the active controller what the case says, at this moment; the time when it was done, s since 1970."""
        brokers = [HOST[name] for name in ACTORS]
        controllers, lose = self._controllers, self._network.lose
        sleep_until(at_s * 1000)
        if case in ("replaced", "added-killed"):
            controllers.add_voter()
        if case == "replaced":
            controllers.remove_voter(active)
        elif case in ("killed", "added-killed"):
            controllers.signal(active, signal.SIGKILL)
        elif case == "stopped":
            controllers.signal(active, signal.SIGSTOP)
        if case in ("deaf", "cut-off"):
            lose(None, active)
        if case in ("mute", "cut-off"):
            lose(active, None)
        for broker in brokers if case in LASTING else ():
            lose(broker, active)
            if case == "unreachable":
                lose(active, broker)
        return time.time()

    def _break_disks(self, at_s: float) -> float:
        """Break one disk of each; the moment."""
        sleep_until(at_s * 1000)
        moment = time.time()
        for name in ACTORS:
            self._disks[name][-1].set(FAULT[name])
        return moment

    def _look_on(self, trial: Trial, outcome: Outcome, fault_s: float) -> None:
        """Wait until all are recorded or have ended, and a little longer, and note the ends of processes."""
        limit_s = (FAILURE_TIMEOUT_MS + 2 * END_MS) / 1000 if trial.case in LASTING else LOOK_S
        settled_s: float | None = None
        while time.time() < fault_s + limit_s and (settled_s is None or time.time() < settled_s + _QUIET_S):
            for name, actor in outcome.actors.items():
                if actor.ended_ms is None and not self._running[name].running:
                    actor.ended_ms = (time.time() - fault_s) * 1000
                    actor.exit_code = self._running[name].exit_code
            if settled_s is None and all(
                actor.ended_ms is not None or self._recorded(name, self._ids[name][-1], fault_s) is not None
                for name, actor in outcome.actors.items()
            ):
                settled_s = time.time()
            time.sleep(_POLL_S)

    def _recorded(self, name: str, directory: Uuid, since_s: float) -> float | None:
        return self._watch.recorded_offline(BROKER[name], directory, since_s)

    def _note(
        self, outcome: Outcome, fault_s: float, happened_s: float, led: Mapping[str, Sequence[tuple[Uuid, int]]]
    ) -> None:
        since = [at for at in self._watch.epochs.values() if at >= min(fault_s, happened_s)]
        outcome.active_ms = (min(since) - happened_s) * 1000 if since else None
        for name, actor in outcome.actors.items():
            recorded = self._recorded(name, self._ids[name][-1], fault_s)
            actor.recorded_ms = None if recorded is None else (recorded - fault_s) * 1000
            actor.moved_ms = self._moved(name, led[name], fault_s)
            actor.verdict_ms = self._verdict(name, fault_s)
            if name == GUARDED and actor.ended_ms is None:
                actor.ended_ms, actor.exit_code = self._killed(fault_s)
            healthy = self._ids[name][:-1]
            actor.wrong = sum(self._recorded(name, directory, fault_s) is not None for directory in healthy)

    def _moved(self, name: str, led: Sequence[tuple[Uuid, int]], fault_s: float) -> float | None:
        moved: dict[tuple[Uuid, int], float] = {}
        for seen in self._watch.committed_since(fault_s):
            record = seen.record
            if isinstance(record, PartitionChangeRecord) and record.leader not in (
                _NO_CHANGE,
                _NO_LEADER,
                BROKER[name],
            ):
                moved.setdefault((record.topic_id, record.partition_id), (seen.seen_at - fault_s) * 1000)
        moments = [moved.get(partition) for partition in led]
        return max((at for at in moments if at is not None), default=None) if None not in moments else None

    def _verdict(self, name: str, fault_s: float) -> float | None:
        """Verdict of the agent or of the guard."""
        judge = self._guard if name == GUARDED else self._running[name] if name == AGENT else None
        path = str(self._disks[name][-1].log_dir)
        lines = [] if judge is None else judge.events("directory.verdict", path=path, state="failed")
        return next((at for line in lines if (at := (at_wall_s(line) - fault_s) * 1000) >= 0), None)

    def _killed(self, fault_s: float) -> tuple[float | None, int | None]:
        """Moment at which the guard killed its broker, which the kernel may keep for as long as the disk hangs, and
        its exit code; None: it did not."""
        lines = [] if self._guard is None else self._guard.events("guard.done", means="kill", outcome="done")
        return next((((at_wall_s(line) - fault_s) * 1000, -signal.SIGKILL) for line in lines), (None, None))

    # ---- afterwards

    def _mend(self, active: int) -> None:
        """All disks and links work, all controllers follow, three vote, all brokers serve."""
        if self._guard is not None:
            self._guard.kill()
        self._network.heal()
        for name in ACTORS:
            self._disks[name][-1].set(FaultMode.OK)
        self._controllers.restore(active)
        for name in ACTORS:
            self._end(self._running[name])
            target = Target.of(self._disks[name][-1])
            if not works(target):
                revive(target)
            self._launch(name)
        for name in ACTORS:
            self._await_serving(name)

    def _end(self, process: ManagedProcess) -> None:
        """By SIGTERM, or else by SIGKILL."""
        with contextlib.suppress(WaitTimeoutError):
            if process.running:
                process.stop(_STOP_S)
        if process.running:
            process.kill()
