"""Table of the quorum benchmark. Pure."""

from collections.abc import Sequence
from typing import Final

from scripts.bench.guard_reach_report import Value, spread
from scripts.bench.quorum_plan import ACTORS, AGENT, ALONE, CASES, GUARDED, LASTING, LOOK_S, Actor, Outcome

TITLES: Final = {
    AGENT: "agent, disk dead",
    GUARDED: "guard beside Kafka, disk hung",
    ALONE: "Kafka alone, disk dead",
}


def progress(outcome: Outcome) -> str:
    """A line for a person."""
    actors = "  ".join(f"{name} {_told(actor)}" for name, actor in outcome.actors.items())
    broken = f" BROKEN {','.join(outcome.broken)}" if outcome.broken else ""
    active = "-" if outcome.active_ms is None else f"{outcome.active_ms:.0f}"
    return f"{outcome.trial.case:<13}{outcome.offset_ms:>5}  next active {active:>6}  {actors}{broken}"


def _told(actor: Actor) -> str:
    moments = {"verdict": actor.verdict_ms, "recorded": actor.recorded_ms, "moved": actor.moved_ms,
               f"ended({actor.exit_code})": actor.ended_ms}  # fmt: skip
    return " ".join(f"{name} {at:.0f}" for name, at in moments.items() if at is not None) or "nothing"


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each case that was measured; columns for who had a failed disk, seconds after its fault."""
    lines = [
        "| what happens beside the failing disk | next active controller | "
        + " | ".join(TITLES[name] for name in ACTORS)
        + " |",
        "|---|---|" + "---|" * len(ACTORS),
    ]
    for case, title in CASES.items():
        mine = [outcome for outcome in outcomes if outcome.trial.case == case]
        if not mine:
            continue
        active = spread([(one.active_ms, True) for one in mine if one.active_ms is not None])
        cells = [_cell(case, [one.actors[name] for one in mine]) for name in ACTORS]
        lines.append(f"| {title} | {active} | {' | '.join(cells)} |")
    kept = {name: sum(name not in one.broken for one in outcomes) for name in (AGENT, GUARDED)}
    said = " and ".join(f"{TITLES[name].split(',')[0]} {count} of {len(outcomes)}" for name, count in kept.items())
    wrong = sum(one.actors[name].wrong for one in outcomes for name in (AGENT, GUARDED))
    return "\n".join([*lines, "", f"Recorded, or ended in time: {said}. Healthy directories taken offline: {wrong}."])


def _cell(case: str, actors: Sequence[Actor]) -> str:
    """Until it was recorded; where no controller could be told, until the process had ended."""
    if case in LASTING:
        ended = [_value(actor.ended_ms) for actor in actors]
        codes = sorted({str(actor.exit_code) for actor in actors if actor.exit_code is not None})
        recorded = [_value(actor.recorded_ms) for actor in actors if actor.recorded_ms is not None]
        also = f"; recorded {spread(recorded)}" if recorded else ""
        return f"ended {spread(ended)}, exit code {'/'.join(codes) or '-'}{also}"
    text = spread([_value(actor.recorded_ms) for actor in actors])
    ends = sum(actor.ended_ms is not None for actor in actors)
    return f"{text}; {ends} ended" if ends else text


def _value(moment_ms: float | None) -> Value:
    return (LOOK_S * 1000, False) if moment_ms is None else (moment_ms, True)
