"""Kafka's side of the detection benchmark: the same faults under real brokers, with a real controller.

A broker is given many disks. Faults that fail go side by side on one broker, since Kafka takes these for one directory
each; one that blocks takes the broker's other directories along and so has a broker to itself. Every broker has one
healthy directory more, so that it is never left without any, and its metadata log lies elsewhere.
"""

import contextlib
import datetime
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from kjbod.errors import KjbodError
from kjbod.faults.catalog import inject, undo
from kjbod.faults.disks import RealDisk
from kjbod.faults.model import Injection, Target
from kjbod.ids import Uuid
from scripts.bench.detection_agents import START_TIMEOUT_S, WITHOUT_OVERRIDE, RecordWatch, close_disks, make_disks
from scripts.bench.detection_plan import NOT_POSSIBLE, Cell, Outcome
from scripts.rig.cluster import Cluster, directory_id, wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until

BLOCKING = ("hang", "hang-writes", "slow", "freeze")
DISKS_PER_BROKER = 8
BROKERS_AT_ONCE = 8
"""Some 300 MiB each."""
HEAP_MIB = 256
WARM_UP_S = 6.0
"""Until each directory has had its checkpoints, every 5 s."""
CHECKPOINT_INTERVAL_MS = 5000
"""``replica.high.watermark.checkpoint.interval.ms``: the phase of the fault is uniform over it."""
_POLL_S = 0.05
_LOAD = Path(__file__).with_name("detection_kafka_load.py")
_OFFLINE = re.compile(r"^\[([^]]+)\] \w+ .*Stopping serving (?:replicas|logs) in dir (\S+)", re.MULTILINE)


