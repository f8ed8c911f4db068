"""The stage of a cell: a directory, processes and real disks that are gone at its end, and a Kafka."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kjbod.faults.disks import RealDisk
from kjbod.faults.faults_error import FaultsError
from scripts.rig.cluster import GUARD_TIMEOUT_S, NOTHING, Cluster, Properties
from scripts.rig.kafka import KafkaKit, render_properties
from scripts.rig.processes import ManagedProcess, Processes
from scripts.rig.rig_error import RigError

_COMMAND_S = 60.0
CUT_AFTER_MS = 1_000
"""``kjbod.guard.cut.after.ms``: loop devices would get 10 s."""


class CellError(RigError):
    """A claim of a cell that does not hold."""


def claim(holds: object, otherwise: str) -> None:
    """Go on where it holds. Raises :class:`CellError` with what is so otherwise."""
    if not holds:
        raise CellError(otherwise)


@dataclass
class Stage:
    """A cell's surroundings, and its notes.

    Attributes:
        base: its directory.
        kits: Kafka, in the order in which a rolling upgrade goes through the versions.
        processes: starts processes.
        absent: parts that this version does not have, and why.
        differences: listed differences that were met.
        problems: differences that are not listed.
    """

    base: Path
    kits: Sequence[KafkaKit]
    processes: Processes
    disks: list[RealDisk] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def kit(self) -> KafkaKit:
        """The first, and mostly the only one."""
        return self.kits[0]

    def disk(self) -> RealDisk:
        """Make a disk; its log directory is ``kafka``."""
        self.disks.append(RealDisk(log_dir="kafka"))
        return self.disks[-1]

    def cluster(self, properties: Properties = NOTHING, *, scram: Sequence[str] = ()) -> Cluster:
        """Start this Kafka's controller, formatted by its own tool."""
        cluster = Cluster(self.base, self.processes, kafka=self.kit, properties=properties)
        cluster.format_controller(by_kafka=True, scram=scram)
        cluster.start_controller()
        return cluster

    def kjbod(self, *arguments: str, code: int = 0) -> str:
        """Return the output of a command. Raises :class:`CellError` where its exit code is another."""
        done = self.processes.kjbod(*arguments, name="-".join(arguments[:2]))
        ended = done.wait(_COMMAND_S)
        claim(ended == code, f"kjbod {' '.join(arguments[:2])}: exit code {ended}: {done.tail()}")
        return done.stdout()

    def guard(self, config: Path, *, act: bool) -> "GuardedBroker":
        """Write the file of a guard beside the broker of a file."""
        own = self.base / f"guard-{config.parent.name}" / "guard.properties"
        own.parent.mkdir()
        keys = {"kjbod.state.dir": own.parent / "state", "kjbod.host": "host1"}
        mode = {"kjbod.guard.mode": "act", "kjbod.guard.cut.after.ms": CUT_AFTER_MS} if act else {}
        own.write_text(render_properties({**keys, **mode}))
        return GuardedBroker(self.processes, config, own)


@dataclass
class GuardedBroker:
    """A broker's file, and a guard's beside it."""

    processes: Processes
    config: Path
    own: Path

    @property
    def arguments(self) -> list[str]:
        """The files, for the command line."""
        return ["-c", str(self.config), "--guard-config", str(self.own)]

    def start(self) -> ManagedProcess:
        """Start the guard; returns when it has found its broker and follows the metadata."""
        guard = self.processes.kjbod("guard", "run", *self.arguments, name="guard")
        guard.wait_for_event("guard.broker.found", GUARD_TIMEOUT_S)
        guard.wait_for_event("guard.metadata.followed", GUARD_TIMEOUT_S)
        return guard


@contextlib.contextmanager
def stage(base: Path, kits: Sequence[KafkaKit], preloaded: Any = None) -> Iterator[Stage]:
    """Set a stage. At its end processes end first, whom no disk may hold, and then the disks go."""
    disks = contextlib.ExitStack()
    with disks, Processes(base / "logs", preloaded=preloaded) as processes:
        made = Stage(base, kits, processes)
        try:
            yield made
        finally:
            for disk in made.disks:
                disks.push(disk)
                with contextlib.suppress(FaultsError, OSError):
                    disk.kill()
                    disk.thaw()
