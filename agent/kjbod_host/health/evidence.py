"""Evidence of a verdict: for the log, for the report and in one line for people. Pure."""

from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.verdict import (
    Cause,
    Event,
    Health,
    MountChanged,
    ProbeBlocked,
    ProbeFailed,
    ProbeImpossible,
    ProbeSucceeded,
)
from kjbod_host.storage.api import DirectoryError, ProbeResult, errno_name


class Evidence(Struct, frozen=True, kw_only=True):
    """Facts that were known when a directory changed its state.

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
        silent_ms: how long the device has had requests in flight and completed none.
        written: of a full directory: whether what is there could still be overwritten.
        kernel: what the kernel said of it lately, the oldest first.
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
    silent_ms: int | None = None
    written: bool | None = None
    kernel: tuple[str, ...] = ()
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the known facts, for JSON."""
        return {name: value for name, value in to_builtins(self).items() if value not in (None, "", [])}

    def of_blocked(self, event: ProbeBlocked, limit_ms: int | None) -> "Evidence":
        """Return the evidence with an unanswered request; ``limit_ms``: limit that makes the directory slow."""
        return replace(
            self,
            call=event.call,
            age_ms=event.age_ms,
            limit_ms=limit_ms,
            wchan=event.wchan,
            counters_before=event.before,
            counters_after=event.now,
        )

    def of_success(self, event: ProbeSucceeded, result: ProbeResult | None, limit_ms: int | None) -> "Evidence":
        """Return the evidence with a passed probe; ``limit_ms``: limit that makes the directory slow."""
        age_ms = None if result is None else result.duration_us / 1000
        written = None if result is None or event.no_space is None else result.written
        return replace(self, errno=event.no_space, call="probe", age_ms=age_ms, limit_ms=limit_ms, written=written)

    def of_event(self, event: Event, error: DirectoryError | None) -> "Evidence":
        """Return the evidence with any other event that can change a state."""
        match event:
            case ProbeFailed():
                age_ms = None if error is None or not error.after_us else error.after_us / 1000
                return replace(self, errno=errno_name(event.errno), call=event.call, age_ms=age_ms)
            case MountChanged():
                return replace(self, errno="ESTALE", call=str(event.change))
            case ProbeImpossible():
                return replace(self, call=event.reason)
            case _:
                return self


class Verdict(Struct, frozen=True, kw_only=True):
    """A change of a directory's state, or from a suspicion that cannot end as failed to one that can, or back.

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

    @property
    def is_about_identity(self) -> bool:
        """Whether it failed for ``meta.properties`` alone, which is gone, closed to us, or another one: what is read
        of the medium was right (the probe reads on)."""
        is_error = self.state is Health.FAILED and self.cause in (Cause.ERROR, Cause.REPEATED_ERRORS)
        return is_error and (self.evidence.errno, self.evidence.call) in _OF_IDENTITY


_OF_IDENTITY = frozenset(
    [("ESTALE", "directory.id in meta.properties")]
    + [
        (name, "read of meta.properties")
        for name in ("ENOENT", "EACCES", "EPERM", "EISDIR", "ELOOP", "ENOTDIR", "ENXIO", "ESPIPE")
    ]
)
"""Errors of a probe, with their steps, that concern only the identity of a directory."""


def device_text(device: BlockDevice) -> str:
    """Return a device as text: ``"loop3 7:3"``; only the number if no block device is known."""
    return " ".join((*device.names, device.device))


def describe(state: Health, cause: Cause, evidence: Evidence) -> str:
    """Return a line for people: directory, event and evidence."""
    kernel = "" if state is Health.ONLINE or not evidence.kernel else f"kernel: {' | '.join(evidence.kernel)}"
    return "; ".join(part for part in (_what(state, cause, evidence), _device(evidence), kernel) if part)


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
            silent = "" if evidence.silent_ms is None else f" for {evidence.silent_ms} ms"
            return f"{path} {_verb(state)}: {call}{lasting}{asleep}, requests in flight and none completed{silent}"
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
            return f"{path} is full: {evidence.errno or 'ENOSPC'}{_room(evidence, f' at {call}{age}')}"
        case Cause.DAMAGE:
            return f"{path} {_verb(state)}: its file system reports damage, although probes pass"
        case Cause.UNWATCHED:
            suspended = f", its worker does not run{asleep}" if asleep else ""
            return f"{path} cannot be watched: {call}{suspended}"
        case _:
            return f"{path} is {state}"


def _room(evidence: Evidence, otherwise: str) -> str:
    """Return the text about a full file system: whether overwriting still works. With copy-on-write or a thin pool it
    does not."""
    match evidence.written:
        case True:
            return ", nothing new can be allocated, overwriting works"
        case False:
            return ", nothing can be written, reading works"
        case None:
            return otherwise


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
