"""The cluster of the guard's demonstration: Kafka's controller, three unmodified brokers with three real disks each, a
guard beside each, and Kafka's own clients on every partition."""

import signal
import time
from pathlib import Path
from typing import Final

from kjbod.ids import Uuid
from scripts.rig import cluster
from scripts.rig.checkpoints import CHECKPOINT_INTERVAL_MS, CHECKPOINT_NAME, wait_until_written
from scripts.rig.cluster import directory_id, in_turn, wait_until_guarding, wait_until_serving
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.java_clients import Clients
from scripts.rig.kafka import STORAGE, KafkaKit, render_properties
from scripts.rig.pauses import CLASSES, class_of
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from scripts.rig.rig_error import RigError
from scripts.story.disks import KillableDisk
from scripts.story.layout import BROKERS, TOPIC, Layout
from scripts.story.narrate import StoryError

VICTIM: Final = 1
"""The broker with the bad disk."""
CUT_AFTER_MS: Final = 3_000
"""``kjbod.guard.cut.after.ms``: the default for flash. The loop devices of the demonstration would get 10 s."""
PARTITIONS: Final = 12
RECORD_PAUSE_MS: Final = 30
_REQUEST_TIMEOUT_MS: Final = 5000
_HEAP_MIB: Final = 256
_WAIT_S: Final = 60.0
_STOP_S: Final = 30.0
_PLACEMENTS_MAX: Final = 5
_PHASE_S: Final = 1.0
"""From a hang to the broker's next checkpoint: it is caught in it, as it is by most hangs that last."""
_MARGIN_S: Final = 0.1


