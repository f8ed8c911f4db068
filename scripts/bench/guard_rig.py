"""The cluster of the guard benchmark: real Kafka brokers, one of them on real disks, and one trial after the other.

Broker 1 has three real disks, ext4, XFS and ext4; the first of the file system that a trial wants is the one that
breaks. Its metadata log lies elsewhere. The other brokers have plain directories. Each leads a third of every topic.
"""

import concurrent.futures
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kjbod.faults.disks import RealDisk
from kjbod.faults.model import Target
from kjbod.faults.revive import revive, works
from kjbod.ids import Uuid
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    Record,
    RegisterBrokerRecord,
)
from scripts.bench.detection_agents import make_disks
from scripts.bench.guard_case import Case, has_ended
from scripts.bench.guard_cluster import BROKERS, HEAP_MIB, RECORD_PAUSE_MS, BrokenCluster
from scripts.bench.guard_plan import Outcome, Trial
from scripts.bench.guard_threads import blocked_frames
from scripts.bench.guard_watch import applied_offset, look, next_checkpoint, sleep_until
from scripts.rig.checkpoints import CHECKPOINT_INTERVAL_MS, CHECKPOINT_NAME, wait_until_written
from scripts.rig.cluster import NOTHING, Properties, directory_id, in_turn, wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.pauses import CLASSES, class_of, longest_pause, worst_by_class
from scripts.rig.processes import ManagedProcess, wait_until
from scripts.rig.rig_error import RigError
from scripts.rig.stuck_threads import stuck_threads

VICTIM: Final = 1
PARTITIONS: Final = 12
WARM_UP_S: Final = 2.0
DISK_BYTES: Final = 320 << 20
_PLACEMENTS_MAX: Final = 5
_WAIT_S: Final = 30.0
_STOP_S: Final = 8.0
_END_S: Final = 30.0
_CANARY_TIMEOUT_S: Final = 2.0
_MARGIN_S: Final = 0.15
_POLL_S: Final = 0.02
_SECOND: Final = "second"
_OF_CLIENTS: Final = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 6,
}
"""Topics for consumer groups and transactions as a cluster of three has them, with fewer partitions."""
_DISCONNECTED: Final = f"Connection to {VICTIM} was disconnected before the response was read"


@dataclass(frozen=True, slots=True)
class Timing:
    """Moments of a trial.

    Attributes:
        act_ms: from the fault to what is done: the time of a verdict.
        watch_ms: from then on.
    """

    act_ms: int = 2700
    watch_ms: int = 8000


