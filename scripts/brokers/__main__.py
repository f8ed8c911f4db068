"""``scripts/real-brokers``: unmodified Kafka brokers, clients and tools on kjbod's controller, and on Kafka's."""

import argparse
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults.disks import require_real_disks
from scripts.brokers import secured
from scripts.brokers.agreement import disagreements
from scripts.brokers.cluster import Kind, RealCluster
from scripts.brokers.deeds import LOADED, Story
from scripts.brokers.load import read_all
from scripts.brokers.tools import Difference, Outcome, compare, run_tools, save
from scripts.rig import namespaces
from scripts.rig.cluster import Properties
from scripts.rig.kafka import KafkaKit

BROKERS: Final = 3
PARTS: Final = ("tools", "clients", "load")
_COMPARED: Final[Properties] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "auto.leader.rebalance.enable": "false",  # by the clock, while what is compared takes its time
    "metadata.log.max.record.bytes.between.snapshots": 5000,
}
_LOADED: Final[Properties] = {
    "leader.imbalance.check.interval.seconds": 20,
    # Much of the log is in snapshots only, so that brokers that come back have to fetch one.
    "metadata.log.max.record.bytes.between.snapshots": 20_000,
    "metadata.log.segment.ms": 20_000,
    "metadata.max.retention.ms": 20_000,
    "metadata.max.retention.bytes": 20_000,
}
_INTERRUPTED: Final = 130
_SHOWN: Final = 20


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if unknown := [part for part in parts if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: choose from {', '.join(PARTS)}")
    return parts


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/real-brokers",
        description="Three unmodified Apache Kafka brokers with three log directories each on a controller. First "
        "all of Kafka's tools and two client libraries go through a story of their own, and what they say on kjbod's "
        "controller is compared with what they say on Kafka's; then the cluster is restarted, killed, moved about and "
        "its disks are broken while clients write and read. Exit code 1 when an acknowledged record is lost, when the "
        "metadata are not what is on the disks, or when something is said differently on the two controllers that is "
        "not in the table of differences that are meant (scripts/brokers/differences.py).",
    )
    parser.add_argument("--controller", choices=("kjbod", "kafka", "both"), default="both", help="whose (both)")
    parser.add_argument(
        "--minutes", type=float, default=5.0, metavar="N", help="of load on each; every deed is done once at least (5)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the order of deeds and what is chosen in them (random)")
    parser.add_argument(
        "--parts", type=_parts, default=PARTS, metavar="NAME,...", help=f"only these of {','.join(PARTS)} (all)"
    )
    parser.add_argument(
        "--deeds", default="", metavar="WORDS", help="under load only the deeds with these words in their name (all)"
    )
    parser.add_argument(
        "--secured",
        action="store_true",
        help="another story: TLS and SASL in both directions, every API by each kind of peer, tokens; needs no root",
    )
    parser.add_argument("--plain", action="store_true", help="no real disks, and so none breaks: needs no root")
    parser.add_argument("--rules", choices=("kip-858", "kafka"), default="kip-858", help="of kjbod's (kip-858)")
    parser.add_argument(
        "--out", type=Path, default=Path("kjbod-real-brokers"), metavar="DIR", help="transcripts and logs"
    )
    options = parser.parse_args(argv)
    if options.minutes < 0:
        parser.error("--minutes: a number from 0 on")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    try:
        if options.secured:
            return _secured(options.out.resolve())
        if not options.plain:
            require_real_disks()
            namespaces.reexec()
        return Run(options).run()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (KjbodError, AssertionError) as error:
        print(f"real-brokers: {error}", file=sys.stderr)
        return EXIT_FAILURE


