"""The story, step by step. Each step ends with claims that were checked; one that does not hold ends the story."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from kjbod.errors import EXIT_DISK_FAILURE
from kjbod.fleet.schema import EVENTS, SAMPLES
from kjbod.ids import Uuid
from kjbod.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from kjbod_host.files.report_files import recover_leftovers
from scripts.rig.cluster_watch import ClusterWatch, Seen
from scripts.rig.processes import ManagedProcess, WaitTimeoutError, at_wall_s, kjbod_command
from scripts.story.claims import Claiming
from scripts.story.cluster import Cluster
from scripts.story.layout import (
    BROKERS,
    DISKS_PER_BROKER,
    FAILURE_TIMEOUT_MS,
    PARTITIONS,
    REPLICATION_FACTOR,
    TOPIC,
)
from scripts.story.narrate import Narrator, StoryError

_SETTLE_TIMEOUT_S = 60
_DETECT_TIMEOUT_S = 15
_FENCE_TIMEOUT_S = 30
_EXIT_MARGIN_MS = 1500
"""How much later than the failure timeout an agent may be gone: detection (one probe interval) and its own end."""


class Story(Claiming):
    """The parts of the demonstration and what they know of each other."""

    def __init__(self, cluster: Cluster, watch: ClusterWatch, tell: Narrator) -> None:
        super().__init__(tell)
        self.cluster = cluster
        self.watch = watch
        self._dead: set[tuple[int, int]] = set()
        self._gave_up: int | None = None

    # ------------------------------------------------------------ helpers

    def _directory_names(self) -> dict[Uuid, str]:
        """``broker/disk N`` by directory id."""
        return {
            directory: f"{broker}/disk {number}{' (dead)' if (broker, number) in self._dead else ''}"
            for (broker, number), directory in self.cluster.directories.items()
        }

    def show_leaders(self, before: dict[tuple[int, Uuid], int] | None = None) -> dict[tuple[int, Uuid], int]:
        """Table of partitions led per broker and per directory, with what they were ``before``."""
        now = self.watch.leaders_by_directory()
        names = self._directory_names()
        rows: list[list[object]] = []
        for broker in BROKERS:
            keys = sorted((d for d, name in names.items() if name.startswith(f"{broker}/")), key=lambda d: names[d])
            for directory in keys:
                led = now.get((broker, directory), 0)
                was = [] if before is None else [before.get((broker, directory), 0)]
                rows.append([f"broker {broker}", names[directory].partition("/")[2], str(directory), *was, led])
            total = sum(n for (of, _), n in now.items() if of == broker)
            was = [] if before is None else [sum(n for (of, _), n in before.items() if of == broker)]
            rows.append([f"broker {broker}", "all", "", *was, total])
        head = ["", "disk", "directory.id", *([] if before is None else ["leads before"]), "leads now"]
        self.tell.table(head, rows)
        return now

    # ------------------------------------------------------------ the steps

    def settle(self) -> None:
        """Wait until every broker is unfenced, create the topic, wait until every replica is placed and assigned."""
        everyone = set(BROKERS)
        self._wait(lambda: self.watch.unfenced() == everyone, _SETTLE_TIMEOUT_S, "the brokers to be unfenced")
        self._claim(self.watch.unfenced() == everyone, f"{len(BROKERS)} brokers are registered and unfenced")
        self.cluster.create_topic(TOPIC, PARTITIONS, REPLICATION_FACTOR)
        self.tell.say(f"topic {TOPIC} is created; waiting until the agents have placed and assigned its replicas")
        expected = PARTITIONS * REPLICATION_FACTOR
        self._wait(
            lambda: self.watch.assigned_replicas(TOPIC) == expected,
            _SETTLE_TIMEOUT_S,
            f"{expected} replicas to be assigned to directories",
        )
        self._claim(
            self.watch.assigned_replicas(TOPIC) == expected,
            f"topic {TOPIC}: {PARTITIONS} partitions x {REPLICATION_FACTOR} replicas, each assigned to a directory",
        )
        on_disk = sum(
            1
            for disk in self.cluster.disks.values()
            for path in disk.log_dir.glob(f"{TOPIC}-*/partition.metadata")
            if path.is_file()
        )
        self._claim(
            on_disk == expected, f"{on_disk} replica directories, each with a partition.metadata, are on the disks"
        )

    def _busiest(self, broker: int) -> int:
        """The disk of a broker from which it leads most: replicas are placed by chance, a disk may lead nothing."""
        leaders = self.watch.leaders_by_directory()
        return max(
            range(1, DISKS_PER_BROKER + 1), key=lambda n: leaders.get((broker, self.cluster.directories[broker, n]), 0)
        )

    def kill_a_disk(self, broker: int) -> None:
        """A disk that leads partitions dies; leadership leaves that directory and no other."""
        number = self._busiest(broker)
        disk = self.cluster.disks[broker, number]
        agent = self.cluster.agents[broker]
        directory = self.cluster.directories[broker, number]
        before = self.watch.leaders_by_directory()
        led = before.get((broker, directory), 0)
        self._claim(led > 0, f"broker {broker} leads {led} partitions on disk {number} ({disk.log_dir})")
        fault_at = disk.kill()
        self._dead.add((broker, number))
        self.tell.event(None, f"broker {broker}", f"disk {number}: {disk.how}")
        self._wait(
            lambda: (
                not self.watch.leaders_by_directory().get((broker, directory))
                and not self.watch.registered_dir(broker, directory)
            ),
            _DETECT_TIMEOUT_S,
            f"leadership to leave {disk.log_dir}",
        )
        self._wait(lambda: agent.events("directory.offline.acknowledged"), _DETECT_TIMEOUT_S, "the controller's answer")
        self._tell_failure(agent, broker, str(disk.log_dir), fault_at)
        self.show_leaders(before)
        self._check_failover(broker, directory, before)

    def _tell_failure(self, agent: ManagedProcess, broker: int, path: str, fault_at: float) -> None:
        """Tell what happened, from two witnesses, in the order of time: the agent's log and the controller's."""
        who = f"broker {broker}"
        moments: list[tuple[float, str, str]] = []
        failed = agent.events("directory.failed", path=path)[0]
        moments.append((at_wall_s(failed), who, f"verdict: failed. {_evidence(failed)}"))
        for event, text in (
            ("directory.offline.sent", "OfflineLogDirs sent in a heartbeat"),
            ("directory.offline.acknowledged", "the controller acknowledged it"),
        ):
            line = next(line for line in agent.events(event) if failed["directory_id"] in line["directory_ids"])
            moments.append((at_wall_s(line), who, text))
        moments += _records_told(self.watch.committed_since(fault_at), broker)
        for at, whose, text in sorted(moments, key=lambda moment: moment[0]):
            self.tell.event((at - fault_at) * 1000, whose, text)
        self.tell.say("(the controller's lines are timed by an observer of its metadata log, just after it wrote them)")

    def _check_failover(self, broker: int, directory: Uuid, before: dict[tuple[int, Uuid], int]) -> None:
        now = self.watch.leaders_by_directory()
        self._claim(not now.get((broker, directory)), "no partition is led from the dead directory any more")
        self._claim(sum(now.values()) == PARTITIONS, f"all {PARTITIONS} partitions have a leader")
        kept = [key for key in before if key[0] == broker and key[1] != directory]
        self._claim(
            all(now.get(key, 0) == before[key] for key in kept),
            f"the other disks of broker {broker} go on leading what they led",
        )
        self._claim(broker in self.watch.unfenced(), f"broker {broker} is still unfenced and serving")
        self._claim(not self.watch.in_isr(broker, directory), "no replica in the dead directory is in any ISR")

    def kill_a_disk_without_controller(self, broker: int) -> None:
        """The controller falls silent, a disk dies, and the agent gives up in time."""
        self._gave_up = broker
        number = self._busiest(broker)
        disk = self.cluster.disks[broker, number]
        agent = self.cluster.agents[broker]
        directory = self.cluster.directories[broker, number]
        led = self.watch.leaders_by_directory().get((broker, directory), 0)
        self._claim(led > 0, f"broker {broker} leads {led} partitions on disk {number} ({disk.log_dir})")
        self.cluster.pause_controller()
        self.tell.say("the controller is stopped (SIGSTOP): connections stay open, nothing is ever answered")
        fault_at = disk.kill()
        self._dead.add((broker, number))
        self.tell.event(None, f"broker {broker}", f"disk {number}: {disk.how}")
        self.tell.say(f"waiting for broker {broker} to give up: {FAILURE_TIMEOUT_MS} ms after its verdict")
        try:
            code = agent.wait((FAILURE_TIMEOUT_MS + _DETECT_TIMEOUT_S * 1000) / 1000)
        except WaitTimeoutError as error:
            raise StoryError(str(error)) from error
        gone_ms = (time.time() - fault_at) * 1000
        failed = agent.events("directory.failed", path=str(disk.log_dir))[0]
        detected_ms = (at_wall_s(failed) - fault_at) * 1000
        stopped = agent.events("agent.stopped")[-1]
        self.tell.event(detected_ms, f"broker {broker}", f"verdict: failed. {_evidence(failed)}")
        self.tell.event((at_wall_s(stopped) - fault_at) * 1000, f"broker {broker}", f"stops: {_reason(stopped)}")
        self.tell.event(gone_ms, f"broker {broker}", f"process gone, exit code {code}")
        self._claim(code == EXIT_DISK_FAILURE, f"its exit code is {EXIT_DISK_FAILURE} (EX_IOERR)", f"it was {code}")
        limit = detected_ms + FAILURE_TIMEOUT_MS + _EXIT_MARGIN_MS
        self._claim(
            gone_ms - detected_ms >= FAILURE_TIMEOUT_MS and gone_ms <= limit,
            f"its process was gone {gone_ms - detected_ms:.0f} ms after the verdict "
            f"(log.dir.failure.timeout.ms={FAILURE_TIMEOUT_MS})",
        )
        self._claim(
            all(self.cluster.agents[other].running for other in BROKERS if other != broker),
            "the other agents, whose disks are well, are still there",
        )

    def resume(self, broker: int) -> None:
        """The controller comes back, misses the broker that gave up, and moves its leadership."""
        self.cluster.resume_controller()
        resumed_at = time.time()
        self.tell.say("the controller goes on (SIGCONT); it fences a broker that was silent for its session of 9 s")
        self._wait(
            lambda: broker not in self.watch.unfenced() and not self.watch.leaders().get(broker),
            _FENCE_TIMEOUT_S,
            f"broker {broker} to be fenced",
        )
        self.tell.say(f"broker {broker} was fenced {time.time() - resumed_at:.1f} s later")
        self.show_leaders()
        self._claim(
            sum(self.watch.leaders().values()) == PARTITIONS,
            f"all {PARTITIONS} partitions have a leader, none of them on broker {broker}",
        )

    def report(self) -> Path:
        """The Spark fleet report over what the agents wrote."""
        layout = self.cluster.layout
        self._wait(
            lambda: any((layout.reports / "events").rglob("*.jsonl.gz")), _DETECT_TIMEOUT_S, "the agents' reports"
        )
        cut_short, _ = recover_leftovers(layout.reports, f"broker-{self._gave_up}", (EVENTS, SAMPLES))
        if cut_short:
            self.tell.say(
                f"broker {self._gave_up} had no time left to finish its last report, as a disk of this machine was "
                "slow; it is finished as at its next start"
            )
        command = [kjbod_command(), "fleet", "report", "--reports", str(layout.reports), "--out", str(layout.fleet)]
        self.tell.show("$ kjbod fleet report --reports " + f"{layout.reports} --out {layout.fleet}")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self.tell.say("  " + line.rstrip())
        page = layout.fleet / "index.html"
        self._claim(process.returncode == 0, "the fleet report is made", f"exit code {process.returncode}")
        self._claim(page.is_file(), f"the page is there, {page.stat().st_size // 1024 if page.exists() else 0} KiB")
        summary: dict[str, Any] = json.loads((layout.fleet / "report.json").read_text())
        disks = {str(disk.log_dir) for disk in self.cluster.disks.values()}
        self._claim(
            # An agent that gives up seconds after its start may have sent no sample of a disk yet.
            disks <= {row["path"] for row in summary["directories"]},
            f"it covers the {len(disks)} disks of {len(summary['agents'])} brokers",
        )
        outcomes = sorted(incident["outcome"] for incident in summary["incidents"])
        self._claim(
            outcomes == ["acknowledged", "timeout shutdown"]
            or (cut_short > 0 and outcomes == ["acknowledged", "open"]),
            "it has both failures: one acknowledged by the controller, one that ended in the agent's shutdown",
            f"it has {outcomes}",
        )
        return page


def _evidence(line: dict[str, Any]) -> str:
    """The evidence of a verdict without the path, which the reader knows."""
    return str(line["evidence"]).removeprefix(f"{line['path']} failed: ")


def _reason(line: dict[str, Any]) -> str:
    """Reason for which an agent stopped, without the evidence that the line before it shows."""
    _, found, why = str(line["reason"]).rpartition("; could not be reported")
    return f"the failure could not be reported{why}" if found else why


def _records_told(committed: list[Seen], broker: int) -> list[tuple[float, str, str]]:
    """The controller's records after a directory failure: the registration, and the partitions in one line."""
    told = []
    moved = [c for c in committed if isinstance(c.record, PartitionChangeRecord) and c.record.leader >= 0]
    changed = [c for c in committed if isinstance(c.record, PartitionChangeRecord)]
    if changed:
        offsets = f"offsets {changed[0].offset} to {changed[-1].offset}"
        told.append((changed[-1].seen_at, "controller", f"{len(changed)} PartitionChangeRecords ({offsets})"))
    if moved:
        to: dict[int, int] = {}
        for c in moved:
            assert isinstance(c.record, PartitionChangeRecord)
            to[c.record.leader] = to.get(c.record.leader, 0) + 1
        where = ", ".join(f"{n} to broker {leader}" for leader, n in sorted(to.items()))
        told.append((moved[-1].seen_at, "controller", f"{len(moved)} new leaders: {where}"))
    for c in committed:
        if isinstance(c.record, BrokerRegistrationChangeRecord) and c.record.broker_id == broker and c.record.log_dirs:
            left = len(c.record.log_dirs)
            text = f"BrokerRegistrationChangeRecord: broker {broker} has {left} online directories left"
            told.append((c.seen_at, "controller", f"{text} (offset {c.offset})"))
    return told
