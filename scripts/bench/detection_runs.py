"""A run of the detection benchmark: break a directory of a live agent, and see what it says.

A run is a generator that yields while it waits, so that patient runs share an agent; one that is timed in milliseconds
has it for itself.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kjbod.errors import KjbodError
from kjbod.faults.catalog import FAULTS, inject, undo
from kjbod.faults.model import Expectation, Injection, Target
from scripts.bench.detection_agents import AgentRig, Life, Slot
from scripts.bench.detection_plan import NOT_POSSIBLE, Outcome, Planned
from scripts.rig.processes import at_wall_s

HELD_TIMEOUT_S = 30.0
"""``kjbod.held.timeout.ms``, at its default."""
PATIENT_BUSY_AT_ONCE = 3
"""Patient runs with a writer that share the agent: each writer syncs 200 times a second, on two processors."""
MARGIN_S = 30.0
"""How much longer than promised a verdict is waited for, before it counts as none."""
SETTLE_S = 1.0
"""How long a verdict other than failed must last to be the final one."""
ONLINE_WAIT_MAX_S = 15.0
"""How long a fault that nothing can see is watched."""
RECORD_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 60.0
DAMAGE_RECOVERY_TIMEOUT_S = 90.0
"""Suspicion of damage lasts for the strike window, a minute."""
LINGER_S = 0.2
"""After the record: what the death of one directory makes the agent say about others comes in that time."""
_POLL_S = 0.01

Steps = Generator[None, None, None]


class AgentEndedError(Exception):
    """The agent ended in the middle of a run."""


@dataclass(slots=True)
class Shot:
    """A run in progress: where it happens, what is expected, what was found so far."""

    rig: AgentRig
    life: Life
    slot: Slot
    planned: Planned
    expectation: Expectation
    outcome: Outcome
    mark: int = 0
    """Log lines of the agent before the fault."""
    begun: float = 0.0
    """The fault, wall clock in seconds."""

    def verdicts(self) -> list[dict[str, Any]]:
        return [line for line in self.life.verdicts(self.mark, self.slot.path) if at_wall_s(line) >= self.begun]

    def state(self) -> str:
        """State of the directory as the agent sees it."""
        lines = self.verdicts()
        return str(lines[-1]["state"]) if lines else "online"

    def since_ms(self, wall_s: float) -> float:
        return (wall_s - self.begun) * 1000


def _until(shot: Shot, predicate: Callable[[], Any], timeout_s: float) -> Generator[None, None, bool]:
    """Wait for something; whether it came. Raises :class:`AgentEndedError` with the agent."""
    deadline = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline:
            return False
        if not shot.life.agent.running:
            raise AgentEndedError(f"the agent ended with exit code {shot.life.agent.exit_code}")
        yield
    return True


def _pause(shot: Shot, seconds: float) -> Steps:
    yield from _until(shot, lambda: False, seconds)


def _inject(shot: Shot, state_dir: Path) -> Injection:
    disk = shot.slot.disk
    target = Target.of(disk)
    shot.mark = shot.slot.broken = len(shot.life.agent.events())
    injection = inject(shot.planned.cell.fault, target, state_dir=state_dir)
    shot.begun = injection.began_ms / 1000
    shot.outcome.deed_ms = injection.ended_ms - injection.began_ms
    return injection


def conduct(rig: AgentRig, life: Life, planned: Planned) -> Generator[None, None, Outcome]:
    """A run from its load to its recovery; returns what came of it."""
    cell = planned.cell
    expectation = FAULTS[cell.fault].expect(cell.fstype)
    outcome = Outcome("kjbod", cell.fault, cell.fstype, cell.load, planned.repetition, "|".join(expectation.states))
    outcome.phase_ms = planned.phase_ms
    shot = Shot(rig, life, life.slots[planned], planned, expectation, outcome)
    try:
        with rig.busy(shot.slot) if cell.load == "busy" else contextlib.nullcontext():
            yield from _pause(shot, planned.phase_ms / 1000)
            injection = _inject(shot, rig.base / "injections")
            try:
                if cell.load == "work":
                    rig.make_work(life)
                yield from _watch(shot)
            finally:
                undo(injection)
            yield from _recovery(shot)
    except (AgentEndedError, KjbodError, OSError) as error:
        _note_trouble(shot, error)
    _judge_others(shot)
    return outcome


def _watch(shot: Shot) -> Steps:
    """From the fault to the final verdict and its record."""
    wanted = shot.expectation.states
    limit_s = shot.expectation.within_ms / 1000
    deadline_s = min(limit_s, ONLINE_WAIT_MAX_S) if "online" in wanted else limit_s + MARGIN_S
    end = time.monotonic() + deadline_s
    while True:
        arrived = yield from _until(
            shot,
            lambda: shot.state() == "failed" or (shot.state() in wanted and shot.state() != "online"),
            max(0.0, end - time.monotonic()),
        )
        if not arrived or shot.state() == "failed" or time.monotonic() > end:
            break
        said = len(shot.verdicts())
        if not (yield from _until(shot, functools.partial(_has_said_more, shot, said), SETTLE_S)):
            break
    _note_verdicts(shot)
    if shot.outcome.final not in wanted:
        shot.outcome.blame(f"verdict {shot.outcome.final} in {deadline_s:.0f} s, expected {' or '.join(wanted)}")
    if shot.outcome.final == "failed":
        yield from _record(shot)
    elif shot.outcome.final == "held" and shot.planned.thorough:
        yield from _escalation(shot)
    else:
        yield from _pause(shot, LINGER_S)


def _has_said_more(shot: Shot, than: int) -> bool:
    return len(shot.verdicts()) != than


def _note_verdicts(shot: Shot) -> None:
    """Note what the agent said up to now. The time is that of the first line of the final state."""
    outcome, lines = shot.outcome, shot.verdicts()
    troubled = [line for line in lines if line["state"] != "online"]
    outcome.final = shot.state()
    if troubled:
        outcome.first = str(troubled[0]["state"])
        outcome.suspect_ms = shot.since_ms(at_wall_s(troubled[0]))
    if not lines:
        return
    final = lines[-1]
    for line in reversed(lines):
        if line["state"] != outcome.final:
            break
        final = line
    outcome.verdict_ms = shot.since_ms(at_wall_s(final))
    outcome.cause = str(final["cause"])
    outcome.evidence = str(final["evidence"].get("text", ""))
    if outcome.cause in ("hung", "held"):
        outcome.blocked_ms = final["evidence"].get("age_ms")
        outcome.silent_ms = final["evidence"].get("silent_ms")


def _events(shot: Shot) -> Iterator[dict[str, Any]]:
    return iter(shot.life.agent.events()[shot.mark :])


def _record(shot: Shot) -> Steps:
    """The failure on its way to the controller."""
    directory, outcome = shot.slot.directory, shot.outcome

    def recorded() -> float | None:
        return shot.rig.watch.offline_at(shot.life.broker, directory)

    if not (yield from _until(shot, recorded, RECORD_TIMEOUT_S)):
        outcome.blame(f"the controller did not record it in {RECORD_TIMEOUT_S:.0f} s")
    seen = recorded()
    outcome.recorded_ms = None if seen is None else shot.since_ms(seen)
    yield from _pause(shot, LINGER_S)
    for line in _events(shot):
        if str(directory) in line.get("directory_ids", ()):
            if line["event"] == "directory.offline.sent" and outcome.sent_ms is None:
                outcome.sent_ms = shot.since_ms(at_wall_s(line))
            if line["event"] == "directory.offline.acknowledged" and outcome.acknowledged_ms is None:
                outcome.acknowledged_ms = shot.since_ms(at_wall_s(line))
        told = line.get("event") in ("replica.create.failed", "directory.kernel.event") and line.get("path")
        # What came after the suspicion did not cause it.
        early = outcome.suspect_ms is not None and shot.since_ms(at_wall_s(line)) <= outcome.suspect_ms
        if told == shot.slot.path and early and outcome.event_ms is None:
            outcome.event_ms = shot.since_ms(at_wall_s(line))


def _escalation(shot: Shot) -> Steps:
    """Held for longer than the held timeout counts as failed."""
    blocked_s = time.time() - shot.begun
    if not (yield from _until(shot, lambda: shot.state() == "failed", HELD_TIMEOUT_S - blocked_s + MARGIN_S)):
        shot.outcome.blame(f"held, and not failed after {HELD_TIMEOUT_S:.0f} s")
        return
    shot.outcome.escalated_ms = shot.since_ms(at_wall_s(shot.verdicts()[-1]))
    yield from _record(shot)


def _recovery(shot: Shot) -> Steps:
    """Recovery: what is not failed must be well again when the fault is gone, and the agent must say so."""
    outcome = shot.outcome
    if not outcome.ok or shot.state() in ("failed", "online"):
        return
    timeout_s = RECOVERY_TIMEOUT_S
    if outcome.cause == "damage":
        if not shot.planned.thorough:
            return
        timeout_s = DAMAGE_RECOVERY_TIMEOUT_S
    undone = time.time()
    if not (yield from _until(shot, lambda: shot.state() in ("online", "failed"), timeout_s)):
        outcome.blame(f"still {shot.state()} {timeout_s:.0f} s after the fault was undone")
    elif shot.state() == "failed":
        outcome.blame(f"failed after the fault was undone: {shot.verdicts()[-1]['evidence'].get('text')}")
    else:
        outcome.recovered_ms = max(0.0, (at_wall_s(shot.verdicts()[-1]) - undone) * 1000)


def _note_trouble(shot: Shot, error: Exception) -> None:
    """A fault that cannot be made while a file is open for writing cannot be made under a live agent: no verdict."""
    if not shot.begun and not FAULTS[shot.planned.cell.fault].while_busy:
        shot.outcome.final = NOT_POSSIBLE
        shot.outcome.evidence = str(error)
    else:
        shot.outcome.blame(f"{type(error).__name__}: {error}")


def _judge_others(shot: Shot) -> None:
    """No fault, no verdict: every directory that nobody has broken yet must have been online all the time. What lies on
    no disk of ours may be suspect: the machine's own disk stands still at times, and that is said."""
    life = shot.life
    ours = {slot.path for slot in life.slots.values()}
    broken = {slot.path: slot.broken for slot in life.slots.values() if slot.broken is not None}
    lines = life.agent.events()
    for position, line in enumerate(lines[life.judged :], life.judged):
        if line.get("event") != "directory.verdict" or line["state"] == "online":
            continue
        if line["path"] not in ours and line["state"] == "suspect":
            continue
        if line["path"] not in broken or position < broken[line["path"]]:
            shot.outcome.blame(f"wrong verdict on {line['path']}: {line['evidence'].get('text', line['state'])}")
    life.judged = len(lines)


def conduct_all(rig: AgentRig, life: Life, runs: Sequence[Planned]) -> Iterator[Outcome]:
    """The runs of a life: one by one, or, when they are patient, side by side."""
    waiting = list(runs)
    active: list[tuple[Planned, Generator[None, None, Outcome]]] = []
    try:
        while waiting or active:
            while waiting and _may_begin(waiting[0], [planned for planned, _ in active]):
                active.append((waiting[0], conduct(rig, life, waiting[0])))
                waiting.pop(0)
            for entry in list(active):
                try:
                    next(entry[1])
                except StopIteration as end:
                    active.remove(entry)
                    yield end.value
            time.sleep(_POLL_S)
    finally:
        for _, steps in active:
            steps.close()


def _may_begin(planned: Planned, active: Sequence[Planned]) -> bool:
    if not active:
        return True
    if not planned.patient:
        return False
    return planned.cell.load != "busy" or sum(p.cell.load == "busy" for p in active) < PATIENT_BUSY_AT_ONCE
