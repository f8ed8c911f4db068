"""Findings of the detection benchmark: cells, a table, what is reached, CSV and Markdown. Pure but for the writing."""

import csv
import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench.detection_plan import COLUMNS, FILE_SYSTEMS, LOADS, NOT_POSSIBLE, Cell, Outcome

DEAD = ("eio", "eio-writes", "eio-reads", "device-gone")
"""A disk that answers every probe with an error."""
HUNG = ("hang", "hang-writes")
EVENT = ("umount", "over-mount", "swapped-disk", "remount-ro", "bind-ro")
"""The kernel says so at once, to anybody: the mount table changes."""
INTERVAL_MS = 1000
RECORD_MARGIN_MS = 50
EVENT_LIMIT_MS = 20
HUNG_LIMIT_MS = 2000
HUNG_IDLE_LIMIT_MS = INTERVAL_MS + HUNG_LIMIT_MS
HUNG_AFTER_FLUSH_LIMIT_MS = 4000
"""3800 ms of silence, and what a sample and a busy host add; see ``agent/kjbod_host/health/README.md``."""
AFTER_FLUSH_MS = 2400
"""A device that was silent for longer than that at the verdict had begun with a flush: it gets twice the time."""
_CODE = re.compile(r"\bE[A-Z]{2,}[0-9]*\b")


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest rank: a value that was measured, the maximum for small samples; None without any."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Times:
    """Median, 99th percentile and maximum of milliseconds."""

    count: int
    p50: float | None
    p99: float | None
    worst: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Times":
        known = [value for value in values if value is not None]
        return cls(len(known), quantile(known, 0.5), quantile(known, 0.99), max(known, default=None))

    def __str__(self) -> str:
        return "/".join(number(value) for value in (self.p50, self.p99, self.worst)) if self.count else "-"


