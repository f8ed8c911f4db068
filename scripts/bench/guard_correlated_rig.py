"""The cluster of the correlated stalls: three real brokers, each with a disk that can stand still, and their guards."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kjbod.faults import catalog, syscalls
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Injection, Target
from kjbod.faults.revive import revive, works
from scripts.bench.detection_agents import make_disks
from scripts.bench.guard_cluster import BROKERS, HEAP_MIB, RECORD_PAUSE_MS, BrokenCluster
from scripts.bench.guard_correlated_plan import GUARD, SETTLE_S, STOPPED, Act, Outcome, Trial
from scripts.bench.guard_watch import sleep_until
from scripts.rig.cluster import NOTHING, Properties, directory_id, wait_until_guarding, wait_until_serving
from scripts.rig.java_clients import now_ms
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.pauses import longest_pause
from scripts.rig.processes import ManagedProcess, WaitTimeoutError, at_wall_s, wait_until
from scripts.rig.rig_error import RigError

PARTITIONS: Final = 8
DISK_BYTES: Final = 320 << 20
WARM_UP_S: Final = 2.0
SERVED_S: Final = 3.0
"""A partition without a record for so long at the end is not served."""
BUDGET_S: Final = 62.0
"""After a broker has lost a directory the guards of others wait for a minute (``kjbod.guard.cut.max.brokers``)."""
_BAD: Final = {"ext4": 0, "xfs": 1}
"""Which disk of each broker stands still, by file system."""
_WAIT_S: Final = 60.0
_PLACEMENTS_MAX: Final = 12
_STOP_S: Final = 8.0
_GUARD_STOP_S: Final = 3.0
_NO_CHANGE: Final = ("suspect", "trust")


class CorrelatedRig(BrokenCluster):
    """A controller, three brokers with two real disks each, their clients and guards. Use it in a ``with`` block.

    Args:
        kit: Apache Kafka.
        base: for all files.
        logs: of all processes.
        guard_properties: further lines of the guards' files.
        settle_s: from the end of the last stall to the look at what is served.
    """

    def __init__(
        self,
        kit: KafkaKit,
        base: Path,
        logs: Path,
        guard_properties: Properties = NOTHING,
        settle_s: float = SETTLE_S,
    ) -> None:
        super().__init__(kit, base, logs)
        self._settle_s = settle_s
        self._guard_properties = guard_properties
        self._guards: dict[int, ManagedProcess] = {}
        self._disks: dict[int, list[RealDisk]] = {}
        self._broken: list[Injection] = []
        self._acted_s = -BUDGET_S

    # ---- set-up

    def _start(self) -> None:
        mounts = self.base / "mnt"
        wanted = [(mounts / f"b{broker}{fs}", fs, "kafka") for broker in BROKERS for fs in _BAD]
        disks = self._all_disks = make_disks(wanted, DISK_BYTES)
        self._disks = {broker: disks[len(_BAD) * at :][: len(_BAD)] for at, broker in enumerate(BROKERS)}
        self.format_controller(by_kafka=True)
        self.start_controller(_WAIT_S)
        self._start_watch()
        for broker in BROKERS:
            own = {"metadata.log.dir": self.base / f"b{broker}" / "metadata", "replica.fetch.backoff.ms": 100}
            paths = [disk.log_dir for disk in self._disks[broker]]
            self._configs[broker] = self.configure_broker(broker, paths, own, port=self._ports[broker])
            self.format_broker(self._configs[broker], again=True)
            self._launch(broker)
        self._await_serving(BROKERS)
        self._start_clients()

    def _launch(self, broker: int) -> None:
        self._brokers[broker] = self.launch_broker(
            self._kit, self._configs[broker], name=f"broker-{broker}", heap_mib=HEAP_MIB
        )

    def _await_serving(self, brokers: Sequence[int]) -> None:
        for broker in brokers:
            wait_until_serving(self._brokers[broker], _WAIT_S)
        wait_until(lambda: self.watch.unfenced() >= set(brokers), _WAIT_S, f"brokers {brokers}, unfenced")

    # ---- a trial

    def measure(self, trial: Trial) -> Outcome:
        """Have the disks stand still under a form, look on, and mend everything."""
        self._number += 1
        outcome, topic = Outcome(trial), f"correlated-{self._number}"
        self._place(topic, trial)
        try:
            self.clients.start(topic, PARTITIONS, RECORD_PAUSE_MS)
            if trial.form == GUARD:
                self._start_guards()
            time.sleep(WARM_UP_S)
            self._look_on(trial, outcome)
        finally:
            touched = self._mend(outcome)
        self._await_serving(touched)
        self.clients.stop()
        outcome.acknowledged, outcome.lost = self.clients.verify()
        self.delete_topics(topic)
        return outcome

    def _place(self, topic: str, trial: Trial) -> None:
        """Make the topic; some partitions have all their replicas on disks that stand still, and some have not."""
        brokers, replicas = BROKERS[: trial.brokers], PARTITIONS * trial.brokers
        configs = {"min.insync.replicas": trial.brokers - 1}
        for attempt in range(_PLACEMENTS_MAX):
            self.create_topic(topic, PARTITIONS, brokers=brokers, in_turns=True, configs=configs)
            wait_until(lambda: self.watch.assigned_replicas(topic) == replicas, _WAIT_S, f"replicas of {topic}")
            if 0 < len(self._aligned(topic, trial)) < PARTITIONS:
                return
            self.delete_topics(topic)
            # Kafka takes the directory with the fewest replicas: one more shifts the turns of a broker.
            self.create_topic(f"{topic}-shift-{attempt}", 1, brokers=(brokers[attempt % len(brokers)],))
        raise RigError(f"no topic of {_PLACEMENTS_MAX} had all replicas of a partition on the disks that stand still")

    def _aligned(self, topic: str, trial: Trial) -> set[str]:
        """Return the directories of partitions that have all their replicas on disks that stand still."""
        there = [self._disks[broker][_BAD[trial.fstype]].log_dir for broker in BROKERS[: trial.brokers]]
        found = [
            {path.name for path in each.glob(f"{topic}-*") if path.name[len(topic) + 1 :].isdigit()} for each in there
        ]
        return set.intersection(*found)

    def _look_on(self, trial: Trial, outcome: Outcome) -> None:
        began_ms = now_ms()
        stalls = [threading.Thread(target=self._stall, args=(trial, at, began_ms)) for at in range(trial.brokers)]
        if trial.controller == STOPPED:
            stalls.append(threading.Thread(target=self._stop_controller_for, args=(trial.stall_s,)))
        for stall in stalls:
            stall.start()
        for stall in stalls:
            stall.join()
        end_ms = began_ms + (trial.stalls_s + self._settle_s) * 1000
        sleep_until(end_ms)
        acks = self.clients.acks
        outcome.pause = max(
            (longest_pause(sorted(seen), began_ms, end_ms) for seen in acks.values()), key=lambda one: one.ms
        )
        outcome.not_served = sorted(p for p, seen in acks.items() if max(seen) < end_ms - SERVED_S * 1000)
        outcome.ended = [broker for broker in BROKERS if not self._brokers[broker].running]
        outcome.shrunk = self._shrunk(trial, began_ms)
        for broker, guard in self._guards.items():
            if not guard.running:
                raise RigError(f"guard {broker} has ended with {guard.exit_code}:\n{guard.tail()}")
            for line in guard.events("guard.does"):
                outcome.acts.append(Act(broker, at_wall_s(line) * 1000 - began_ms, str(line["means"])))

    def _stall(self, trial: Trial, at: int, began_ms: float) -> None:
        """Let a disk stand still for a while."""
        disk = self._disks[BROKERS[at]][_BAD[trial.fstype]]
        starts_ms = began_ms + at * trial.skew_ms
        sleep_until(starts_ms)
        injection = catalog.inject("hang", Target.of(disk), state_dir=self.base / "faults", options={})
        self._broken.append(injection)
        sleep_until(starts_ms + trial.stall_s * 1000)
        disk.set(FaultMode.OK)

    def _stop_controller_for(self, seconds: int) -> None:
        assert self.controller is not None
        os.kill(self.controller.pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(self.controller.pid, signal.SIGCONT)

    def _shrunk(self, trial: Trial, began_ms: float) -> int:
        """Number of partitions that have fewer replicas than they had."""
        lists: dict[int, int] = {}
        for seen in self.watch.committed_since(began_ms / 1000):
            replicas = getattr(seen.record, "replicas", None)
            if replicas is not None and hasattr(seen.record, "partition_id"):
                lists[seen.record.partition_id] = len(replicas)
        return sum(1 for count in lists.values() if count < trial.brokers)

    # ---- the guards

    def _start_guards(self) -> None:
        """New ones, which know nothing of the trials before; the brokers have recovered from these."""
        time.sleep(max(0.0, self._acted_s + BUDGET_S - time.monotonic()))
        for broker in BROKERS:
            state = self.base / f"guard-{broker}-{self._number}"
            state.mkdir()
            own = {"kjbod.state.dir": state, "kjbod.host": f"broker-{broker}", **self._guard_properties}
            file = state / "guard.properties"
            file.write_text(render_properties(own))
            arguments = ("guard", "run", "--act", "-c", str(self._configs[broker]), "--guard-config", str(file))
            self._guards[broker] = self.processes.kjbod(*arguments, name=f"guard-{broker}")
        for guard in self._guards.values():
            wait_until_guarding(guard, _WAIT_S)

    # ---- back to a healthy cluster

    def _end_faults(self) -> None:
        """Have all disks answer, and the controller."""
        if self.controller is not None and self.controller.running:
            os.kill(self.controller.pid, signal.SIGCONT)
        for disk in self._all_disks:
            with contextlib.suppress(FaultsError):
                disk.set(FaultMode.OK)

    def _mend(self, outcome: Outcome) -> list[int]:
        """Have everything as it was; returns the brokers that start anew."""
        self._end_faults()
        for guard in self._guards.values():
            try:
                guard.stop(_GUARD_STOP_S)
            except WaitTimeoutError:
                guard.kill()
        self._guards.clear()
        acted = {act.broker for act in outcome.acts if act.means not in _NO_CHANGE}
        if acted:
            self._acted_s = time.monotonic()
        touched = [broker for broker in BROKERS if broker in acted or self._is_touched(broker)]
        for broker in touched:
            self._end(broker)
        for injection in self._broken:
            catalog.undo(injection)
        self._broken.clear()
        for broker in touched:
            for disk in self._disks[broker]:
                if not works(Target.of(disk)):
                    revive(Target.of(disk))
            self._launch(broker)
        return touched

    def _is_touched(self, broker: int) -> bool:
        ids = [directory_id(disk.log_dir) for disk in self._disks[broker] if works(Target.of(disk))]
        whole = len(ids) == len(_BAD) and all(self.watch.registered_dir(broker, one) for one in ids)
        return not whole or not self._brokers[broker].running or broker not in self.watch.unfenced()

    def _end(self, broker: int) -> None:
        """End a broker whose disks answer, and take away what its guard has put around it."""
        process = self._brokers[broker]
        if process.running:
            process.signal(signal.SIGTERM)
            with contextlib.suppress(WaitTimeoutError):
                wait_until(lambda: not process.running, _STOP_S, f"the end of broker {broker}")
            process.kill()
        for disk in self._disks[broker]:
            with contextlib.suppress(OSError):
                syscalls.umount(disk.log_dir, syscalls.MNT_DETACH)  # a mask
        command = ["nft", "delete", "table", "inet", f"kjbod_guard_{broker}"]
        subprocess.run(command, capture_output=True, check=False)
