"""Tables of the guard benchmark, as Markdown. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from scripts.bench.guard_plan import FAULTS, FILE_SYSTEMS, MEANS, Outcome
from scripts.rig.pauses import CLASSES, Pause

_ORDER: Final = {name: place for names in (FAULTS, FILE_SYSTEMS, MEANS) for place, name in enumerate(names)}
_PHASE_ERROR_MS: Final = 250
Cell = tuple[str, str, str]
"""Fault, file system, means."""


def cells(outcomes: Iterable[Outcome]) -> dict[Cell, list[Outcome]]:
    """Outcomes by cell, in the order of the lists of names; within a cell by phase."""
    found: dict[Cell, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda one: (one.trial.phase_ms, one.trial.repetition)):
        trial = outcome.trial
        found.setdefault((trial.fault, trial.fstype, trial.means), []).append(outcome)
    return dict(sorted(found.items(), key=lambda entry: tuple(_ORDER[name] for name in entry[0])))


def spread(pauses: Sequence[Pause]) -> str:
    """Median and worst in milliseconds; ``>``: it had not ended."""
    if not pauses:
        return "-"
    ranked = sorted(pauses, key=lambda pause: pause.ms)
    middle = ranked[(len(ranked) - 1) // 2]
    worst = max(ranked, key=lambda pause: (not pause.ended, pause.ms))
    return f"{middle}" if len(ranked) == 1 else f"{middle} / {worst}"


def pause_table(outcomes: Sequence[Outcome], *, consumers: bool = False) -> str:
    """A line for each cell: the longest pause of each class, and what became of the broker."""
    lines = [
        f"| fault | fs | done | n | {' | '.join(CLASSES)} | recorded after | broker | lost |",
        f"|---|---|---|---|{'---|' * len(CLASSES)}---|---|---|",
    ]
    for (fault, fstype, means), mine in cells(outcomes).items():
        pauses = [one.consumer_pauses if consumers else one.pauses for one in mine]
        columns = [spread([of[name] for of in pauses if name in of]) for name in CLASSES]
        ends = Counter(one.broker for one in mine)
        broker = ", ".join(f"{name} {count}" if len(ends) > 1 else name for name, count in ends.most_common())
        lost = sum(one.lost for one in mine)
        lines.append(
            f"| {fault} | {fstype} | {means} | {len(mine)} | {' | '.join(columns)} | {_recorded(mine)} | {broker} "
            f"| {lost} of {sum(one.acknowledged for one in mine)} |"
        )
    return "\n".join(lines)


def _recorded(outcomes: Sequence[Outcome]) -> str:
    """From the first step to the record, the median; from the fault where nothing was done."""
    if any("kill" in one.acts for one in outcomes):
        return "-"  # it is the broker that is recorded
    found = []
    for one in outcomes:
        recorded = one.acts.get("recorded")
        steps = [moment for name, moment in one.acts.items() if name != "recorded" and moment is not None]
        if recorded is not None:
            found.append(recorded - min(steps, default=0.0))
    if not found:
        return "never"
    missing = f", {len(outcomes) - len(found)} never" if len(found) < len(outcomes) else ""
    middle = statistics.median(found)
    return f"{middle:.0f}{missing}" if middle >= 0 else f"{-middle:.0f} before{missing}"


def phase_table(outcomes: Sequence[Outcome]) -> str:
    """A line for each trial of more phases than one: the pauses by class and what became of the broker."""
    lines = [
        f"| fault | fs | done | checkpoint after | {' | '.join(CLASSES)} | broker |",
        f"|---|---|---|---|{'---|' * len(CLASSES)}---|",
    ]
    for (fault, fstype, means), mine in cells(outcomes).items():
        lines += [
            f"| {fault} | {fstype} | {means} | {_phase(one)} | "
            f"{' | '.join(str(one.pauses.get(name, '-')) for name in CLASSES)} | {one.broker} |"
            for one in mine
        ]
    return "\n".join(lines)


def _phase(one: Outcome) -> str:
    """As planned, and as it came where that is another one; a thread that is stuck writes none."""
    planned = f"{one.trial.phase_ms / 1000:.1f} s"
    if one.checkpoint_ms is None or abs(one.checkpoint_ms - one.trial.phase_ms) < _PHASE_ERROR_MS:
        return planned
    return f"{planned} (came after {one.checkpoint_ms / 1000:.1f} s)"


def threads_table(outcomes: Sequence[Outcome]) -> str:
    """A line for each cell and each end of the broker: how often which thread was stuck, and when."""
    lines = ["| fault | fs | done | broker | n | when | stuck in how many |", "|---|---|---|---|---|---|---|"]
    for (fault, fstype, means), mine in cells(outcomes).items():
        for end in sorted({one.broker for one in mine}):
            those = [one for one in mine if one.broker == end]
            for moment in dict.fromkeys(moment for one in those for moment in one.stuck):
                counted = Counter(name for one in those for name in {_kind(t) for t in one.stuck.get(moment, ())})
                stuck = ", ".join(f"{name} {count}" for name, count in counted.most_common()) or "none"
                lines.append(f"| {fault} | {fstype} | {means} | {end} | {len(those)} | {moment} | {stuck} |")
    return "\n".join(lines)


_CALLS: Final = {
    "0": "read", "1": "write", "2": "open", "3": "close", "4": "stat", "8": "lseek", "16": "ioctl", "17": "pread",
    "18": "pwrite", "20": "writev", "40": "sendfile", "74": "fsync", "75": "fdatasync", "77": "ftruncate",
    "82": "rename", "87": "unlink", "257": "open", "263": "unlink", "264": "rename", "285": "fallocate",
    "296": "pwritev", "316": "rename",
}  # fmt: skip
"""x86-64, those that brokers were seen in."""


def _kind(thread: object) -> str:
    name, call, file = (getattr(thread, field) for field in ("thread", "call", "file"))
    suffix = file.rpartition(".")[2] if "." in file else file.rpartition("/")[2]
    what = "page fault" if call is None else _CALLS.get(call, f"call {call}")
    return f"`{name}` {what}{f' .{suffix}' if suffix else ''}"


def summary(outcomes: Sequence[Outcome], how: str) -> str:
    """Everything, for a file."""
    parts = [
        how,
        "",
        "Milliseconds. Longest pause between two acknowledgements of a partition, the worst of its class: median / "
        "worst of the trials; `>`: it had not ended when the watch did.",
        "",
        pause_table(outcomes),
        "",
        "The same for the consumer:",
        "",
        pause_table(outcomes, consumers=True),
        "",
        "By phase:",
        "",
        phase_table(outcomes),
        "",
        "Threads of the broker in state D:",
        "",
        threads_table(outcomes),
    ]
    return "\n".join(parts) + "\n"