def number(value: float | None) -> str:
    """Milliseconds for people."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


@dataclass(frozen=True, slots=True)
class Row:
    """A cell: what kjbod and Kafka made of it."""

    cell: Cell
    runs: tuple[Outcome, ...]
    kafka: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        return all(run.ok for run in self.runs)

    @property
    def got(self) -> str:
        """The final verdicts, with their counts where they differ."""
        counts = Counter(run.final or "none" for run in self.runs)
        return ", ".join(state if len(counts) == 1 else f"{n}x {state}" for state, n in counts.most_common()) or "-"

    @property
    def seen(self) -> str:
        """By what the agent knew: errnos, the most frequent first, or causes that are no errno."""
        known = Counter(seen for run in self.runs if (seen := _seen(run)))
        return "/".join(seen for seen, _ in known.most_common())

    @property
    def verdict(self) -> Times:
        return Times.of(run.verdict_ms for run in self.runs if run.final != "online")

    @property
    def recorded(self) -> Times:
        return Times.of(run.recorded_ms for run in self.runs)

    @property
    def kafka_text(self) -> str:
        """Median until recorded by the controller, or what happened instead."""
        seen = [run.recorded_ms if run.recorded_ms is not None else run.verdict_ms for run in self.kafka]
        known = [value for value in seen if value is not None]
        if known:
            missed = f" ({len(seen) - len(known)} missed)" if len(known) < len(seen) else ""
            return f"{number(quantile(known, 0.5))}{missed}"
        return self.kafka[0].final.partition(":")[0] if self.kafka else "-"

    @property
    def ratio(self) -> str:
        """Kafka's time until the record divided by kjbod's, where both detect."""
        ours = self.recorded.p50
        theirs = quantile([run.recorded_ms for run in self.kafka if run.recorded_ms is not None], 0.5)
        return f"{number(theirs / ours)}x" if ours and theirs else "-"


def _seen(run: Outcome) -> str:
    if code := _CODE.search(run.evidence):
        return code[0]
    return run.cause if run.cause not in ("error", run.final, "") else ""


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """All cells in the order in which their faults came first; then file system, then load."""
    faults = list(dict.fromkeys(outcome.fault for outcome in outcomes))
    cells = sorted(
        {outcome.cell for outcome in outcomes},
        key=lambda cell: (faults.index(cell.fault), FILE_SYSTEMS.index(cell.fstype), LOADS.index(cell.load)),
    )

    def of(cell: Cell, system: str) -> tuple[Outcome, ...]:
        return tuple(o for o in outcomes if o.system == system and o.cell == cell)

    return [Row(cell, of(cell, "kjbod"), of(cell, "kafka")) for cell in cells]


_HEAD = (
    f"{'fault':<25}{'fs':<6}{'load':<5}{'n':>2} {'verdict, seen by':<20}{'':<6}"
    f"{'verdict, ms':>18}{'recorded, ms':>18}{'Kafka, ms':>13}{'ratio':>6}"
)
_UNDER = f"{'':<65}{'p50/p99/max':>18}{'p50/p99/max':>18}{'p50':>13}"


def table(found: Sequence[Row]) -> str:
    """The matrix as plain text, 120 columns at most."""
    lines = [_HEAD, _UNDER]
    for row in found:
        mark = "" if not row.runs else "ok" if row.ok else "WRONG"
        lines.append(
            f"{row.cell.fault:<25}{row.cell.fstype:<6}{row.cell.load:<5}{len(row.runs) or len(row.kafka):>2} "
            f"{f'{row.got} {row.seen}'[:19]:<20}{mark:<6}"
            f"{row.verdict!s:>18}{row.recorded!s:>18}{row.kafka_text:>13}{row.ratio:>6}"
        )
    return "\n".join(line.rstrip() for line in lines)


def notes(found: Sequence[Row]) -> list[str]:
    """The reasons for what was not possible."""
    faults = {row.cell.fault for row in found if any(run.final == NOT_POSSIBLE for run in row.runs)}
    return [
        f"{fault}: {NOT_POSSIBLE}: EBUSY while a file is open for writing, as the agent's and the broker's .lock are"
        for fault in sorted(faults)
    ]


@dataclass(frozen=True, slots=True)
class Reach:
    """A line of what is to be reached."""

    what: str
    times: Times
    limit: str
    met: bool | None
    """None: nothing was measured, or there is no limit."""

    def __str__(self) -> str:
        met = {True: "reached", False: "NOT REACHED", None: ""}[self.met]
        return f"{self.what:<66}{self.times.count:>4}  {self.times!s:<22}{self.limit:<16}{met}".rstrip()


def _within(times: Times, value: float | None, limit_ms: float) -> bool | None:
    return None if not times.count or value is None else value <= limit_ms


def _most(what: str, times: Times, limit_ms: float) -> Reach:
    return Reach(what, times, f"max <= {limit_ms} ms", _within(times, times.worst, limit_ms))


def reached(outcomes: Sequence[Outcome]) -> list[Reach]:
    """The figures that the project promises, over all runs that speak of them."""
    runs = [outcome for outcome in outcomes if outcome.system == "kjbod"]

    def times(pick: Callable[[Outcome], float | None], faults: Sequence[str], *loads: str) -> Times:
        return Times.of(pick(run) for run in runs if run.fault in faults and run.load in loads)

    def after_event(run: Outcome) -> float | None:
        # A disk that was full, slow or held at first failed of something that came later.
        if run.event_ms is None or run.recorded_ms is None or run.first not in ("suspect", "failed"):
            return None
        return run.recorded_ms - run.event_ms

    dead = times(lambda run: run.recorded_ms, DEAD, "idle")
    dead_busy = times(lambda run: run.recorded_ms, DEAD, "busy")
    # Only what the change itself brought about counts, not the making of the fault, which takes several system calls.
    mounts = times(lambda run: run.recorded_ms, EVENT, "idle")
    mounts_verdict = times(lambda run: run.verdict_ms, EVENT, "idle")
    work = times(after_event, tuple({run.fault for run in runs}), "work")
    events = times(after_event, tuple({run.fault for run in runs}), "idle", "busy")

    def hung(pick: Callable[[Outcome], float | None], *loads: str, after_flush: bool | None = None) -> Times:
        return Times.of(
            pick(run)
            for run in runs
            if run.fault in HUNG and run.final == "failed" and run.load in loads
            if after_flush is None or after_flush == ((run.silent_ms or 0) > AFTER_FLUSH_MS)
        )

    hung_all = hung(lambda run: run.verdict_ms, "idle", "busy")
    hung_idle = hung(lambda run: run.verdict_ms, "idle")
    hung_swallowed = hung(lambda run: run.silent_ms, "idle")
    hung_busy = hung(lambda run: run.verdict_ms, "busy", after_flush=False)
    hung_flush = hung(lambda run: run.verdict_ms, "busy", after_flush=True)
    limit = INTERVAL_MS + RECORD_MARGIN_MS
    wrong = sum("wrong verdict" in run.wrong for run in runs)
    cells = rows(runs)
    return [
        Reach(
            "dead idle disk -> recorded by the controller", dead, f"p99 <= {limit} ms", _within(dead, dead.p99, limit)
        ),
        Reach("dead busy disk -> recorded by the controller", dead_busy, "", None),
        Reach(
            "own I/O error -> recorded", work, f"p99 <= {EVENT_LIMIT_MS} ms", _within(work, work.p99, EVENT_LIMIT_MS)
        ),
        Reach(
            "logged kernel event -> recorded",
            events,
            f"p99 <= {EVENT_LIMIT_MS} ms",
            _within(events, events.p99, EVENT_LIMIT_MS),
        ),
        Reach("mount changed -> verdict, the making of the change included", mounts_verdict, "", None),
        Reach(
            "mount changed -> recorded, the making of the change included",
            mounts,
            f"p99 <= {EVENT_LIMIT_MS} ms",
            _within(mounts, mounts.p99, EVENT_LIMIT_MS),
        ),
        _most("hung disk -> verdict, all of them: the goal", hung_all, HUNG_LIMIT_MS),
        _most("hung idle disk -> verdict: nobody asks it before the next probe", hung_idle, HUNG_IDLE_LIMIT_MS),
        _most("hung idle disk: first swallowed request -> verdict", hung_swallowed, HUNG_LIMIT_MS),
        _most("hung busy disk -> verdict", hung_busy, HUNG_LIMIT_MS),
        _most(
            f"hung busy disk, silent since a flush ({hung_flush.count} of {hung_busy.count + hung_flush.count})",
            hung_flush,
            HUNG_AFTER_FLUSH_LIMIT_MS,
        ),
        Reach(f"wrong verdicts on other directories: {wrong} of {len(runs)} runs", Times.of(()), "0", wrong == 0),
        Reach(
            f"right cells: {sum(row.ok for row in cells)} of {len(cells)}",
            Times.of(()),
            "all",
            all(row.ok for row in cells),
        ),
    ]


REASONS = (
    "Hung, idle: a disk that nobody uses shows nothing until the next probe asks it: up to one interval more than 2 s.",
    "Hung, since a flush: while a journal's commit (write and flush) is under way the kernel counts nothing, also on a",
    "healthy device; a silence that began so gets twice the time, 3.8 s (see the README of the verdict).",
)
"""Why some times are longer than the 2 s of a hung busy disk."""


def reach_text(found: Sequence[Reach]) -> str:
    """As plain text."""
    head = f"{'reach':<66}{'n':>4}  {'p50/p99/max ms':<22}{'limit':<16}"
    return "\n".join([head.rstrip(), *map(str, found), "", *REASONS])


def complaints(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each run of kjbod that was not as it should be."""
    return [
        f"{o.fault} {o.fstype} {o.load} #{o.repetition + 1}: {o.wrong}"
        + (f" [{o.final}, {o.cause}: {o.evidence}]" if o.evidence else "")
        for o in outcomes
        if not o.ok
    ]


