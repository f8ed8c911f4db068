"""What a verdict rests on, for the log, for the report and in one line for people. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

from kjbod_agent.health.block import BlockCounters, BlockDevice
from kjbod_agent.health.verdict import Cause, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that was known when a directory changed its state.

    Attributes:
        path: the log directory as configured.
        directory_id: its id, also when the disk can no longer tell.
        device: kernel names and number, ``"loop3 7:3"``.
        model: of the disk, None when the kernel does not tell.
        serial: of the disk, None when the kernel does not tell.
        mount_id: as in mountinfo when the directory was loaded.
        errno: name of the error, None when there was none.
        call: the step that failed or is blocked.
        age_ms: how long that took, or has lasted.
        limit_ms: of a slow directory: how long it may take.
        wchan: kernel function in which the worker sleeps.
        counters_before: of the device when the request was sent.
        counters_after: of the device now.
        no_counters: why there are none.
        text: one line for people.
    """

    path: str
    directory_id: str
    device: str
    model: str | None = None
    serial: str | None = None
    mount_id: int | None = None
    errno: str | None = None
    call: str | None = None
    age_ms: float | None = None
    limit_ms: int | None = None
    wchan: str | None = None
    counters_before: BlockCounters | None = None
    counters_after: BlockCounters | None = None
    no_counters: str | None = None
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON: without what is not known."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A change of a directory's state.

    Attributes:
        path: the log directory as configured.
        directory_id: its id.
        state: what it is now.
        previous: what it was.
        cause: why it is.
        evidence: what that rests on.
        at_ns: monotonic time.
    """

    path: str
    directory_id: str
    state: Health
    previous: Health
    cause: Cause
    evidence: Evidence
    at_ns: int


def device_text(device: BlockDevice) -> str:
    """``"loop3 7:3"``; the number alone where no block device is known."""
    return " ".join((*device.names, device.device))


def describe(state: Health, cause: Cause, evidence: Evidence) -> str:
    """The line for people: which directory, what happened, how it is known."""
    return "; ".join(part for part in (_what(state, cause, evidence), _device(evidence)) if part)


def _what(state: Health, cause: Cause, evidence: Evidence) -> str:
    path, call = evidence.path, evidence.call or "an unknown step"
    age = "" if evidence.age_ms is None else f" after {_ms(evidence.age_ms)}"
    lasting = "" if evidence.age_ms is None else f" for {_ms(evidence.age_ms)}"
    asleep = f" in {evidence.wchan}" if evidence.wchan else ""
    if state is Health.ONLINE:
        return f"{path} is well again"
    match cause:
        case Cause.ERROR | Cause.REPEATED_ERRORS:
            again = ", the second time" if cause is Cause.REPEATED_ERRORS else ""
            return f"{path} {_verb(state)}: {evidence.errno} at {call}{age}{again}"
        case Cause.MOUNT:
            return f"{path} {_verb(state)}: its mount is {call}"
        case Cause.HUNG:
            return f"{path} {_verb(state)}: {call}{lasting}{asleep}, requests in flight and none completed"
        case Cause.HELD:
            return f"{path} stands still: {call}{lasting}{asleep}, nothing in flight (frozen or throttled)"
        case Cause.SLOW:
            limit = f" (slow from {evidence.limit_ms} ms on)"
            if call == "probe":
                return f"{path} is slow: probe took{age.removeprefix(' after')}{limit}"
            return f"{path} is slow: {call}{lasting}{asleep}{limit}, the device makes progress"
        case Cause.SILENT:
            return f"{path} {_verb(state)}: {call}{lasting}{asleep}, no answer"
        case Cause.FULL:
            at = "nothing new can be allocated, overwriting works" if call == "probe" else f"at {call}{age}"
            return f"{path} is full: {evidence.errno or 'ENOSPC'}, {at}"
        case Cause.UNWATCHED:
            return f"{path} cannot be watched: {call}"
        case _:
            return f"{path} is {state}"


def _verb(state: Health) -> str:
    return "failed" if state is Health.FAILED else "is suspect"


def _ms(age_ms: float) -> str:
    return f"{age_ms:.1f} ms" if age_ms < 10 else f"{age_ms:.0f} ms"


def _device(evidence: Evidence) -> str:
    parts = [f"device {evidence.device}"]
    if evidence.model:
        parts.append(evidence.model)
    if evidence.serial:
        parts.append(f"serial {evidence.serial}")
    before, after = evidence.counters_before, evidence.counters_after
    if before is not None and after is not None:
        done = after.completed - before.completed
        parts.append(f"{after.in_flight} in flight, {done} completed since it was asked")
    elif evidence.no_counters and evidence.age_ms is not None and evidence.errno is None:
        parts.append(f"no counters: {evidence.no_counters}")
    return ", ".join(parts)