def _secured(out: Path) -> int:
    """The exit code: 0 when everybody was let in who should be, and nobody else."""
    out.mkdir(parents=True, exist_ok=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    began_s = time.monotonic()
    problems = secured.run(
        KafkaKit.find(), out, lambda text: print(f"{time.monotonic() - began_s:7.1f} s  {text}", flush=True)
    )
    for problem in problems:
        print(f"real-brokers: {problem}", file=sys.stderr)
    print(f"{len(problems)} problems; tables of peers and APIs: {out}")
    return EXIT_FAILURE if problems else 0


class Run:
    """A call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.kit = KafkaKit.find()
        self.kinds: tuple[Kind, ...] = ("kafka", "kjbod") if options.controller == "both" else (options.controller,)
        self.seed: int = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
        self.out: Path = options.out.resolve()
        self.out.mkdir(parents=True, exist_ok=True)
        self._began_s = time.monotonic()
        self.problems: list[str] = []

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", flush=True)

    def run(self) -> int:
        self.say(f"seed {self.seed}")
        try:
            self._compare_all()
        except (KjbodError, AssertionError) as error:
            self.problems.append(str(error))
        for problem in self.problems:
            print(f"real-brokers: {problem}", file=sys.stderr)
        self.say("failed" if self.problems else "all as it should be")
        return EXIT_FAILURE if self.problems else os.EX_OK

    def _compare_all(self) -> None:
        outcomes: dict[Kind, list[Outcome]] = {kind: [] for kind in self.kinds}
        for part in self.options.parts:
            for kind in self.kinds:
                outcomes[kind] += self._on_cluster(kind, part)
        if len(outcomes) == 2:
            self._report(compare(outcomes["kjbod"], outcomes["kafka"]))

    def _on_cluster(self, kind: Kind, part: str) -> list[Outcome]:
        """Run one part on a cluster of its own, and keep the logs."""
        stories = {"tools": self._tools, "clients": self._clients, "load": self._load}
        disks = [(broker, 3) for broker in range(1, BROKERS + 1)] if part == "load" and not self.options.plain else []
        properties = dict(_LOADED if part == "load" else _COMPARED)
        if (kind, self.options.rules) == ("kjbod", "kafka"):
            properties["kjbod.controller.rules"] = "kafka"
        logs = self.out / f"{kind}-{part}"
        with tempfile.TemporaryDirectory(prefix="kjbod-brokers-") as work:
            self.say(f"{kind}: {part}")
            base = Path(work) / "c"
            with RealCluster(base, self.kit, kind, brokers=BROKERS, disks=disks, properties=properties) as made:
                try:
                    made.start()
                    return stories[part](made)
                finally:
                    shutil.rmtree(logs, ignore_errors=True)
                    shutil.copytree(made.base / "logs", logs)

    def _tools(self, cluster: RealCluster) -> list[Outcome]:
        return self._keep(run_tools(cluster), f"{cluster.kind}-tools.txt")

    def _clients(self, cluster: RealCluster) -> list[Outcome]:
        from scripts.brokers.clients import run_clients  # with two clients of Kafka, for this part alone

        return self._keep(run_clients(cluster), f"{cluster.kind}-clients.txt")

    def _keep(self, outcomes: list[Outcome], name: str) -> list[Outcome]:
        save(outcomes, self.out / name)
        self.say(f"  {len(outcomes)} steps: {self.out / name}")
        return outcomes

    def _load(self, cluster: RealCluster) -> list[Outcome]:
        story = Story(cluster, self.seed, self.say)
        story.create()
        story.start_clients()
        end_s = time.monotonic() + 60 * self.options.minutes
        words = self.options.deeds.replace(" ", "_")
        deeds = [deed for deed in story.deeds if words in deed.__name__]
        first = True
        while first or time.monotonic() < end_s:
            for deed in deeds if first else story.rng.sample(deeds, len(deeds)):
                if not first and time.monotonic() >= end_s:
                    break
                began_s = time.monotonic()
                deed()
                self.say(f"  {deed.__name__.replace('_', ' ')} ({time.monotonic() - began_s:.1f} s)")
            first = False
        story.stop_writers()
        self._check(cluster, story)
        return []

    def _check(self, cluster: RealCluster, story: Story) -> None:
        seen = read_all(cluster.bootstrap, LOADED)
        lost = story.acknowledged - set(seen)
        visible = story.transactions.aborted & set(seen)
        twice = [value for value, count in seen.items() if count > 1]
        given_up = sum(writer.failed for writer in story.writers)
        gap_s = max(writer.longest_gap_s for writer in story.writers)
        self.say(
            f"  {len(story.acknowledged)} records acknowledged, {len(lost)} lost, {len(twice)} twice, "
            f"{given_up} given up, {len(story.transactions.aborted)} in aborted transactions, of them "
            f"{len(visible)} visible; longest time without an acknowledgement {gap_s:.1f} s"
        )
        for what, values in (("lost", lost), ("aborted and visible", visible), ("twice", twice)):
            if values:
                self.problems.append(f"{cluster.kind}: {len(values)} records {what}: {sorted(values)[:_SHOWN]}")
        story.wait_for_readers()
        cluster.stop()
        apart = disagreements(cluster)
        self.say(f"  {len(apart)} replicas of which the metadata say something else than the disks")
        self.problems += [f"{cluster.kind}: {line}" for line in apart[:_SHOWN]]

    def _report(self, differences: Sequence[Difference]) -> None:
        for difference in differences:
            print(f"{'meant' if difference.reason else 'DIFFERENT'}: {difference.name}")
            if difference.reason:
                print(f"  because {difference.reason}")
            else:
                print("".join(f"  {line}\n" for line in difference.lines), end="")
        unmeant = [difference for difference in differences if not difference.reason]
        self.say(f"tools: {len(differences)} steps differ, {len(unmeant)} of them without a reason in the table")
        if unmeant:
            self.problems.append(f"{len(unmeant)} steps of tools differ without a reason in the table")


if __name__ == "__main__":
    sys.exit(main())
