"""``scripts/demo --guard``: the stage of the guard's story. Everything on it is gone at the end, whatever happened."""

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kjbod.errors import EXIT_FAILURE
from kjbod.faults.disks import require_real_disks
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from scripts.rig.rig_error import RigError
from scripts.story.disks import KillableDisk, make_real_disks
from scripts.story.guard_cluster import GuardedCluster
from scripts.story.guard_steps import HANG_S, GuardStory
from scripts.story.layout import BROKERS, DISKS_PER_BROKER, Layout
from scripts.story.left_behind import left_behind
from scripts.story.narrate import Narrator, StoryError
from scripts.terminal import INTERRUPTED, interrupt

_START_S = 60.0


def tell_of_guard(out: Path, ladder: str) -> int:
    """The exit code: 0 only when every claim was checked and nothing is left behind. Needs root.

    Args:
        out: where the logs are left.
        ladder: ``kjbod.guard.ladder`` of the guards.

    Raises:
        KjbodError: this machine lets us have no disks, no namespaces or no Kafka; one line.
    """
    require_real_disks()
    namespaces.reexec()
    kit = KafkaKit.find()
    namespaces.enter_network()
    tell = Narrator()
    tell.title("kjbod guard: a disk hangs under real Kafka brokers, first without a guard and then with one.")
    layout = Layout(Path(tempfile.mkdtemp(prefix="kjbod-demo-")), out)
    try:
        _play(kit, layout, tell, ladder)
    except (StoryError, RigError) as error:
        tell.failure(f"{error}. Logs: {layout.logs}")
        return EXIT_FAILURE
    except KeyboardInterrupt:
        tell.failure("interrupted; everything was taken away")
        return INTERRUPTED
    if left := left_behind(layout.work):
        tell.failure(f"left behind: {', '.join(left)}")
        return EXIT_FAILURE
    tell.claim("no mount, loop device, process or temporary file is left")
    tell.step(f"Done: {tell.claims} claims checked in {tell.elapsed_s():.0f} s. Logs: {layout.logs}")
    return 0


def _play(kit: KafkaKit, layout: Layout, tell: Narrator, ladder: str) -> None:
    with stage(layout) as (disks, processes):
        tell.step(f"Three Kafka brokers with {DISKS_PER_BROKER} disks each, and Kafka's controller")
        tell.say(f"in {layout.work}, which goes away at the end; paths below are relative to it")
        tell.hide(f"{layout.work}/")
        cluster = GuardedCluster(layout, disks, processes, kit, ladder)
        with started(cluster, tell) as story:
            tell.step(f"Kafka alone: the disk hangs for {HANG_S} s")
            story.hang_alone()
            tell.step("A guard beside each broker")
            story.start_guards()
            tell.step("With the guard: the same disk hangs again")
            story.hang_guarded()
            tell.step("The disk is replaced")
            story.replace()
            tell.step("Side by side")
            story.sum_up()
            tell.step("Clean up: guards, then controlled shutdown of all brokers, disks away")
            story.cluster.stop()


@contextlib.contextmanager
def started(cluster: GuardedCluster, tell: Narrator) -> Iterator[GuardStory]:
    """The cluster, serving its clients."""
    with contextlib.ExitStack() as stack:
        cluster.format_controller(by_kafka=True)
        cluster.start_controller(_START_S)
        watch = stack.enter_context(contextlib.closing(cluster.open_watch()))
        cluster.configure()
        for broker in BROKERS:
            cluster.launch(broker)
        clients = stack.enter_context(contextlib.closing(cluster.open_clients()))
        for broker in BROKERS:
            cluster.await_serving(broker, watch)
        story = GuardStory(cluster, watch, clients, tell)
        story.settle()
        yield story


@contextlib.contextmanager
def stage(layout: Layout) -> Iterator[tuple[dict[tuple[int, int], KillableDisk], Processes]]:
    """Disks and processes. At the end the disks answer first: nobody who waits for one ends before."""
    for old in ("reports", "logs", "fleet"):
        shutil.rmtree(layout.out / old, ignore_errors=True)
    layout.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, interrupt)
    disks: dict[tuple[int, int], KillableDisk] = {}
    try:
        with Processes(layout.logs) as processes:
            disks = make_real_disks(layout.work, BROKERS, DISKS_PER_BROKER)
            try:
                yield disks, processes
            finally:
                # A second Ctrl-C must not leave half of it behind.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                for disk in disks.values():
                    disk.mend()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for disk in disks.values():
            disk.close()
        shutil.rmtree(layout.work, ignore_errors=True)