class GuardedCluster(cluster.Cluster):
    """Three brokers that may be guarded. What it starts ends with ``processes``, which hung disks must not outlast."""

    def __init__(
        self,
        layout: Layout,
        disks: dict[tuple[int, int], KillableDisk],
        processes: Processes,
        kit: KafkaKit,
        ladder: str,
    ) -> None:
        super().__init__(layout.work, processes, kafka=kit, heap_mib=_HEAP_MIB)
        self.layout = layout
        self.disks = disks
        self.brokers: dict[int, ManagedProcess] = {}
        self.guards: dict[int, ManagedProcess] = {}
        self.topic = TOPIC
        self.bad = 1
        """Number of the disk that hangs."""
        self.classes: dict[int, str] = {}
        """Class of each partition, as the broker with the bad disk has it."""
        self.ids: dict[tuple[int, int], Uuid] = {}
        """``directory.id`` of each disk, once it is formatted."""
        self.kits = dict.fromkeys(BROKERS, kit)
        """Kafka of each broker."""
        self._ladder = ladder
        self._ports = {broker: free_port() for broker in BROKERS}

    # ---- brokers

    def configure(self) -> None:
        """Files of the brokers and of their guards; directories formatted."""
        for broker in BROKERS:
            own = {
                "metadata.log.dir": self.layout.metadata(broker),
                "min.insync.replicas": 2,
                "replica.fetch.backoff.ms": 100,
            }
            config = self.layout.config(f"broker{broker}")
            log_dirs = [disk.log_dir for (of, _), disk in self.disks.items() if of == broker]
            self.configure_broker(broker, log_dirs, own, config=config, port=self._ports[broker])
            self.format_broker(config)
            self.ids |= {(broker, number): directory_id(log_dir) for number, log_dir in enumerate(log_dirs, 1)}
            state = self.layout.work / f"guard{broker}"
            own = {
                "kjbod.state.dir": state,
                "kjbod.host": f"broker-{broker}",
                "kjbod.guard.ladder": self._ladder,
                "kjbod.guard.cut.after.ms": CUT_AFTER_MS,
            }
            self.layout.config(f"guard{broker}").write_text(render_properties(own))

    def launch(self, broker: int) -> None:
        """Start a broker, without waiting."""
        name = f"broker{broker}"
        self.brokers[broker] = self.launch_broker(
            self.kits[broker], self.layout.config(name), name=name, heap_mib=_HEAP_MIB
        )  # fmt: skip

    def await_serving(self, broker: int, watch: ClusterWatch) -> None:
        """Until it serves, and the controller has unfenced it."""
        wait_until_serving(self.brokers[broker], _WAIT_S)
        wait_until(lambda: broker in watch.unfenced(), _WAIT_S, f"broker {broker}, unfenced")

    def open_watch(self) -> ClusterWatch:
        """An observer of the metadata."""
        return ClusterWatch(self.port, self.cluster_id)

    def open_clients(self) -> Clients:
        """Kafka's own clients, which do nothing yet."""
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        return Clients(self.kits[VICTIM], list(self._ports.values()), _REQUEST_TIMEOUT_MS, self.layout.log("clients"))

    # ---- the topic

    def place(self, watch: ClusterWatch) -> None:
        """Create the topic, a third of it led by each broker, and choose the disk that will hang: one of which some
        partitions are led and others followed, as of the others together."""
        for number in range(1, _PLACEMENTS_MAX + 1):
            self.topic = TOPIC if number == 1 else f"{TOPIC}-{number}"
            self.create_topic(self.topic, PARTITIONS, brokers=BROKERS, in_turns=True)
            wait_until(
                lambda: (
                    watch.assigned_replicas(self.topic) == len(BROKERS) * PARTITIONS
                    and watch.in_sync(self.topic, len(BROKERS)) == PARTITIONS
                ),
                _WAIT_S,
                f"replicas of {self.topic}",
            )
            for of, disk in self.disks:
                if of == VICTIM and self._classify(disk):
                    self.bad = disk
                    return
            self.delete_topics(self.topic)
        raise RigError(f"broker {VICTIM} led and followed on no disk in {_PLACEMENTS_MAX} topics")

    @property
    def bad_id(self) -> Uuid:
        """The ``directory.id`` of the disk that hangs, or of what has replaced it."""
        return self.ids[VICTIM, self.bad]

    def _classify(self, number: int) -> bool:
        """Sort the partitions for the case that this disk hangs; whether each class has some."""
        there = self._partitions_on(number)
        self.classes = {p: class_of(in_turn(BROKERS, p)[0] == VICTIM, p in there) for p in range(PARTITIONS)}
        return set(self.classes.values()) == set(CLASSES)

    def _partitions_on(self, number: int) -> set[int]:
        return {int(path.name.rpartition("-")[2]) for path in self.bad_dir(number).glob(f"{self.topic}-*")}

    def replicas_there(self) -> int:
        """Number of replicas of the topic on the bad disk, which must answer."""
        return len(self._partitions_on(self.bad))

    def bad_dir(self, number: int | None = None) -> Path:
        """The log directory on the disk that hangs, or on another one of that broker."""
        return self.disks[VICTIM, number or self.bad].log_dir

    # ---- the hang

    def hang(self) -> float:
        """Have the bad disk hang, a second before the broker's next checkpoint; the wall clock in seconds then."""
        well = next(number for of, number in self.disks if of == VICTIM and number != self.bad)
        checkpoint = self.bad_dir(well) / CHECKPOINT_NAME
        first_s = time.time()
        last_s = wait_until_written(checkpoint, first_s, _WAIT_S)
        due_s = last_s + CHECKPOINT_INTERVAL_MS / 1000 - _PHASE_S
        time.sleep(max(_MARGIN_S, due_s - time.time()))
        return self.disks[VICTIM, self.bad].hang()

    # ---- guards

    def start_guards(self) -> None:
        """A guard in mode act beside each broker; returns when all of them know all they need."""
        for broker in BROKERS:
            self.launch_guard(broker)
        for broker in BROKERS:
            self.await_guard(broker)

    def guard_arguments(self, broker: int) -> list[str]:
        """The files, for the command line."""
        own = self.layout.config(f"guard{broker}")
        return ["-c", str(self.layout.config(f"broker{broker}")), "--guard-config", str(own)]

    def launch_guard(self, broker: int) -> None:
        """Start a guard, without waiting."""
        arguments = ["guard", "run", "--act", *self.guard_arguments(broker)]
        self.guards[broker] = self.processes.kjbod(*arguments, name=f"guard{broker}")

    def await_guard(self, broker: int) -> None:
        """Until a guard has found its broker, and follows the metadata."""
        wait_until_guarding(self.guards[broker])

    def kjbod(self, *arguments: str) -> list[str]:
        """The lines that a ``kjbod`` command prints. Raises :class:`StoryError` where it fails."""
        done = self.processes.kjbod(*arguments, name=arguments[1])
        if code := done.wait(_WAIT_S):
            raise StoryError(f"kjbod {' '.join(arguments)}: exit code {code}: {done.tail()}")
        return done.stdout().splitlines()

    # ---- the new disk

    def stop_victim(self) -> None:
        """Stop the broker with the bad disk, in a controlled shutdown if it still runs, and its guard: both hold files
        open there."""
        self.brokers[VICTIM].signal(signal.SIGTERM)
        self.brokers[VICTIM].wait(_STOP_S)
        self.guards[VICTIM].stop(_STOP_S)

    def format_new_disk(self) -> list[str]:
        """Kafka's own tool makes ``meta.properties``; its lines."""
        options = ("-t", self.cluster_id, "-c", str(self.layout.config(f"broker{VICTIM}")), "--ignore-formatted")
        said = self.kits[VICTIM].run(STORAGE, "format", *options).stdout.strip().splitlines()
        self.ids[VICTIM, self.bad] = directory_id(self.bad_dir())
        return [line for line in said if line.startswith("Formatting")]

    def start_victim(self, watch: ClusterWatch) -> None:
        """Start broker and guard again."""
        self.launch(VICTIM)
        self.launch_guard(VICTIM)
        self.await_serving(VICTIM, watch)
        self.await_guard(VICTIM)

    # ---- the end

    def release_disks(self) -> None:
        """Have every disk answer: nobody who waits for one ends before."""
        for disk in self.disks.values():
            disk.mend()

    def stop(self) -> None:
        """Guards first, which would act when brokers end; then controlled shutdowns."""
        for guard in self.guards.values():
            if guard.running:
                guard.signal(signal.SIGTERM)
        for guard in self.guards.values():
            guard.wait(_STOP_S)
        super().stop()
