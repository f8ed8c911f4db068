"""Gate of a broker that is about to start: whether each of its directories is healthy, or fails at once. Pure.

Kafka reads every log directory when it starts, one after the other, and a disk that hangs holds up the broker, healthy
disks included. One that was cut or masked answers an error: the broker starts without it. So ``kjbod guard check
--gate`` asks the running guard before Kafka opens anything:

=======  ==================================================================================  =========================
state    when                                                                                then
=======  ==================================================================================  =========================
well     its probes pass; also full and slow                                                 the broker may start
cut      the guard has cut its file system                                                   the broker may start
masked   the guard has masked it                                                             likewise, where it sees it
wait     it is silent, suspect or held and no verdict is there yet; it hangs and the guard   asked again, until
         cuts or masks it now; no other disk is well, so that it may be the host             :data:`TIMEOUT_MS`
left     nothing is done about it: why, in words                                             the broker starts with it
=======  ==================================================================================  =========================

The gate keeps no broker down. When the time is over, it lists the remaining directories, and the broker starts.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from kjbod_guard.directory_steps import Standing, is_released
from kjbod_guard.ladder import Step, Would
from kjbod_host.health.state import Health

TIMEOUT_MS: Final = 30_000
"""How long a broker waits for its directories by default: less than the 90 s that systemd gives a unit to start."""
AGAIN_MS: Final = 250
"""Time between two questions to the guard."""
SILENT_MS: Final = 500
"""Age of an unanswered probe from which the broker waits for the directory."""
NO_MASK: Final = "a mask would not reach the broker: it and the guard have mounts of their own"


class State(StrEnum):
    """State of a directory for a broker that is about to start; see the table."""

    WELL = "well"
    CUT = "cut"
    MASKED = "masked"
    WAIT = "wait"
    LEFT = "left"


class Look(Struct, frozen=True):
    """A directory for a broker that is about to start.

    Attributes:
        path: as configured.
        state: see the table.
        reason: in words; empty where it is well.
    """

    path: str
    state: State
    reason: str = ""


def look(
    path: str,
    *,
    health: Health | None,
    silent_ms: int | None,
    unwatched: str,
    standing: Standing | None,
    would: Would,
    masks: bool,
) -> Look:
    """Return the state of a directory at the gate.

    Args:
        path: as configured.
        health: the verdict; None: it is not watched.
        silent_ms: age of a probe that is not answered; None: there is none.
        unwatched: why it is not watched, in words.
        standing: state on the escalation; None: the guard observes, or has not begun.
        would: step of the escalation for a broker that is about to start.
        masks: whether the broker would see a mask that is put over it now.
    """
    if health is None and (standing is None or standing.means is None):
        return Look(path, State.LEFT, f"not watched: {unwatched}")
    if standing is not None:
        if standing.under_way is not None:
            return Look(path, State.WAIT, f"{standing.under_way.name} is under way")
        if is_released(standing):
            return Look(path, State.LEFT, "it was released, and is not well yet")
        if standing.means is Step.MASK:
            return Look(path, State.MASKED)
        if standing.means is Step.CUT and health in (None, Health.FAILED):
            return Look(path, State.CUT)
    if health in (Health.SUSPECT, Health.HELD):
        return Look(path, State.WAIT, f"{health}, and not judged yet")
    if health is not Health.FAILED and silent_ms is not None and silent_ms >= SILENT_MS:
        return Look(path, State.WAIT, f"no answer for {silent_ms} ms, and not judged yet")
    if health is not Health.FAILED:
        return Look(path, State.WELL)
    return _failed(path, standing, would, masks=masks)


def _failed(path: str, standing: Standing | None, would: Would, *, masks: bool) -> Look:
    """Return the state of a directory that has failed, and was neither cut nor masked."""
    if standing is None or would.step is Step.WAIT:
        return Look(path, State.WAIT, would.reason or "the guard starts")
    if would.step not in (Step.CUT, Step.MASK):
        return Look(path, State.LEFT, would.reason or "a broker runs: it is dealt with as for that one")
    to_be_cut = would.step is Step.CUT and Step.CUT not in standing.tried
    if not to_be_cut and Step.MASK in standing.tried:
        return Look(path, State.LEFT, standing.reason)
    if not to_be_cut and not masks:
        return Look(path, State.LEFT, f"{would.reason}, and {NO_MASK}")
    return Look(path, State.WAIT, f"{would.step} is about to begin")


# ------------------------------------------------------------------------------------------------- who asks the guard


class Judgement(Struct, frozen=True):
    """Answer of the guard, for the command that asked.

    Attributes:
        waits: whether to ask again.
        lines: what there is to say when the broker starts now, a line each.
    """

    waits: bool
    lines: Sequence[str]


def judge(answer: Mapping[str, Any], masks: Collection[str]) -> Judgement:
    """Return the meaning of an answer, for the command that asked.

    Args:
        answer: of the guard.
        masks: mount points of the masks that the broker would see.
    """
    if answer.get("mode") != "act":
        return Judgement(False, ["the guard only observes: the broker starts, whatever its disks do"])
    if not answer["directories"]:
        return Judgement(True, ["the guard starts and watches no directory yet: the broker may hang on one"])
    found = [Look(str(row["path"]), State(row["state"]), str(row["reason"])) for row in answer["directories"]]
    lines = [line for one in found if (line := _line(one, masks)) is not None]
    return Judgement(any(one.state is State.WAIT for one in found), lines)


def _line(one: Look, masks: Collection[str]) -> str | None:
    see = "see kjbod status"
    match one.state:
        case State.WELL:
            return None
        case State.CUT:
            return f"{one.path} is cut: the broker starts without it"
        case State.MASKED if one.path.rstrip("/") in masks:
            return f"{one.path} is masked: the broker starts without it"
        case State.MASKED:
            return f"{one.path} is masked, and not for this broker, which may hang there: {see}"
        case State.LEFT:
            return f"{one.path} is left as it is ({one.reason}): the broker may hang or start without it: {see}"
    return f"{one.path} is neither well nor cut nor masked ({one.reason}): the broker may hang there: {see}"
