"""The cluster of the guard's reach: that of the guard benchmark, with a guard beside the broker with the bad disk."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from kjbod.faults import catalog, syscalls
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Injection, Target
from kjbod.faults.revive import revive, works
from kjbod.metadata.records import PartitionChangeRecord
from scripts.bench.agent_cost_usage import Usage, descendants, usage_of
from scripts.bench.guard_case import Case, has_ended
from scripts.bench.guard_cluster import RECORD_PAUSE_MS
from scripts.bench.guard_reach_plan import (
    ALONE,
    CUT_AFTER_MS,
    FAULTS,
    FENCE,
    HELD_TIMEOUT_MS,
    IDLE_MS,
    SHARED,
    USUAL,
    WORK,
    Act,
    Cost,
    Outcome,
    Trial,
    Work,
    leaders_moved,
    led,
    quantile,
)
from scripts.bench.guard_rig import PARTITIONS, VICTIM, WARM_UP_S, GuardRig, Timing, unfences
from scripts.bench.guard_watch import sleep_until
from scripts.rig.cluster import NOTHING, Properties, wait_until_guarding
from scripts.rig.java_clients import now_ms
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.pauses import FOLLOWED_BAD, LED_BAD, longest_pause, worst_by_class
from scripts.rig.processes import ManagedProcess, WaitTimeoutError, at_wall_s
from scripts.rig.rig_error import RigError

_GUARD_START_S: Final = 20.0
_GUARD_STOP_S: Final = 3.0
_REST_S: Final = 1.0
_SLOW_MS: Final = 200
_RESTART_AFTER_MS: Final = 6000
"""From the hang to the kill of the broker: a guard has cut and evicted by then."""
_END_S: Final = 5.0
_SERVE_S: Final = 20.0
_SERVE_ALONE_S: Final = 12.0
_POLL_S: Final = 0.005
_NO_CHANGE: Final = -2
_NO_LEADER: Final = -1


class ReachRig(GuardRig):
    """A controller, three brokers, their clients, and one guard at a time. Use it in a ``with`` block."""

    def __init__(self, kit: KafkaKit, base: Path, logs: Path, watch_ms: int, properties: Properties = NOTHING) -> None:
        super().__init__(kit, base, logs, Timing(0, watch_ms), properties)
        self._watch_ms = watch_ms
        self._guard: ManagedProcess | None = None
        self._injection: Injection | None = None
        self._faults = base / "faults"

    def close(self) -> None:
        """As the benchmark's own; a guard ends before its broker, lest it acts."""
        with contextlib.ExitStack() as stack:
            stack.callback(super().close)
            if self._guard is not None:
                stack.callback(self._guard.kill)
            if self._case is not None:
                stack.callback(self._answer, self._case)

    # ---- a trial

    def measure(self, trial: Trial, phase_ms: int) -> Outcome:
        """Break the disk under a form, look on, and mend everything."""
        self._number += 1
        outcome = Outcome(trial, phase_ms=phase_ms, watch_ms=self._watch_ms)
        topic, work = f"reach-{self._number}", WORK.get(trial.fault, USUAL)
        disk = next(disk for disk in self._all_disks if disk.fstype == trial.fstype)
        disk = self._all_disks[-1] if trial.fault == SHARED else disk
        classes = self._place(topic, disk, work.configs)
        topics = self._further(topic, work)
        case = self._case = self._make_case(topic, disk, classes)
        try:
            if work.old_records:
                self.clients.fill(topic, PARTITIONS, work.old_records)
            self.clients.start(topic, PARTITIONS, RECORD_PAUSE_MS, transactions=work.transactions)
            if trial.form != ALONE:
                self._start_guard(trial.form)
            time.sleep(WARM_UP_S + phase_ms / 1000)
            self._look_on(case, outcome, classes)
        finally:
            anew = self._mend(case, outcome)
        self.clients.stop()
        outcome.acknowledged, outcome.lost = self.clients.verify()
        self.delete_topics(*topics)
        if anew:
            self._await_serving(VICTIM)
        self._case = None
        return outcome

    def _further(self, topic: str, work: Work) -> list[str]:
        """Topics of the trial, of which that for further partitions is made."""
        if not work.further:
            return [topic]
        self._create(f"{topic}-further", work.further)
        return [topic, f"{topic}-further"]

    def _look_on(self, case: Case, outcome: Outcome, classes: Mapping[int, str]) -> None:
        trial, bad = outcome.trial, [p for p, name in classes.items() if name in (LED_BAD, FOLLOWED_BAD)]
        if trial.fault == "dead-idle":
            self.clients.rest(bad)
            time.sleep(_REST_S)
        if old := WORK.get(trial.fault, USUAL).old_records:
            forget_pages(case.disk.mount_point)
        before = self._usage()
        fault_ms = self._break(case, trial)
        if old:
            self.clients.reread()
        woken_ms = fault_ms
        if trial.fault == "dead-idle":
            sleep_until(fault_ms + IDLE_MS)
            woken_ms = now_ms()
            self.clients.wake()
        if trial.fault == "restart":
            self._restart_beside(case, outcome, fault_ms)
        sleep_until(fault_ms + self._watch_ms)
        end_ms = now_ms()
        if trial.fault == "none":
            outcome.cost = self._cost(before, fault_ms, end_ms)
        self._note_pauses(outcome, classes, {p: woken_ms if p in bad else fault_ms for p in classes}, fault_ms, end_ms)
        self._note_cluster(case, outcome, classes, fault_ms)
        self._note_guard(case, outcome, fault_ms)
        case.acts = {act.means: act.at_ms for act in outcome.acts}
        outcome.broker, _ = self._look_at_broker(case)

    def _break(self, case: Case, trial: Trial) -> float:
        """The fault; its moment on the wall clock."""
        if trial.fault == "killed":
            killed_ms = now_ms()
            self._brokers[VICTIM].kill()
            return killed_ms
        if not (name := FAULTS[trial.fault]):
            return now_ms()
        options = {"ms": _SLOW_MS} if name == "slow" else {}
        self._injection = catalog.inject(name, Target.of(case.disk), state_dir=self._faults, options=options)
        return self._injection.began_ms

    def _restart_beside(self, case: Case, outcome: Outcome, fault_ms: float) -> None:
        """The broker is killed, and started as soon as it has ended."""
        sleep_until(fault_ms + _RESTART_AFTER_MS)
        self._brokers[VICTIM].signal(signal.SIGKILL)
        if not _waited(lambda: has_ended(case.pid), _END_S):
            return
        outcome.ended_ms = now_ms() - fault_ms
        since_s = time.time()
        self._launch(VICTIM)
        case.pid = self._brokers[VICTIM].pid
        limit_s = _SERVE_ALONE_S if outcome.trial.form == ALONE else _SERVE_S
        if _waited(lambda: self._unfenced_since(since_s) or not self._brokers[VICTIM].running, limit_s):
            served_s = self._unfenced_since(since_s)
            outcome.served_ms = None if served_s is None else served_s * 1000 - fault_ms
        outcome.watch_ms = max(outcome.watch_ms, round(now_ms() - fault_ms))

    # ---- what came of it

    def _note_pauses(
        self,
        outcome: Outcome,
        classes: Mapping[int, str],
        since_ms: Mapping[int, float],
        fault_ms: float,
        end_ms: float,
    ) -> None:
        for target, moments in (
            (outcome.pauses, self.clients.acks),
            (outcome.consumer_pauses, self.clients.reads),
        ):
            pauses = {}
            for partition, seen in moments.items():
                since = since_ms[partition]
                marks = sorted(at for at in seen if since == fault_ms or at >= since)
                pause = longest_pause(marks, since, end_ms)
                pauses[partition] = dataclasses.replace(pause, begun_ms=pause.begun_ms + since - fault_ms)
            target.update(worst_by_class(pauses, classes))

    def _note_cluster(self, case: Case, outcome: Outcome, classes: Mapping[int, str], fault_ms: float) -> None:
        recorded = self._offline_at(case.directory, fault_ms / 1000)
        outcome.recorded_ms = None if recorded is None else recorded - fault_ms
        moved: dict[int, float] = {}
        for seen in self.watch.committed_since(fault_ms / 1000):
            record = seen.record
            if isinstance(record, PartitionChangeRecord) and record.leader not in (_NO_CHANGE, _NO_LEADER, VICTIM):
                moved.setdefault(record.partition_id, seen.seen_at * 1000 - fault_ms)
        outcome.moved_ms = leaders_moved(led(classes), moved)

    def _note_guard(self, case: Case, outcome: Outcome, fault_ms: float) -> None:
        if self._guard is None:
            return
        if not self._guard.running:
            raise RigError(f"the guard has ended with {self._guard.exit_code}:\n{self._guard.tail()}")
        bad = [str(path) for path in self._dirs_on(case.disk)]
        for line in self._guard.events():
            at_ms = at_wall_s(line) * 1000 - fault_ms
            event, path = line.get("event"), line.get("path")
            if event == "directory.verdict" and path in bad and line["state"] == "failed" and at_ms >= 0:
                outcome.verdict_ms = at_ms if outcome.verdict_ms is None else outcome.verdict_ms
            elif event == "guard.does":
                outcome.acts.append(Act(at_ms, str(line["means"]), None if path is None else path in bad))

    def _usage(self) -> tuple[float, dict[int, Usage]]:
        """The time now, and what each process of the guard has used."""
        found = {}
        for pid in [] if self._guard is None else descendants(self._guard.pid):
            with contextlib.suppress(OSError):
                found[pid] = usage_of(pid, "guard")
        return time.monotonic(), found

    def _cost(self, before: tuple[float, Mapping[int, Usage]], fault_ms: float, end_ms: float) -> Cost:
        (began_s, was), (ended_s, now) = before, self._usage()
        cpu_s = sum(usage.cpu_s - was[pid].cpu_s for pid, usage in now.items() if pid in was)
        waits = [wait for at, wait in self.clients.waits if fault_ms <= at <= end_ms]
        return Cost(
            pss_mib=sum(usage.pss_kib for usage in now.values()) / 1024,
            cpu_percent=100 * cpu_s / (ended_s - began_s),
            p50_ms=quantile(waits, 0.5),
            p99_ms=quantile(waits, 0.99),
        )

    def _unfenced_since(self, since_s: float) -> float | None:
        return next((seen.seen_at for seen in self.watch.committed_since(since_s) if unfences(seen.record)), None)

    # ---- the guard

    def _start_guard(self, form: str) -> None:
        """A new one, which knows nothing of the trials before; returns when it knows all it needs."""
        state = self.base / f"guard-{self._number}"
        state.mkdir()
        own: dict[str, object] = {
            "kjbod.state.dir": state,
            "kjbod.host": f"broker-{VICTIM}",
            "kjbod.held.timeout.ms": HELD_TIMEOUT_MS,
            "kjbod.guard.cut.after.ms": CUT_AFTER_MS[form],
        }
        if form == FENCE:
            own["kjbod.guard.ladder"] = "fence"
        file = state / "guard.properties"
        file.write_text(render_properties(own))
        arguments = ("guard", "run", "--act", "-c", str(self._configs[VICTIM]), "--guard-config", str(file))
        self._guard = self.processes.kjbod(*arguments, name="guard")
        wait_until_guarding(self._guard, _GUARD_START_S)

    def _stop_guard(self) -> None:
        if self._guard is not None:
            try:
                self._guard.stop(_GUARD_STOP_S)
            except WaitTimeoutError:
                self._guard.kill()
            self._guard = None

    # ---- back to a healthy cluster

    def _answer(self, case: Case) -> None:
        """Have the disk answer: nobody who waits for it ends before."""
        disk = case.disk
        for step in (disk.plug, disk.recover_writes, lambda: disk.delay_us(0), disk.thaw):
            with contextlib.suppress(FaultsError, OSError):
                step()

    def _mend(self, case: Case, outcome: Outcome) -> bool:
        """Everything as it was, but that a broker which has lost something is starting anew; whether it is."""
        self._answer(case)
        self._stop_guard()
        for log_dir in self._dirs_on(case.disk):
            with contextlib.suppress(OSError):
                syscalls.umount(log_dir, syscalls.MNT_DETACH)  # a mask
        table = f"kjbod_guard_{VICTIM}"
        subprocess.run(["nft", "delete", "table", "inet", table], capture_output=True, check=False)
        anew = outcome.broker != "kept" or bool(outcome.acts) or not self.watch.registered_dir(VICTIM, case.directory)
        if anew:
            self._end_victim()
        if self._injection is not None:
            catalog.undo(self._injection)
            self._injection = None
        target = Target.of(case.disk)
        if not anew and self._is_well(case, target):
            return False
        if not anew:
            self._end_victim()
        if not works(target):
            revive(target)
        self._launch(VICTIM)
        return True


def forget_pages(mount_point: Path) -> None:
    """Write back what the file system has in memory, and forget the pages of its log segments."""
    for log in mount_point.glob("*/*/*.log"):
        with open(log, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _waited(predicate: Callable[[], object], timeout_s: float) -> bool:
    """Whether it came to hold in time."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
