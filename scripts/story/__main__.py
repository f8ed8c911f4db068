"""``scripts/demo``: tell the story, then clean up. Needs the environment that ``scripts/setup`` makes."""

import argparse
import contextlib
import logging
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from scripts.rig import namespaces
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, adopt_orphans, children, end_children
from scripts.rig.rig_error import RigError
from scripts.story import keeper
from scripts.story.cluster import Cluster
from scripts.story.disks import Disk, make_disks, why_no_real_disks
from scripts.story.guard_stage import tell_of_guard
from scripts.story.layout import (
    BROKERS,
    DISKS_PER_BROKER,
    FAILURE_TIMEOUT_MS,
    Layout,
)
from scripts.story.left_behind import left_behind
from scripts.story.narrate import Narrator, StoryError
from scripts.story.steps import Story
from scripts.terminal import INTERRUPTED, interrupt


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description="What happens when a disk of a Kafka broker dies: the whole path, for real."
    )
    parser.add_argument(
        "--guard",
        action="store_true",
        help="another story: a disk hangs under three real Kafka brokers, without a guard and with one",
    )
    parser.add_argument(
        "--ladder",
        choices=("disk", "fence"),
        help="with --guard: save the broker from its disk (disk), or give it up at once (fence), as kjbod.guard.ladder",
    )
    parser.add_argument("--controller", choices=("stub", "kafka"), help="kjbod's (stub), or Apache Kafka's")
    parser.add_argument(
        "--out", type=Path, default=Path("kjbod-demo"), help="where report and logs are left (./kjbod-demo)"
    )
    parser.add_argument("--plain-directories", action="store_true", help="no real disks, as without root")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running and say how to use it")
    group = parser.add_argument_group("a cluster that was kept")
    group.add_argument("--break", dest="kill", metavar="BROKER/DISK", help="kill a disk, for example 3/2")
    group.add_argument("--stop", action="store_true", help="stop it and take everything away")
    arguments = parser.parse_args()
    others = (arguments.controller, arguments.plain_directories, arguments.keep, arguments.kill, arguments.stop)
    if arguments.guard and any(others):
        parser.error(
            "--guard goes with --out and --ladder: it has Kafka's controller and real disks, and keeps nothing"
        )
    if arguments.ladder and not arguments.guard:
        parser.error("--ladder is the guard's: scripts/demo --guard --ladder fence")
    return arguments


def main() -> int:
    """The exit code: 0 only when every claim was checked and nothing is left behind."""
    arguments = _arguments()
    out: Path = arguments.out.absolute()
    # The observer's own log lines are not part of the story.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        if arguments.guard:
            keeper.refuse_second(out)
            return tell_of_guard(out, arguments.ladder or "disk")
        if arguments.stop:
            return keeper.stop(out)
        if arguments.kill:
            return keeper.break_disk(out, arguments.kill)
        keeper.refuse_second(out)
        if arguments.keep and not keeper.is_keeper():
            return keeper.launch(out)
        real = not arguments.plain_directories and why_no_real_disks() is None
        if real and not arguments.keep:
            namespaces.reexec()
        return _tell(arguments, out, real=real)
    except KjbodError as error:
        Narrator().failure(str(error))
        return EXIT_FAILURE
    except KeyboardInterrupt:  # before anything was made
        Narrator().failure("interrupted")
        return INTERRUPTED


def _tell(arguments: argparse.Namespace, out: Path, *, real: bool) -> int:
    tell = Narrator()
    whose = "Apache Kafka's" if arguments.controller == "kafka" else "kjbod's"
    tell.title(f"kjbod: a disk dies and leadership moves. With {whose} controller, over Kafka's protocol.")
    _say_how_real(arguments, tell, real=real)
    try:
        with _stage(out, real=real) as (layout, disks, processes):
            story = _play(arguments, layout, disks, processes, tell)
            if arguments.keep:
                keeper.keep(out, story, tell)
                tell.step("Clean up")
            else:
                tell.step("Clean up: controlled shutdown of what still runs, disks away")
            story.watch.close()
            story.cluster.stop()
    except (StoryError, RigError) as error:
        tell.failure(f"{error}. Logs: {out / 'logs'}")
        return EXIT_FAILURE
    except KeyboardInterrupt:
        tell.failure("interrupted; everything was taken away")
        return INTERRUPTED
    left = left_behind(layout.work)
    if left:
        tell.failure(f"left behind: {', '.join(left)}")
        return EXIT_FAILURE
    tell.claim("no mount, loop device, process or temporary file is left")
    tell.step(f"Done: {tell.claims} claims checked in {tell.elapsed_s():.0f} s")
    tell.say(f"page    {layout.fleet / 'index.html'}")
    tell.say(f"tables  {layout.fleet / 'tables'}")
    tell.say(f"logs    {layout.logs}")
    return 0


