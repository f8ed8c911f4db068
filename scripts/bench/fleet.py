"""``scripts/bench/fleet``: the fleet pipeline beside DuckDB and Polars."""

import argparse
import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from scripts.bench.command_line import listed, positive
from scripts.bench.fleet_data import DIRECTORIES, HOSTS_OF_ONE, MINUTES, add_hours, make_lake, rows_of
from scripts.bench.fleet_questions import ENGINES
from scripts.bench.json_record import JsonRecord
from scripts.rig.rig_error import RigError
from scripts.terminal import interrupt, say

PARTS: Final = ("questions", "increment", "hour", "days")
REACH_GROWTH: Final = 2.1
"""How many times as long twice as many rows may take."""
REACH_SHARE: Final = 0.2
"""Of DuckDB's scan of all raw rows of the days: what the questions to gold may take after one more hour."""
REACH_HOUR_S: Final = 60.0
REACH_DAYS_S: Final = 30.0
NEXT_HOUR: Final = "next hour: ingest --rollup"
_SAMPLE_S: Final = 0.1
_TOLERANCE: Final = 1e-9
_MIB: Final = 1 << 20


@dataclass(slots=True)
class Cost(JsonRecord):
    """Cost of a process and of all that it started."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    """Resident, at most at one moment, of all of them together."""
    others_percent: float
    """Of the processors, that all other processes took meanwhile."""


@dataclass(slots=True)
class Run(JsonRecord):
    """A measurement."""

    part: str
    name: str
    size: int
    rows: int
    cost: Cost
    questions_s: float | None = None
    """Without the start."""
    each_s: dict[str, float] = dataclasses.field(default_factory=dict)


def measured(command: Sequence[str]) -> tuple[Cost, str]:
    """Run a command to its end. Returns its cost and its standard output.

    Raises:
        RigError: it failed.
    """
    busy_before, began, cpu_before = _busy_s(), time.monotonic(), _children_s()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    peak, ended = [0], threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, peak, ended))
    sampler.start()
    try:
        out, err = process.communicate()
    finally:
        ended.set()
        sampler.join()
        if process.poll() is None:
            process.terminate()
            process.wait()
    wall_s, cpu_s = time.monotonic() - began, _children_s() - cpu_before
    if process.returncode:
        raise RigError(f"{' '.join(command)}: exit code {process.returncode}: {err.strip()[-500:]}")
    others = max(_busy_s() - busy_before - cpu_s, 0) / (wall_s * (os.cpu_count() or 1))
    return Cost(wall_s, cpu_s, peak[0] / _MIB, 100 * others), out


def _sample(pid: int, peak: list[int], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_S):
        try:
            root = psutil.Process(pid)
            together = 0
            for process in (root, *root.children(recursive=True)):
                try:
                    together += process.memory_info().rss
                except psutil.Error:
                    continue
            peak[0] = max(peak[0], together)
        except psutil.Error:
            return


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def ask(engine: str, lake: Path, size: int, part: str = "questions", count: int = 1) -> tuple[Run, dict[str, Any]]:
    """All questions to one engine, of so many days; with what it answered."""
    cost, out = measured([sys.executable, "-m", "scripts.bench.fleet_questions", engine, str(lake), str(count)])
    questions = json.loads(out.strip().splitlines()[-1])["questions"]
    each_s = {name: told["s"] for name, told in questions.items()}
    run = Run(part, engine, size, rows_of(size) * count, cost, sum(each_s.values()), each_s)
    say(line_of(run))
    return run, {name: told["answer"] for name, told in questions.items()}


def differences(answers: dict[str, dict[str, Any]]) -> list[str]:
    """Questions to which two engines do not answer the same, for people."""
    first, *others = answers
    return [
        f"{question}: {first} and {other} answer differently"
        for other in others
        for question, answer in answers[first].items()
        if not _same(answer, answers[other].get(question))
    ]


def told_differences(where: str, answers: dict[str, dict[str, Any]]) -> list[str]:
    """Likewise, and say them."""
    found = [f"{where}: {what}" for what in differences(answers)]
    for what in found:
        say(f"no: {what}")
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_TOLERANCE)
    return bool(one == other)


def kjbod(*arguments: str) -> tuple[Cost, str]:
    """A ``kjbod fleet`` command, as a user runs it."""
    return measured([str(Path(sys.executable).with_name("kjbod")), "fleet", *arguments])


def compare(work: Path, sizes: Sequence[int], engines: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Ask all engines the same questions at each size, in turn; gold is made first where it is asked."""
    runs: list[Run] = []
    wrong: list[str] = []
    for size in sizes:
        lake = work / f"lake-{size}"
        say(f"{rows_of(size):,} rows of silver")
        make_lake(lake, size)
        if "gold" in engines:
            cost, _ = kjbod("rollup", "--lake", str(lake))
            runs.append(Run("rollup", "rollup", size, rows_of(size), cost))
            say(line_of(runs[-1]))
        answers = {}
        for engine in engines:
            run, answers[engine] = ask(engine, lake, size)
            runs.append(run)
        wrong += told_differences(f"{size}x", answers)
        if size != max(sizes):
            shutil.rmtree(lake)
    return runs, wrong


