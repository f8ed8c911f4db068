"""The guard's story: a disk hangs under Kafka alone, hangs again with a guard beside the broker, and is replaced."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from kjbod.ids import Uuid
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.java_clients import Clients, now_ms
from scripts.rig.pauses import (
    FOLLOWED_BAD,
    FOLLOWED_HEALTHY,
    LED_BAD,
    LED_HEALTHY,
    Pause,
    longest_pause,
    worst_by_class,
)
from scripts.rig.processes import ManagedProcess, at_wall_s
from scripts.rig.stuck_threads import stuck_threads
from scripts.story.claims import Claiming
from scripts.story.guard_cluster import CUT_AFTER_MS, PARTITIONS, RECORD_PAUSE_MS, VICTIM, GuardedCluster
from scripts.story.guard_words import Part, live_head, live_row, longest, side_by_side, silences, stuck_line, told
from scripts.story.layout import BROKERS
from scripts.story.narrate import Narrator

HANG_S: Final = 12
"""For how long the disk hangs under Kafka alone, and how long is looked at the guard."""
_SETTLE_S: Final = 60.0
_POLL_S: Final = 0.02
_CALM_S: Final = 1.0
_STANDS: Final = {LED_BAD: "what it leads there", FOLLOWED_BAD: "what it follows there"}


class GuardStory(Claiming):
    """The parts of the demonstration and what they know of each other."""

    def __init__(self, cluster: GuardedCluster, watch: ClusterWatch, clients: Clients, tell: Narrator) -> None:
        super().__init__(tell)
        self.cluster = cluster
        self.watch = watch
        self.clients = clients
        self.alone = Part()
        self.guarded = Part()

    # ---- the steps

    def settle(self) -> None:
        """A topic, and clients that write and read each of its partitions."""
        cluster = self.cluster
        cluster.place(self.watch)
        self._claim(
            self.watch.unfenced() == set(BROKERS),
            f"{len(BROKERS)} unmodified Apache Kafka {cluster.kits[VICTIM].version} brokers serve, "
            f"{len(cluster.disks)} disks in all",
        )
        self._claim(
            self.watch.in_sync(cluster.topic, len(BROKERS)) == PARTITIONS,
            f"topic {cluster.topic}: {PARTITIONS} partitions, 3 replicas each, min.insync.replicas=2, all in sync",
        )
        self.tell.say(
            "not Kafka's defaults: metadata.log.dir, and replica.fetch.backoff.ms=100, as kjbod guard check advises"
        )
        self.clients.start(cluster.topic, PARTITIONS, RECORD_PAUSE_MS)
        self.tell.say(
            f"Kafka's own clients write to every partition, acks=all, a record each {RECORD_PAUSE_MS} ms, and read it"
        )
        count = Counter(cluster.classes.values())
        self.tell.say(
            f"disk {cluster.bad} of broker {VICTIM} will hang. Broker {VICTIM} leads {count[LED_BAD]} partitions there "
            f"and follows {count[FOLLOWED_BAD]}; on its other disks it leads {count[LED_HEALTHY]} and follows "
            f"{count[FOLLOWED_HEALTHY]}"
        )

    def hang_alone(self) -> None:
        """The disk hangs, Kafka alone; then it answers again."""
        self.tell.say("each second the worst partition of each kind; STANDS: for how long it has acknowledged nothing")
        fault_s = self._hang()
        self._look_on(fault_s, HANG_S)
        self.alone = self._measured(fault_s)
        self.tell.say(longest(self.alone))
        self.tell.say(stuck_line(stuck_threads(self.cluster.brokers[VICTIM].pid)))
        bad = self.cluster.bad_id
        self._claim(
            self.watch.registered_dir(VICTIM, bad) and self.watch.leaders_by_directory().get((VICTIM, bad), 0) > 0,
            f"after {HANG_S} s Kafka still counts the disk as online, and broker {VICTIM} as the leader there",
        )
        # Now and then appends to what it leads go on, into the page cache, and only its fetcher is stuck.
        standing = [words for kind, words in _STANDS.items() if not self.alone.pauses[kind].ended]
        self._claim(bool(standing), f"{' and '.join(standing) or 'nothing'} takes no record while the disk hangs")
        self.cluster.disks[VICTIM, self.cluster.bad].mend()
        mended_s = time.time()
        self.await_writes(mended_s * 1000)
        self._wait(self._all_in_sync, _SETTLE_S, "all replicas to be in sync")
        took_s = time.time() - mended_s
        self.tell.claim(f"the disk answers again: {took_s:.1f} s later all is written, and all replicas are in sync")

    def start_guards(self) -> None:
        """A guard beside each broker."""
        self.tell.say(f"$ kjbod guard run --act {shlex.join(self.cluster.guard_arguments(VICTIM))}")
        self.tell.say('and so for the others. Each line "would ..." is a decision of the guard; then the guard acts')
        self.tell.say(
            f"kjbod.guard.cut.after.ms={CUT_AFTER_MS}, as for flash: a disk that answers earlier is left unchanged"
        )
        self.cluster.start_guards()
        self._claim(
            all(guard.running for guard in self.cluster.guards.values()),
            "each guard has found its broker, and follows the metadata; nothing in Kafka was changed or restarted",
        )
        self.await_writes(now_ms() + _CALM_S * 1000)

    def hang_guarded(self) -> None:
        """Another hang of the same disk, in the same phase of the broker's checkpoint."""
        guard = self.cluster.guards[VICTIM]
        known = len(guard.events())
        fault_s = self._hang()
        self._look_on(fault_s, HANG_S, _GuardsWords(guard, known, str(self.cluster.bad_dir()), fault_s))
        self.guarded = self._measured(fault_s)
        self.tell.say(longest(self.guarded))
        if self.guarded.kept:
            self._claim_kept(guard)
        else:
            self._claim_given_up(guard)
        self._claim(
            all(pause.ended for pause in self.guarded.pauses.values()),
            "every partition is written, those on the disk that still hangs too",
        )

    def _claim_kept(self, guard: ManagedProcess) -> None:
        """Only the disk is lost, which is what nearly always comes of a hang."""
        self._claim(self.cluster.brokers[VICTIM].running, f"broker {VICTIM} was kept")
        self._check_disks()
        self._claim(
            self._evicted(guard),
            f"broker {VICTIM} has left the replica lists of what lies there: leaders wait for it no more",
        )

    def _claim_given_up(self, guard: ManagedProcess) -> None:
        """The broker is lost, as where a thread of it that all others wait for is stuck on the disk for good."""
        reasons = {line["reason"] for line in guard.events("guard.broker") if line["reason"]}
        given_up = any(line["outcome"] == "done" for line in guard.events("guard.done", means="fence"))
        self._claim(given_up, f"the guard fenced broker {VICTIM}: {'; '.join(sorted(reasons))}", "it did not")
        self._claim(
            not any(self.watch.leaders_by_directory().get((VICTIM, one)) for one in self._ids().values()),
            "other brokers lead what it led",
        )

    def _evicted(self, guard: ManagedProcess) -> bool:
        done = guard.events("guard.done", means="evict", path=str(self.cluster.bad_dir()))
        return any(line["outcome"] == "done" for line in done)

    def _ids(self) -> dict[int, Uuid]:
        """The ``directory.id`` of each disk of the broker, by its number."""
        return {number: self.cluster.ids[of, number] for of, number in self.cluster.disks if of == VICTIM}

    def _check_disks(self) -> None:
        """Claims about the bad disk of the broker, and about its other ones, with the guard."""
        led = self.watch.leaders_by_directory()
        others = [one for number, one in self._ids().items() if number != self.cluster.bad]
        self._claim(
            self.guarded.recorded_ms is not None and all(self.watch.registered_dir(VICTIM, one) for one in others),
            "Kafka has taken this disk offline, and no other one",
        )
        self._claim(
            sum(led.get((VICTIM, one), 0) for one in others) == Counter(self.cluster.classes.values())[LED_HEALTHY]
            and not led.get((VICTIM, self.cluster.bad_id)),
            "it leads on its other disks what it led; what it led on this one has another leader",
        )

    def replace(self) -> None:
        """The disk is replaced, by the list that ``kjbod guard release`` prints."""
        cluster, bad = self.cluster, str(self.cluster.bad_dir())
        began_ms = now_ms()
        evicted = self._evicted(cluster.guards[VICTIM])
        self._run("guard", "release", *cluster.guard_arguments(VICTIM), bad)
        self.tell.say("the old disk is pulled: what waits for it fails, so that its threads end")
        cluster.disks[VICTIM, cluster.bad].pull()
        ends = "is stopped by a controlled shutdown" if self.guarded.kept else "has ended; what was stuck let go of it"
        cluster.stop_victim()
        self.tell.say(f"broker {VICTIM} {ends}; then its guard is stopped")
        cluster.disks[VICTIM, cluster.bad].replace()
        self.tell.say(f"the old disk is unmounted; a new one has an empty ext4, and is mounted at {bad}")
        self.tell.say(f"$ kafka-storage format -t {cluster.cluster_id} -c broker{VICTIM}.properties --ignore-formatted")
        for line in cluster.format_new_disk():
            self.tell.say(f"  {line}")
        cluster.start_victim(self.watch)
        self.tell.say("broker and guard are started")
        if evicted:
            restored = cluster.guards[VICTIM].wait_for_event("guard.done", _SETTLE_S, means="restore", path=bad)
            self._claim(restored["outcome"] == "done", "the guard has put the broker back into the replica lists")
        self._wait(self._all_in_sync, _SETTLE_S, "all replicas to be in sync")
        there = cluster.replicas_there()
        self._claim(
            there > 0, f"all {PARTITIONS} partitions have three replicas in sync again, {there} on the new disk"
        )
        worst = max(self._pauses(began_ms, now_ms()).values(), key=lambda pause: pause.ms)
        self.tell.say(f"longest pause of any partition from release to here: {worst} ms")

    def sum_up(self) -> None:
        """Both hangs side by side, and whether everything acknowledged is there."""
        self.tell.table(*side_by_side(self.alone, self.guarded))
        if self.alone.pauses[LED_HEALTHY].ended:
            self.tell.say(
                f"Kafka alone was watched for {HANG_S} s; when a disk hangs on, what the broker leads on its other "
                "disks stands, too, within a minute"
            )
        self.check_records()

    def fail(self) -> None:
        """Another disk of the broker answers EIO: Kafka notices, and goes on without it."""
        cluster = self.cluster
        other = next(number for of, number in cluster.disks if of == VICTIM and number != cluster.bad)
        fault_s = cluster.disks[VICTIM, other].kill()
        self.tell.event(None, f"broker {VICTIM}", f"disk {other} answers EIO from now on")
        known = cluster.ids[VICTIM, other]
        self._wait(
            lambda: self.watch.recorded_offline(VICTIM, known, fault_s) is not None,
            _SETTLE_S,
            "the failed disk to be recorded",
        )
        self.await_writes(now_ms())
        self._claim(
            cluster.brokers[VICTIM].running and self.watch.registered_dir(VICTIM, cluster.bad_id),
            f"broker {VICTIM} goes on without this disk, and every partition is written",
        )

    def check_records(self) -> None:
        """Whether everything acknowledged is there; the clients end."""
        self.clients.stop()
        acknowledged, lost = self.clients.verify()
        self._claim(lost == 0, f"of {acknowledged} acknowledged records none is lost", f"{lost} are")

    # ---- helpers

    def await_whole(self) -> None:
        """Wait until all replicas are in sync."""
        self._wait(self._all_in_sync, _SETTLE_S, "all replicas to be in sync")

    def _all_in_sync(self) -> bool:
        return self.watch.in_sync(self.cluster.topic, len(BROKERS)) == PARTITIONS

    def _hang(self) -> float:
        self.tell.say(f"the hang begins one second before the next checkpoint of broker {VICTIM}, which comes each 5 s")
        fault_s = self.cluster.hang()
        self.tell.event(None, f"broker {VICTIM}", f"disk {self.cluster.bad} answers no request from now on")
        return fault_s

    def _look_on(self, fault_s: float, seconds: int, words: "_GuardsWords | None" = None) -> None:
        """A line for each second of a hang, and between them what the guard says."""
        self.tell.show(live_head())
        for second in range(1, seconds + 1):
            while time.time() < fault_s + second:
                if words is not None:
                    for after_ms, text in words.new():
                        self.tell.event(after_ms, "guard 1", text)
                time.sleep(_POLL_S)
            silent_ms = silences(self.clients.acks, self.cluster.classes, fault_s * 1000, now_ms())
            self.tell.live(live_row(second, silent_ms))

    def _pauses(self, since_ms: float, end_ms: float) -> dict[str, Pause]:
        found = {p: longest_pause(list(seen), since_ms, end_ms) for p, seen in self.clients.acks.items()}
        return worst_by_class(found, self.cluster.classes)

    def _measured(self, fault_s: float) -> Part:
        end_ms = now_ms()
        recorded_s = self.watch.recorded_offline(VICTIM, self.cluster.bad_id, fault_s)
        return Part(
            pauses=self._pauses(fault_s * 1000, end_ms),
            recorded_ms=None if recorded_s is None else (recorded_s - fault_s) * 1000,
            kept=self.cluster.brokers[VICTIM].running and VICTIM in self.watch.unfenced(),
            watched_ms=end_ms - fault_s * 1000,
        )

    def await_writes(self, since_ms: float) -> None:
        """Until each partition has acknowledged a record since then."""
        self._wait(
            lambda: all(seen and seen[-1] > since_ms for seen in self.clients.acks.values()),
            _SETTLE_S,
            "acknowledgements of every partition",
        )

    def _run(self, *arguments: str) -> None:
        self.tell.say("$ kjbod " + shlex.join(arguments))
        for line in self.cluster.kjbod(*arguments):
            self.tell.say(f"  {line}")


class _GuardsWords:
    """Lines of a guard's log since the fault, each once."""

    def __init__(self, guard: ManagedProcess, known: int, bad: str, fault_s: float) -> None:
        self._guard = guard
        self._seen = known
        self._bad = bad
        self._fault_s = fault_s

    def new(self) -> Iterator[tuple[float, str]]:
        lines: list[dict[str, Any]] = self._guard.events()[self._seen :]
        self._seen += len(lines)
        for line in lines:
            text = told(line, self._bad)
            if text is not None:
                yield (at_wall_s(line) - self._fault_s) * 1000, text