class GuardRig(BrokenCluster):
    """A controller, three brokers and their clients. Use it in a ``with`` block."""

    def __init__(self, kit: KafkaKit, base: Path, logs: Path, timing: Timing, properties: Properties = NOTHING) -> None:
        super().__init__(kit, base, logs)
        self._timing = timing
        self._properties = properties
        self._case: Case | None = None
        self._canaries = 0

    # ---- set-up

    def _start(self) -> None:
        mounts = self.base / "mnt"
        wanted = [(mounts / f"d{n}", fs, "kafka") for n, fs in enumerate(("ext4", "xfs", "ext4"), 1)]
        self._all_disks = make_disks(wanted, DISK_BYTES)
        self.format_controller(by_kafka=True)
        self.start_controller(_WAIT_S)
        self._start_watch()
        for broker in BROKERS:
            self._configure(broker)
            self._launch(broker)
        for broker in BROKERS:
            self._await_serving(broker)
        self._start_clients()

    def _end_faults(self) -> None:
        if self._case is not None:
            self._case.mend()

    def _dirs(self, broker: int) -> list[Path]:
        if broker == VICTIM:
            return [path for disk in self._all_disks for path in self._dirs_on(disk)]
        return [self.base / f"b{broker}" / f"d{number}" for number in (1, 2, 3)]

    def _dirs_on(self, disk: RealDisk) -> list[Path]:
        """Log directories of broker 1 on a disk: the last one has two."""
        second = [disk.mount_point / _SECOND] if disk is self._all_disks[-1] else []
        return [disk.log_dir, *second]

    def _configure(self, broker: int) -> None:
        own = {
            "metadata.log.dir": self.base / f"b{broker}" / "metadata",
            "min.insync.replicas": 2,
            **_OF_CLIENTS,
            **self._properties,
        }
        self._configs[broker] = self.configure_broker(broker, self._dirs(broker), own, port=self._ports[broker])
        self.format_broker(self._configs[broker], again=True)

    def _launch(self, broker: int) -> None:
        self._brokers[broker] = self.launch_broker(
            self._kit, self._configs[broker], name=f"broker-{broker}", heap_mib=HEAP_MIB
        )

    def _await_serving(self, broker: int) -> None:
        wait_until_serving(self._brokers[broker], _WAIT_S)
        wait_until(lambda: broker in self.watch.unfenced(), _WAIT_S, f"broker {broker}, unfenced")

    # ---- a trial

    def run(self, trial: Trial) -> Outcome:
        """Break the disk, do what the trial says, watch, and mend everything."""
        self._number += 1
        outcome = Outcome(trial)
        topic = f"guard-{self._number}"
        disk = next(disk for disk in self._all_disks if disk.fstype == trial.fstype)
        classes = self._place(topic, disk)
        case = self._case = self._make_case(topic, disk, classes)
        try:
            self.clients.start(topic, PARTITIONS, RECORD_PAUSE_MS)
            case.prepare()
            time.sleep(WARM_UP_S)
            self._conduct(case, outcome, classes)
        finally:
            case.mend()
        self._repair(case, outcome.broker)
        self.clients.stop()
        outcome.acknowledged, outcome.lost = self.clients.verify()
        self.delete_topics(topic)
        self._case = None
        return outcome

    def _conduct(self, case: Case, outcome: Outcome, classes: dict[int, str]) -> None:
        trial, timing = outcome.trial, self._timing
        checkpoint = next(d.log_dir for d in self._all_disks if d is not case.disk) / CHECKPOINT_NAME
        self._await_phase(checkpoint, trial.phase_ms, case.begun_s)
        fault_ms = case.break_disk(trial.fault)
        since = fault_ms / 1000
        logs = {broker: len(self._brokers[broker].stderr()) for broker in BROKERS if broker != VICTIM}
        case.recorded_ms = lambda: self._offline_at(case.directory, since)
        moments = {"fault + 1 s": 1000, "act": timing.act_ms - 20,
                   "act + 1 s": timing.act_ms + 1000, "act + 5 s": timing.act_ms + 5000}  # fmt: skip
        end_ms = fault_ms + timing.act_ms + timing.watch_ms
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            looking = pool.submit(look, case.pid, fault_ms, moments, end_ms)
            seeing = pool.submit(next_checkpoint, checkpoint, fault_ms, end_ms)
            sleep_until(fault_ms + timing.act_ms)
            case.act(trial.means)
            if trial.back_ms:
                time.sleep(trial.back_ms / 1000)
                case.bring_back()
            sleep_until(end_ms)
            outcome.stuck = looking.result()
            outcome.checkpoint_ms = seeing.result()
        self._measure(case, outcome, classes, fault_ms, end_ms)
        outcome.disconnected = sum(self._brokers[b].stderr()[seen:].count(_DISCONNECTED) for b, seen in logs.items())
        outcome.broker, outcome.applied = self._look_at_broker(case)
        if outcome.broker != "ended" and "kill" not in case.acts:
            dump = self._logs / f"threads-{self._number}-{trial.means}-{trial.fault}.txt"
            outcome.frames = blocked_frames(self._kit.java, case.pid, dump)
        outcome.records = self._records(since, fault_ms)

    def _measure(self, case: Case, outcome: Outcome, classes: dict[int, str], fault_ms: float, end_ms: float) -> None:
        clients = self.clients
        for target, moments in ((outcome.pauses, clients.acks), (outcome.consumer_pauses, clients.reads)):
            pauses = {p: longest_pause(sorted(seen), fault_ms, end_ms) for p, seen in moments.items()}
            target.update(worst_by_class(pauses, classes))
        for partition, _ in clients.errors:
            outcome.errors[classes[partition]] = outcome.errors.get(classes[partition], 0) + 1
        outcome.acts = {name: moment - fault_ms for name, moment in case.acts.items()}
        recorded = case.recorded_ms()
        outcome.acts["recorded"] = None if recorded is None else recorded - fault_ms

    def _place(self, topic: str, disk: RealDisk, configs: Properties = NOTHING) -> dict[int, str]:
        """A new topic that each broker leads a third of; the class of each partition. Every class has some."""
        for _ in range(_PLACEMENTS_MAX):
            self._create(topic, PARTITIONS, configs)
            there = (path for log_dir in self._dirs_on(disk) for path in log_dir.glob(f"{topic}-*"))
            numbers = (path.name.rpartition("-")[2] for path in there)
            on_disk = {int(number) for number in numbers if number.isdecimal()}  # not what is being deleted
            classes = {p: class_of(in_turn(BROKERS, p)[0] == VICTIM, p in on_disk) for p in range(PARTITIONS)}
            if set(classes.values()) == set(CLASSES):
                return classes
            self.delete_topics(topic)
        raise RigError(f"broker {VICTIM} did not lead and follow on each of its disks in {_PLACEMENTS_MAX} topics")

    def _create(self, topic: str, partitions: int, configs: Properties = NOTHING) -> None:
        """A topic that each broker leads a third of; returns when each replica has its directory."""
        self.create_topic(topic, partitions, brokers=BROKERS, in_turns=True, configs=configs)
        wait_until(lambda: self.watch.assigned_replicas(topic) == 3 * partitions, _WAIT_S, f"replicas of {topic}")

    def _make_case(self, topic: str, disk: RealDisk, classes: dict[int, str]) -> Case:
        assert self.controller is not None
        return Case(
            broker=VICTIM,
            port=self._ports[VICTIM],
            controller_port=self.port,
            pid=self._brokers[VICTIM].pid,
            epoch=self.watch.broker_epoch(VICTIM),
            disk=disk,
            directory=directory_id(disk.log_dir),
            topic=topic,
            on_disk={p: in_turn(BROKERS, p) for p, name in classes.items() if "bad" in name},
            controller_pid=self.controller.pid,
            restart=self._restart,
            recorded_ms=lambda: None,
        )

    def _restart(self) -> bool:
        """Start broker 1 again; whether it serves within the patience of a person."""
        before_s = time.time()
        self._launch(VICTIM)
        deadline = time.monotonic() + _WAIT_S
        while time.monotonic() < deadline and self._brokers[VICTIM].running:
            if any(unfences(seen.record) for seen in self.watch.committed_since(before_s)):
                return True
            time.sleep(_POLL_S)
        return False

    def _await_phase(self, checkpoint: Path, phase_ms: int, since_s: float) -> None:
        """Sleep until the broker's next checkpoint is so far away."""
        # One of before may be from another process, or from the broker's start.
        last_s = wait_until_written(checkpoint, since_s, _WAIT_S)
        due_s = last_s - phase_ms / 1000
        while due_s < time.time() + _MARGIN_S:
            due_s += CHECKPOINT_INTERVAL_MS / 1000
        sleep_until(due_s * 1000)

    # ---- what the cluster says

    def _offline_at(self, directory: Uuid, since_s: float) -> float | None:
        seen_s = self.watch.recorded_offline(VICTIM, directory, since_s)
        return None if seen_s is None else seen_s * 1000

    def _records(self, since_s: float, fault_ms: float) -> list[str]:
        found: list[str] = []
        for seen in self.watch.committed_since(since_s):
            record, at = seen.record, f"{seen.seen_at * 1000 - fault_ms:.0f}"
            if isinstance(record, BrokerRegistrationChangeRecord) and record.broker_id == VICTIM:
                what = {1: "fenced", -1: "unfenced", 0: "changed"}[record.fenced]
                found.append(f"{at} {what}{f' {len(record.log_dirs)} directories' if record.log_dirs else ''}")
            elif isinstance(record, RegisterBrokerRecord) and record.broker_id == VICTIM:
                found.append(f"{at} registered")
            elif isinstance(record, PartitionChangeRecord) and (record.leader != -2 or record.isr is not None):
                found.append(f"{at} partition {record.partition_id} leader {record.leader} isr {record.isr}")
        return found

    def _look_at_broker(self, case: Case) -> tuple[str, tuple[int | None, int] | None]:
        """Whether the broker still applies metadata: it is given a new topic to learn of. See :class:`Outcome`."""
        if has_ended(case.pid):
            return "ended", None
        if "kill" in case.acts:
            return "zombie", None
        # A broker shows an offset before it has applied what it stands for: the first one may be where it gets stuck.
        end, applied = self._try_canary(case)
        return self._try_canary(case) if end == "kept" else (end, applied)

    def _try_canary(self, case: Case) -> tuple[str, tuple[int | None, int]]:
        self._canaries += 1
        before_s = time.time()
        self.create_topic(f"canary-{self._canaries}", 1, brokers=(2,))
        wait_until(lambda: self.watch.committed_since(before_s), _WAIT_S, "the canary's record")
        wanted = self.watch.committed_since(before_s)[-1].offset
        deadline = time.monotonic() + _CANARY_TIMEOUT_S
        applied: int | None = None
        while time.monotonic() < deadline:
            applied = applied_offset(case.port)
            if applied is not None and applied >= wanted:
                return "kept", (applied, wanted)
            time.sleep(_POLL_S)
        return "silent" if applied is None else "crippled", (applied, wanted)

    # ---- back to a healthy cluster

    def _repair(self, case: Case, broker: str) -> None:
        """The disk answers already. Unless broker 1 is as well as before, it and its file system start anew."""
        target = Target.of(case.disk)
        if broker == "kept" and self._is_well(case, target):
            return
        self._end_victim()
        if not works(target):
            revive(target)
        self._launch(VICTIM)
        self._await_serving(VICTIM)

    def _end_victim(self) -> None:
        """A controlled shutdown of broker 1, or SIGKILL where that takes long. Its disk must answer."""
        broker = self._brokers[VICTIM]
        broker.signal(signal.SIGTERM)
        if not _ends(broker, _STOP_S):
            broker.signal(signal.SIGKILL)
            if not _ends(broker, _END_S):
                raise RigError(f"broker {VICTIM} does not end: {stuck_threads(broker.pid)}")

    def _is_well(self, case: Case, target: Target) -> bool:
        registered = self.watch.registered_dir(VICTIM, case.directory) and VICTIM in self.watch.unfenced()
        return registered and works(target) and self.watch.in_isr(VICTIM, case.directory) > 0 and not case.acts


def unfences(record: Record) -> bool:
    """Whether it says that the broker with the bad disk serves."""
    return isinstance(record, BrokerRegistrationChangeRecord) and record.broker_id == VICTIM and record.fenced == -1


def _ends(process: ManagedProcess, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.running and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return not process.running
