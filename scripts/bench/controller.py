"""``scripts/bench/controller``: kjbod's controller beside a real one, on the same machine, asked by the same client."""

import argparse
import asyncio
import csv
import dataclasses
import logging
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.security.keys import PLAINTEXT
from scripts.bench.command_line import positive
from scripts.bench.controller_cases import (
    Extent,
    Row,
    Sample,
    Samples,
    behind_reads,
    changes,
    creation,
    heartbeats,
    logins,
    restart,
)
from scripts.bench.controller_rig import ControllerRig, System
from scripts.rig.kafka import VERSION, KafkaKit
from scripts.terminal import INTERRUPTED, interrupt, say

PARTS: Final = {
    "a": "a directory full of leaders fails",
    "b": "assignments of replicas to directories",
    "c": "heartbeats",
    "d": "creation of partitions",
    "e": "start with that metadata",
    "f": "memory with that metadata",
    "g": "how long heartbeats of other brokers wait meanwhile",
    "h": "heartbeats over TLS, after a login by SCRAM-SHA-512",
    "i": "such logins",
    "j": "a directory fails under clients with large reads",
}
SECURED: Final = "secured"
"""What names of cases with TLS and logins begin with."""
SECURED_BROKERS: Final = 2_000
SECURED_CPU_RATIO_MAX: Final = 0.8
"""Of a heartbeat over TLS, as a share of Kafka's."""
PAUSE_MS_MAX: Final = 50.0
BEHIND_READS_MS_MAX: Final = {"median": 100.0, "worst": 1_000.0}
"""From the report of a failed directory to its answer, whatever others read."""
READERS: Final = (15, 28)
"""Clients of part j."""
_FULL = Extent(
    rounds=3, warm_ups=1, ladder=(500, 1_000, 2_000, 4_000), window_s=8.0, snapshot_interval_ms=4_000,
    snapshot_timeout_s=60.0,
)  # fmt: skip
_QUICK = Extent(
    rounds=1, warm_ups=0, ladder=(50, 100), window_s=2.5, snapshot_interval_ms=1_500, snapshot_timeout_s=10.0
)


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdigit() and int(number) > 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1 on, with commas between them")
    return [int(number) for number in numbers]


def _parts(text: str) -> str:
    parts = text.replace(",", "")
    if unknown := [part for part in parts if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: choose from {', '.join(PARTS)}")
    return parts


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/controller",
        description="kjbod's controller and a real Apache Kafka one, one after the other, asked the same by the same "
        "client. Exit code 1 when kjbod's is worse than Kafka's in anything that counts, or makes other brokers wait "
        f"for more than {PAUSE_MS_MAX:g} ms.",
        epilog="parts: " + "; ".join(f"{letter}: {text}" for letter, text in PARTS.items()),
    )
    parser.add_argument("--only", type=_parts, default="".join(PARTS), metavar="a,b,...", help="these parts (all)")
    parser.add_argument("--sizes", type=_numbers, metavar="N,...", help="partitions (10000,100000)")
    parser.add_argument("--ladder", type=_numbers, metavar="N,...", help="brokers of part c (500,1000,2000,4000)")
    parser.add_argument("--rounds", type=positive, metavar="N", help="warm repetitions, of which the median counts (3)")
    parser.add_argument("--rules", choices=("kip-858", "kafka"), default="kip-858", help="of kjbod's (kip-858)")
    parser.add_argument("--no-kafka", action="store_true", help="kjbod's alone: nothing is compared")
    parser.add_argument("--heap-mib", type=positive, default=1024, metavar="N", help="Kafka's heap (1024, its default)")
    parser.add_argument("--quick", action="store_true", help="1,000 and 10,000 partitions, 100 brokers, one round")
    parser.add_argument("--out", type=Path, default=Path("kjbod-bench/controller"), help="CSV, plot and logs")
    options = parser.parse_args(argv)
    options.sizes = sorted(options.sizes or ([1_000, 10_000] if options.quick else [10_000, 100_000]))
    return options