def increment(work: Path, size: int) -> list[Run]:
    """A report after one more hour of a fleet whose other 23 are in gold, beside DuckDB's scan of all raw rows."""
    folder = work / f"increment-{size}"
    lake = make_lake(folder, size, range(23))
    kjbod("rollup", "--lake", str(folder))
    add_hours(lake, folder, size, range(23, 24))
    runs = []
    for name, arguments in (("rollup of one hour", ("rollup",)), ("report", ("report", "--out", f"{work}/page"))):
        cost, _ = kjbod(*arguments, "--lake", str(folder))
        runs.append(Run("increment", name, size, rows_of(size) // 24, cost))
        say(line_of(runs[-1]))
    return [*runs, *(ask(engine, folder, size, "increment")[0] for engine in ("gold", "duckdb"))]


def hour(work: Path, hosts: int) -> list[Run]:
    """The next hour of a fleet: from its files to gold. The hour before it is there already."""
    inbox, lake = work / "hour/reports", work / "hour/lake"
    generate(inbox, hosts, 0)
    kjbod("ingest", "--lake", str(lake), "--reports", str(inbox))
    kjbod("rollup", "--lake", str(lake))
    generate(inbox, hosts, 1)
    return [take_in("hour", NEXT_HOUR, inbox, lake, hosts)]


def days(work: Path, size: int, count: int) -> tuple[list[Run], list[str]]:
    """A report over many days of gold, of which one was rolled up and the others are the same at another time, and the
    questions of all these days, to gold and to DuckDB; then the next two hours of that fleet, which has all these days
    behind it: the first one of a date, with what comes late of the date before, and the one after it."""
    lake, inbox = work / f"lake-{size}", work / "days/reports"
    if not lake.exists():
        make_lake(lake, size)
        kjbod("rollup", "--lake", str(lake))
    measured([sys.executable, "-m", "scripts.bench.fleet_data", str(lake), str(count)])
    cost, _ = kjbod("report", "--lake", str(lake), "--out", str(work / "days/page"))
    runs = [Run("days", "report", size, rows_of(size) * count, cost)]
    say(line_of(runs[0]))
    answers = {}
    for engine in ("gold", "duckdb"):
        run, answers[engine] = ask(engine, lake, size, "days", count)
        runs.append(run)
    hosts = size * HOSTS_OF_ONE
    for number, name in enumerate(("first hour of a date", NEXT_HOUR)):
        generate(inbox, hosts, number, start="2026-11-02")
        runs.append(take_in("days", name, inbox, lake, hosts))
    return runs, told_differences(f"{count} days", answers)


def take_in(part: str, name: str, inbox: Path, lake: Path, hosts: int) -> Run:
    """The new files of an inbox, of one hour, are taken into a lake and rolled up: what the timer of systemd does."""
    cost, _ = kjbod("ingest", "--lake", str(lake), "--reports", str(inbox), "--rollup")
    size = max(hosts // HOSTS_OF_ONE, 1)
    run = Run(part, name, size, hosts * DIRECTORIES * MINUTES, cost)
    say(line_of(run))
    return run


def generate(inbox: Path, hosts: int, number: int, start: str = "2026-11-01") -> None:
    """Add the files of an hour of a fleet to an inbox."""
    inbox.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=inbox.parent) as new:
        asked = ("--hosts", str(hosts), "--days", "2", "--hours", f"{number}..{number + 1}", "--start", start)
        kjbod("gen", *asked, "--seed", "7", "--out", new)
        shutil.copytree(new, inbox, dirs_exist_ok=True)


def line_of(run: Run) -> str:
    """A run in one line."""
    cost = run.cost
    asked = "" if run.questions_s is None else f", questions {run.questions_s:.2f} s"
    return (
        f"{run.part}, {run.name}, {run.rows:,} rows: {cost.wall_s:.1f} s{asked}, CPU {cost.cpu_s:.1f} s,"
        f" {cost.peak_mib:.0f} MiB, others {cost.others_percent:.0f} %"
    )


def table_of(runs: Sequence[Run]) -> list[str]:
    """The runs as a table of Markdown."""
    lines = ["| what | rows | whole process, s | questions, s | CPU, s | peak, MiB | others' CPU |", "|" + "---|" * 7]
    for run in runs:
        cost, asked = run.cost, "" if run.questions_s is None else f"{run.questions_s:.2f}"
        lines.append(
            f"| {run.part}: {run.name} | {run.rows:,} | {cost.wall_s:.1f} | {asked} | {cost.cpu_s:.1f} |"
            f" {cost.peak_mib:.0f} | {cost.others_percent:.0f} % |"
        )
    return lines


def growths(runs: Sequence[Run], *, cpu: bool = False) -> dict[str, float]:
    """Of each engine: how many times as long all questions took, at most, for twice as many rows; without the start.
    ``cpu``: how many times as much processor time, of the whole process, which others on the machine disturb less."""
    worst: dict[str, float] = {}
    of_engine: dict[str, list[Run]] = {}
    for run in runs:
        if run.part == "questions":
            of_engine.setdefault(run.name, []).append(run)
    for name, found in of_engine.items():
        for small, large in pairwise(found):
            doublings = math.log2(large.size / small.size)
            took = [run.cost.cpu_s if cpu else run.questions_s or 1 for run in (small, large)]
            ratio = (took[1] / took[0]) ** (1 / doublings)
            worst[name] = max(worst.get(name, 0.0), ratio)
    return worst


def missed(runs: Sequence[Run]) -> list[str]:
    """Reaches that were missed, for people."""
    found = [
        f"{name}: {ratio:.2f} times as long for twice as many rows, at most {REACH_GROWTH}"
        for name, ratio in growths(runs).items()
        if name in ("spark", "gold") and ratio > REACH_GROWTH
    ]
    of_part = {(run.part, run.name): run for run in runs}
    gold, duckdb = of_part.get(("days", "gold")), of_part.get(("days", "duckdb"))
    if gold and duckdb and (share := (gold.questions_s or 0) / (duckdb.questions_s or 1)) > REACH_SHARE:
        found.append(f"questions of all days: {share:.2f} of DuckDB's scan, at most {REACH_SHARE}")
    for part in ("hour", "days"):
        run = of_part.get((part, NEXT_HOUR))
        if run and run.cost.wall_s > REACH_HOUR_S:
            found.append(f"{part}: next hour: {run.cost.wall_s:.0f} s, at most {REACH_HOUR_S:.0f}")
    report = of_part.get(("days", "report"))
    if report and report.cost.wall_s > REACH_DAYS_S:
        found.append(f"report over all days: {report.cost.wall_s:.0f} s, at most {REACH_DAYS_S:.0f}")
    return found


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/fleet",
        description="The questions of a fleet report in Spark over silver and over gold, in DuckDB and in Polars, over "
        "the same rows, with equal answers; the next hour of a fleet from files to gold; a report over days. Exit code "
        "1 when answers differ or a reach is missed.",
    )
    parser.add_argument("--sizes", default="1,2,4,8", metavar="N,...", help="times 2.16 million rows (1,2,4,8)")
    parser.add_argument(
        "--engines", type=listed(ENGINES), default=list(ENGINES), metavar="NAME,...", help=",".join(ENGINES)
    )
    parser.add_argument("--parts", type=listed(PARTS), default=list(PARTS), metavar="NAME,...", help=",".join(PARTS))
    parser.add_argument("--hosts", type=positive, default=1_000, metavar="N", help="of the next hour (1000)")
    parser.add_argument("--days", type=positive, default=30, metavar="N", help="of the report at the largest size (30)")
    parser.add_argument("--quick", action="store_true", help="the questions at size 1, no gold, no reach")
    parser.add_argument("--out", type=Path, default=Path("kjbod-bench/fleet"), help="runs.json and table.md")
    options = parser.parse_args(argv)
    options.sizes = [int(size) for size in options.sizes.split(",") if size.isdigit()] or parser.error("--sizes: 1,2")
    if options.quick:
        options.sizes, options.parts, options.engines = [1], ["questions"], ["spark", "duckdb", "polars"]
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    options = arguments(argv)
    signal.signal(signal.SIGTERM, interrupt)
    runs: list[Run] = []
    wrong: list[str] = []
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kjbod-bench-fleet-") as folder:
        work = Path(folder)
        if "questions" in options.parts:
            runs, wrong = compare(work, options.sizes, options.engines)
        if "increment" in options.parts:
            runs += increment(work, max(options.sizes))
        if "hour" in options.parts:
            runs += hour(work, options.hosts)
        if "days" in options.parts:
            found = days(work, max(options.sizes), options.days)
            runs, wrong = runs + found[0], wrong + found[1]
    (options.out / "runs.json").write_text(json.dumps([run.to_json() for run in runs], indent=1) + "\n")
    table = table_of(runs)
    (options.out / "table.md").write_text("\n".join(table) + "\n")
    growth, cpu = growths(runs), growths(runs, cpu=True)
    told = (f"growth per doubling, {name}: {ratio:.2f}, CPU {cpu[name]:.2f}" for name, ratio in growth.items())
    for line in (*table, *told):
        say(line)
    wrong += [] if options.quick else missed(runs)
    for line in wrong:
        say(f"no: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