def brokers_of(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Groups of cells that share a broker: equal load, and none that blocks with any other."""
    groups: list[list[Cell]] = []
    shared: dict[str, list[Cell]] = {}
    for cell in cells:
        group = shared.get(cell.load)
        if cell.fault in BLOCKING:
            groups.append([cell])
        elif group is None or len(group) == DISKS_PER_BROKER:
            shared[cell.load] = [cell]
            groups.append(shared[cell.load])
        else:
            group.append(cell)
    return groups


@dataclass(slots=True)
class Trial:
    """A disk of a broker and its fault."""

    cell: Cell
    disk: RealDisk
    directory: Uuid | None = None
    phase_ms: int = 0
    injection: Injection | None = None
    begun: float = 0.0
    outcome: Outcome | None = None


@dataclass(slots=True)
class Broker:
    """A broker under test."""

    id: int
    port: int
    trials: list[Trial]
    load: str
    server: ManagedProcess | None = None
    offline: dict[str, float] = field(default_factory=dict)
    """When the log said that a directory is offline, wall clock, by path."""

    @property
    def topic(self) -> str:
        return f"bench-{self.id}"

    @property
    def partitions(self) -> int:
        return 2 * (len(self.trials) + 1)

    def read_log(self) -> None:
        """Notice what the log says about directories."""
        assert self.server is not None
        for stamp, path in _OFFLINE.findall(self.server.stderr()):
            moment = datetime.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
            self.offline.setdefault(path, moment)


class KafkaRig(Cluster):
    """A controller, and batches of brokers. Use it in a ``with`` block."""

    def __init__(self, kit: KafkaKit, base: Path, logs: Path, say: Callable[[str], None]) -> None:
        super().__init__(base, Processes(logs), kafka=kit, name="kafka-controller")
        self._kit = kit
        self._say = say
        self._next = 1
        self._watch: RecordWatch | None = None

    def __enter__(self) -> Self:
        try:
            self.format_controller(by_kafka=True)
            self.start_controller(START_TIMEOUT_S)
            self._watch = RecordWatch(self.port, self.cluster_id)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take everything away."""
        if self._watch is not None:
            self._watch.close()
        self.processes.close()

    @property
    def watch(self) -> RecordWatch:
        assert self._watch is not None
        return self._watch

    def run(self, cells: Sequence[Cell], repetition: int, wait_s: float, rng: random.Random) -> Iterator[Outcome]:
        """Every cell once, in batches of brokers; ``wait_s``: how long a broker is given to notice."""
        groups = brokers_of(cells)
        for first in range(0, len(groups), BROKERS_AT_ONCE):
            batch = groups[first : first + BROKERS_AT_ONCE]
            count = sum(map(len, batch))
            self._say(f"Kafka: {len(batch)} brokers, {count} disks, {first + len(batch)} of {len(groups)} brokers")
            yield from self._batch(batch, repetition, wait_s, rng)

    def _batch(
        self, groups: Sequence[Sequence[Cell]], repetition: int, wait_s: float, rng: random.Random
    ) -> list[Outcome]:
        base = self.base / "kafka"
        base.mkdir(exist_ok=True)
        wanted = [
            (base / f"g{g}-{n}", cell.fstype, "kafka") for g, cells in enumerate(groups) for n, cell in enumerate(cells)
        ]
        disks = make_disks(wanted)
        brokers: list[Broker] = []
        trials: list[Trial] = []
        with Processes(self.base / "kafka-loads") as loads:
            try:
                brokers = self._brokers(groups, disks)
                trials += [trial for broker in brokers for trial in broker.trials]
                self._start(brokers)
                self._start_loads(brokers, loads)
                time.sleep(WARM_UP_S)
                self._break(brokers, rng)
                self._follow(brokers, wait_s)
                return [_outcome(broker, trial, repetition, wait_s) for broker in brokers for trial in broker.trials]
            finally:
                for trial in trials:
                    if trial.injection is not None:
                        with contextlib.suppress(KjbodError, OSError):
                            undo(trial.injection)
                for broker in brokers:
                    if broker.server is not None:
                        broker.server.close()
                for process in loads.running():
                    process.close()
                close_disks(disks)
                shutil.rmtree(base, ignore_errors=True)

    def _brokers(self, groups: Sequence[Sequence[Cell]], disks: Sequence[RealDisk]) -> list[Broker]:
        brokers, rest = [], iter(disks)
        for cells in groups:
            trials = [Trial(cell, next(rest)) for cell in cells]
            brokers.append(Broker(self._next, free_port(), trials, cells[0].load))
            self._next += 1
        return brokers

    def _start(self, brokers: Sequence[Broker]) -> None:
        """All at once, and a topic with two partitions in every directory of each."""
        for broker in brokers:
            home = self.base / f"kafka-b{broker.id}"
            dirs = [home / "healthy", *(trial.disk.log_dir for trial in broker.trials)]
            own = {"metadata.log.dir": home / "metadata"}
            config = self.configure_broker(broker.id, dirs, own, config=home / "server.properties", port=broker.port)
            self._kit.format(config, self.cluster_id)
            for trial in broker.trials:
                trial.directory = directory_id(trial.disk.log_dir)
            broker.server = self.launch_broker(
                self._kit, config, name=f"kafka-{broker.id}", prefix=WITHOUT_OVERRIDE, heap_mib=HEAP_MIB
            )
        for broker in brokers:
            self._lead_everywhere(broker)

    def _lead_everywhere(self, broker: Broker) -> None:
        assert broker.server is not None
        wait_until_serving(broker.server)
        wait_until(lambda: broker.id in self.watch.unfenced(), START_TIMEOUT_S, f"broker {broker.id}, unfenced")
        self.create_topic(broker.topic, broker.partitions, brokers=(broker.id,))
        wait_until(
            lambda: all(any(trial.disk.log_dir.glob(f"{broker.topic}-*")) for trial in broker.trials),
            START_TIMEOUT_S,
            f"broker {broker.id} to have a replica on each disk",
        )

    def _start_loads(self, brokers: Sequence[Broker], loads: Processes) -> None:
        started = [
            loads.start(
                [sys.executable, "-P", str(_LOAD), str(b.port), b.topic, str(b.partitions)],
                name=f"producer-{b.id}",
            )
            for b in brokers
            if b.load == "busy"
        ]
        for load in started:
            load.wait_for_text("ready", START_TIMEOUT_S)

    def _break(self, brokers: Sequence[Broker], rng: random.Random) -> None:
        """Inject every fault, each at a moment of its own within one checkpoint interval."""
        due = [(rng.randrange(CHECKPOINT_INTERVAL_MS), trial) for broker in brokers for trial in broker.trials]
        start = time.monotonic()
        for phase_ms, trial in sorted(due, key=lambda entry: entry[0]):
            time.sleep(max(0.0, start + phase_ms / 1000 - time.monotonic()))
            trial.phase_ms = phase_ms
            trial.begun = time.time()
            trial.outcome = Outcome("kafka", trial.cell.fault, trial.cell.fstype, trial.cell.load, 0, "")
            try:
                trial.injection = inject(
                    trial.cell.fault, Target.of(trial.disk), state_dir=self.base / "kafka-injections"
                )
            except (KjbodError, OSError) as error:
                trial.outcome.final = f"{NOT_POSSIBLE}: {error}"
                continue
            trial.begun = trial.injection.began_ms / 1000
            trial.outcome.deed_ms = trial.injection.ended_ms - trial.injection.began_ms

    def _follow(self, brokers: Sequence[Broker], wait_s: float) -> None:
        """Until all are noticed, or for so long."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            open_trials = 0
            for broker in brokers:
                broker.read_log()
                for trial in broker.trials:
                    open_trials += not self._noticed(broker, trial)
            if not open_trials:
                break
            time.sleep(_POLL_S)

    def _noticed(self, broker: Broker, trial: Trial) -> bool:
        """Whether log and record both say so; keeps the times."""
        outcome = trial.outcome
        assert outcome is not None and trial.directory is not None
        if outcome.recorded_ms is None:
            seen = self.watch.offline_at(broker.id, trial.directory)
            outcome.recorded_ms = None if seen is None else (seen - trial.begun) * 1000
        logged = broker.offline.get(str(trial.disk.log_dir))
        outcome.verdict_ms = None if logged is None else (logged - trial.begun) * 1000
        return bool(outcome.final) or (outcome.recorded_ms is not None and logged is not None)


def _outcome(broker: Broker, trial: Trial, repetition: int, wait_s: float) -> Outcome:
    outcome = trial.outcome
    assert outcome is not None and broker.server is not None
    outcome.repetition = repetition
    outcome.phase_ms = trial.phase_ms
    if outcome.final:
        return outcome
    if outcome.verdict_ms is not None:
        outcome.final = "offline"
    elif not broker.server.running:
        outcome.final = f"broker ended with exit code {broker.server.exit_code}"
    else:
        outcome.final = f"not in {wait_s:.0f} s"
    return outcome