def main() -> int:
    """The exit code: 1 when something is out of reach, or could not be measured."""
    options = arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        kit = None if options.no_kafka else KafkaKit.find()
        signal.signal(signal.SIGTERM, interrupt)
        raise_files_limit()
        options.out.mkdir(parents=True, exist_ok=True)
        samples = _measure(options, kit)
        _write_csv(options.out / "controller.csv", samples)
        _draw(samples, options.out / "controller")
        misses = _tell(samples, kit)
    except KeyboardInterrupt:
        say("interrupted; everything was taken away")
        return INTERRUPTED
    except (KjbodError, OSError) as error:
        print(f"scripts/bench/controller: {str(error).splitlines()[0]}", file=sys.stderr)
        return EXIT_FAILURE
    return EXIT_FAILURE if misses and not options.quick else 0


def raise_files_limit() -> None:
    """As many open files as there may be, for a connection of each broker."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# ------------------------------------------------------------------------------------------------------------ measuring

_Case = tuple[str, Callable[[ControllerRig, Samples], object]]


def _measure(options: argparse.Namespace, kit: KafkaKit | None) -> list[Sample]:
    """Measure each case on each system, one after the other, so that both have the same machine."""
    systems: list[System] = ["kjbod"] if kit is None else ["Kafka", "kjbod"]
    found: list[Sample] = []
    for name, case in _cases(options):
        for system in systems:
            samples = Samples(system, say)
            with tempfile.TemporaryDirectory(prefix="kjbod-controller-") as work:
                logs = options.out / "logs" / f"{system.lower()}-{name}"
                protocol = "SASL_SSL" if name.startswith(SECURED) else PLAINTEXT
                with ControllerRig(
                    Path(work), logs, system, kit=kit, rules=options.rules, heap_mib=options.heap_mib, protocol=protocol
                ) as rig:
                    case(rig, samples)
            found += samples.all
    return found


def _cases(options: argparse.Namespace) -> Iterator[_Case]:
    extent = _QUICK if options.quick else _FULL
    extent = Extent(
        rounds=options.rounds or extent.rounds,
        warm_ups=extent.warm_ups,
        ladder=tuple(options.ladder or extent.ladder),
        window_s=extent.window_s,
        snapshot_interval_ms=extent.snapshot_interval_ms,
        snapshot_timeout_s=extent.snapshot_timeout_s,
    )
    parts, most = options.only, options.sizes[-1]
    if set(parts) & set("abg"):
        for size in options.sizes:
            yield f"changes-{size}", _changes(parts, size, extent)
    if "c" in parts:
        yield "heartbeats", lambda rig, out: asyncio.run(heartbeats(rig, out, extent))
    if "d" in parts:
        yield "creation", lambda rig, out: asyncio.run(creation(rig, out, most, extent))
    if set(parts) & set("efg"):
        yield "restart", lambda rig, out: asyncio.run(restart(rig, out, parts, most, extent))
    if "j" in parts:
        yield "reads", lambda rig, out: asyncio.run(behind_reads(rig, out, most, READERS))
    one = dataclasses.replace(extent, ladder=(min(SECURED_BROKERS, extent.ladder[-1]),))
    if "h" in parts:
        yield f"{SECURED}-heartbeats", lambda rig, out: asyncio.run(heartbeats(rig, out, one, "h"))
    if "i" in parts:
        yield f"{SECURED}-logins", lambda rig, out: asyncio.run(logins(rig, out, one))


def _changes(parts: str, size: int, extent: Extent) -> Callable[[ControllerRig, Samples], object]:
    return lambda rig, out: asyncio.run(changes(rig, out, parts, size, extent))


# -------------------------------------------------------------------------------------------------------------- telling


@dataclass(frozen=True, slots=True)
class Comparison:
    """A line of the table: medians.

    Attributes:
        reached: None where nothing is promised, or nothing was measured to compare with.
    """

    row: Row
    kafka: float | None
    kjbod: float | None
    reached: bool | None

    @property
    def ratio(self) -> float | None:
        """kjbod's as a share of Kafka's."""
        return self.kjbod / self.kafka if self.kjbod is not None and self.kafka else None


def compare(samples: Sequence[Sample]) -> list[Comparison]:
    """A line for each row, in the order of the parts."""
    rows = sorted(dict.fromkeys(sample.row for sample in samples), key=lambda row: row.part)
    compared = []
    for row in rows:
        kafka, kjbod = _median(samples, row, "Kafka"), _median(samples, row, "kjbod")
        compared.append(Comparison(row, kafka, kjbod, _reached(row, kafka, kjbod)))
    return compared


def _median(samples: Sequence[Sample], row: Row, system: System) -> float | None:
    values = [sample.value for sample in samples if (sample.row, sample.system) == (row, system)]
    return statistics.median(values) if values else None


def _reached(row: Row, kafka: float | None, kjbod: float | None) -> bool | None:
    if kjbod is None:
        return None
    if row.part == "j":
        return kjbod <= BEHIND_READS_MS_MAX[row.name.rpartition(" ")[2]]
    if row.part == "g":
        return None if "nothing else" in row.name or row.name.endswith("refused") else kjbod <= PAUSE_MS_MAX
    if kafka is None or any(word in row.name for word in ("RSS", "first Fetch", "p50")) or row.unit == "cores":
        return None  # for information: the line beside it counts
    if row.name.startswith("most brokers"):
        return kjbod >= kafka
    if row.part == "h" and row.unit == "µs":
        return kjbod <= SECURED_CPU_RATIO_MAX * kafka
    return kjbod <= kafka


def _tell(samples: Sequence[Sample], kit: KafkaKit | None) -> list[str]:
    """A table for people; what is out of reach."""
    print(f"{machine(kit)}\n")
    print(f"{'':2}{'':<66}{'':<6}{'Kafka':>11}{'kjbod':>11} {'':<6}{'ratio':>7}")
    misses = []
    for line in compare(samples):
        row = line.row
        missed = line.reached is False
        print(
            f"{row.part} {row.name:<66}{row.phase:<6}{_n(line.kafka):>11}{_n(line.kjbod):>11} {row.unit:<6}"
            + f"{'' if line.ratio is None else f'{line.ratio:.2f}':>7}"
            + ("  OUT OF REACH" if missed else "  ok" if line.reached else "")
        )
        if missed:
            misses.append(f"{row.part} {row.name}, {row.phase}")
    print(
        f"\nmedians; reach: no worse than Kafka's; g: at most {PAUSE_MS_MAX:g} ms, j: a median of at most "
        f"{BEHIND_READS_MS_MAX['median']:g} ms and {BEHIND_READS_MS_MAX['worst']:g} ms at worst, whatever Kafka's is\n"
        f"{len(misses)} out of reach"
    )
    return misses


def _n(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def machine(kit: KafkaKit | None) -> str:
    """The machine that was measured on."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    memory_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    told = f"{os.cpu_count()} × {model}, {memory_kib / 2**20:.0f} GiB, Linux {platform.release()}, "
    told += f"{platform.python_implementation()} {platform.python_version()}"
    if kit is None:
        return told
    said = subprocess.run([str(kit.java), "-version"], capture_output=True, text=True, check=False).stderr
    return f"{told}; Kafka {VERSION} on {(said.splitlines() or ['Java'])[0]}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _write_csv(path: Path, samples: Sequence[Sample]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["part", "name", "phase", "unit", "system", "value"])
        for sample in samples:
            row = sample.row
            writer.writerow([row.part, row.name, row.phase, row.unit, sample.system, f"{sample.value:.3f}"])


def _draw(samples: Sequence[Sample], stem: Path) -> None:
    os.environ.setdefault("MPLCONFIGDIR", str(stem.parent / "logs"))
    from scripts.bench.controller_plot import draw

    draw(samples, stem)


if __name__ == "__main__":
    sys.exit(main())