def write_runs(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Every run, one line each."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for outcome in outcomes:
            values = dataclasses.asdict(outcome)
            writer.writerow({k: f"{v:.3f}" if isinstance(v, float) else v for k, v in values.items()})


def write_cells(path: Path, found: Sequence[Row]) -> None:
    """Every cell, one line each; times in milliseconds."""
    columns = [f"{what}_{which}_ms" for what in ("verdict", "recorded") for which in ("p50", "p99", "max")]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["fault", "fs", "load", "n", "verdict", "ok", *columns, "kafka_n", "kafka", "ratio"])
        for row in found:
            times = [t for of in (row.verdict, row.recorded) for t in (of.p50, of.p99, of.worst)]
            numbers = ["" if t is None else f"{t:.1f}" for t in times]
            kafka = [len(row.kafka), row.kafka_text, row.ratio]
            ok = "" if not row.runs else "yes" if row.ok else "no"
            writer.writerow([*dataclasses.astuple(row.cell), len(row.runs), row.got, ok, *numbers, *kafka])


def summary(found: Sequence[Row], reach: Sequence[Reach], how: str) -> str:
    """For a README: one line per fault, over all file systems and loads. ``how``: a sentence on the measurement."""
    lines = [
        f"{how} Milliseconds from the fault until the controller has recorded the directory as offline;",
        "in brackets until the verdict, where nothing goes offline. `n`: runs over all file systems and loads.",
        "",
        "| fault | verdict | n | right | idle: recorded after ms (p50 / p99) | busy (p50 / p99) | Kafka 4.3.1, idle |",
        "|---|---|---|---|---|---|---|",
    ]
    for fault in dict.fromkeys(row.cell.fault for row in found):
        mine = [row for row in found if row.cell.fault == fault]
        runs = [run for row in mine for run in row.runs]
        merged = Row(mine[0].cell, tuple(runs), tuple(k for row in mine if row.cell.load == "idle" for k in row.kafka))
        right = f"{sum(run.ok for run in runs)}/{len(runs)}"
        idle, busy = (_spread([r for r in runs if r.load == load]) for load in ("idle", "busy"))
        verdict = f"{merged.got} ({merged.seen})" if merged.seen else merged.got
        lines.append(f"| {fault} | {verdict} | {len(runs)} | {right} | {idle} | {busy} | {merged.kafka_text} |")
    lines += ["", "| reach | n | p50 / p99 / max ms | limit | |", "|---|---|---|---|---|"]
    for line in reach:
        met = {True: "reached", False: "not reached", None: ""}[line.met]
        lines.append(f"| {line.what} | {line.times.count or ''} | {line.times} | {line.limit} | {met} |")
    return "\n".join([*lines, "", " ".join(REASONS), *(f"\n{note}." for note in notes(found))]) + "\n"


def _spread(runs: Sequence[Outcome]) -> str:
    """Until recorded where a run ends there; until the verdict otherwise."""
    recorded = Times.of(run.recorded_ms for run in runs if run.escalated_ms is None)
    if recorded.count:
        return f"{number(recorded.p50)} / {number(recorded.p99)}"
    verdict = Times.of(run.verdict_ms for run in runs if run.final != "online")
    return f"({number(verdict.p50)} / {number(verdict.p99)} to the verdict)" if verdict.count else "-"