def _say_how_real(arguments: argparse.Namespace, tell: Narrator, *, real: bool) -> None:
    if real:
        return
    reason = "asked for by --plain-directories" if arguments.plain_directories else why_no_real_disks()
    tell.warn(f"No real disks: {reason}.")
    tell.warn("Steps 1, 4 and 5 change: the log directories are plain directories, and a disk dies by its directory")
    tell.warn(
        "being moved away (ENOENT, as after an unmount) instead of the kernel answering EIO. The rest is the same."
    )


@contextlib.contextmanager
def _stage(out: Path, *, real: bool) -> Iterator[tuple[Layout, dict[tuple[int, int], Disk], Processes]]:
    """Work directory, disks and processes; all taken away at the end, whatever happened."""
    for old in ("reports", "logs", "fleet"):
        shutil.rmtree(out / old, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, interrupt)
    adopt_orphans()
    before = servers = children()
    layout = Layout(Path(tempfile.mkdtemp(prefix="kjbod-demo-")), out)
    disks: dict[tuple[int, int], Disk] = {}
    try:
        with Processes(layout.logs) as processes:
            disks = make_disks(layout.work, BROKERS, DISKS_PER_BROKER, real=real)
            servers = children()
            yield layout, disks, processes
    finally:
        # A second Ctrl-C must not leave half of it behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        with contextlib.ExitStack() as away:  # the last one first
            away.callback(shutil.rmtree, layout.work, ignore_errors=True)
            away.callback(end_children, but=before)
            for disk in disks.values():
                away.callback(disk.close)
            # Not all is in ``processes``: one that was just being started, and what an agent starts in sessions of its
            # own. Whoever lives may write into what is taken away.
            away.callback(end_children, but=servers)


def _play(
    arguments: argparse.Namespace,
    layout: Layout,
    disks: dict[tuple[int, int], Disk],
    processes: Processes,
    tell: Narrator,
) -> Story:
    """The steps, in order."""
    tell.step(f"{len(disks)} disks: {DISKS_PER_BROKER} for each of {len(BROKERS)} brokers")
    tell.say(f"in {layout.work}, which goes away at the end; paths below are relative to it")
    tell.hide(f"{layout.work}/")
    for broker in BROKERS:
        tell.say(", ".join(str(disk.log_dir) for (of, _), disk in disks.items() if of == broker))
    cluster = Cluster(layout, disks, processes)
    tell.step("Format them, start the controller and three agents, create a topic")
    for node, count in cluster.format().items():
        tell.say(f"kjbod format -c {node}.properties: {count} {'directory' if count == 1 else 'directories'}")
    if arguments.controller == "kafka":
        tell.say("Apache Kafka 4.3.1 (its class data archive is made on the first run)")
        cluster.kafka = KafkaKit.find()
    tell.say("starting the controller")
    cluster.start_controller()
    watch = ClusterWatch(cluster.port, cluster.cluster_id)
    tell.say("starting three agents, and waiting until the controller has unfenced them")
    cluster.start_agents()
    story = Story(cluster, watch, tell)
    story.settle()
    tell.step("Who leads what")
    story.show_leaders()
    tell.step("A disk of broker 1 dies")
    story.kill_a_disk(1)
    tell.step(
        f"The controller falls silent and a disk of broker 2 dies; log.dir.failure.timeout.ms={FAILURE_TIMEOUT_MS}"
    )
    story.kill_a_disk_without_controller(2)
    story.resume(2)
    tell.step("The fleet report, with Spark")
    story.report()
    return story


if __name__ == "__main__":
    sys.exit(main())
