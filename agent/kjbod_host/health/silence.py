"""Silence: observed time in which a device, or a request, makes no progress. Pure.

Only time that somebody watched counts. Each sample adds the time since the one before. When that is more than
``gap_ms``, this process or the machine stood still, every age is long and nobody has looked: then it adds what was
planned between two samples, half of ``gap_ms``.

A write with a flush before and behind it (a journal's commit, on a device without FUA) is three requests one after the
other, and the kernel counts the first flush when it is done, and then nothing until the write *and* the second flush
are. So behind a flush a healthy device may be silent for two requests: ``after_flush``. Measured on ext4 and a device
of 1 s per request: 2 s. Requests of others may be completed between that flush and the write, so it holds until the
device has nothing left to do; and for ``gap_ms`` more, as the journal goes on when it gets a processor.

A device that has just answered after a long silence may be silent for as long again: ``ended_ms`` remembers the longest
silence that ended within :data:`REMEMBERED_MS`.
"""

from msgspec import Struct
from msgspec.structs import replace

from kjbod.observed import could_go_on, observed_ms
from kjbod_host.health.block import BlockCounters

REMEMBERED_MS = 60_000
"""How long a silence that has ended raises the limit for the next silence of the device."""
FROZEN = frozenset({"percpu_rwsem_wait", "__percpu_down_read", "percpu_down_read"})
"""Where a writer to a frozen file system sleeps (``sb_start_write``). Held, whatever the device does for others."""


class DeviceSilence(Struct, frozen=True):
    """Observations of one device, whoever uses it.

    Attributes:
        sampled_ms: time of the last sample.
        counters: then.
        hung_ms: observed time, up to then, in which it had requests in flight at every sample and completed none.
        after_flush: whether a flush was completed before the silence began, and it has not been idle since.
        flushed_ms: time of the sample that saw the last flush completed; None when none did.
        ended_ms: length of the longest silence that ended within :data:`REMEMBERED_MS`.
        ended_at_ms: time of the sample that saw the end of that silence.
    """

    sampled_ms: int
    counters: BlockCounters
    hung_ms: int = 0
    after_flush: bool = False
    flushed_ms: int | None = None
    ended_ms: int = 0
    ended_at_ms: int = 0


def observe_device(earlier: DeviceSilence | None, counters: BlockCounters, now_ms: int, gap_ms: int) -> DeviceSilence:
    """Return the silence of a device with one more sample."""
    if earlier is None:
        return DeviceSilence(now_ms, counters)
    flushed_ms = now_ms if counters.flushes != earlier.counters.flushes else earlier.flushed_ms
    ended_ms, ended_at_ms = earlier.ended_ms, earlier.ended_at_ms
    if ended_ms and now_ms - ended_at_ms > REMEMBERED_MS:
        ended_ms = 0
    busy = counters.in_flight and earlier.counters.in_flight
    if busy and counters.completed == earlier.counters.completed:
        hung_ms = earlier.hung_ms + observed_ms(now_ms - earlier.sampled_ms, gap_ms)
        return DeviceSilence(now_ms, counters, hung_ms, earlier.after_flush, flushed_ms, ended_ms, ended_at_ms)
    if earlier.hung_ms and earlier.hung_ms >= ended_ms and counters.completed != earlier.counters.completed:
        ended_ms, ended_at_ms = earlier.hung_ms, now_ms
    just_flushed = flushed_ms is not None and now_ms - flushed_ms <= gap_ms
    after_flush = just_flushed or bool(busy and earlier.after_flush)
    return DeviceSilence(now_ms, counters, 0, after_flush, flushed_ms, ended_ms, ended_at_ms)


class ProbeBlocked(Struct, frozen=True):
    """A sample of a request that has not been answered.

    Attributes:
        number: of the request; another number means progress.
        call: the step it is in, another one means progress; empty while its worker has not taken it.
        age_ms: since it was sent.
        wchan: kernel function in which the worker sleeps; empty when unknown.
        process_state: letter of ``/proc/PID/stat``; empty when unknown.
        before: counters of the device when the request was sent, None when there are none, or nobody looked then. Of
            several devices: sums.
        now: counters at this sample.
        device_ms: :attr:`DeviceSilence.hung_ms` of the device, the longest of several. It may have begun before this
            request, with somebody else's.
        after_flush: :attr:`DeviceSilence.after_flush`, of any of several.
        ended_ms: :attr:`DeviceSilence.ended_ms`, the longest of several.
    """

    number: int
    call: str
    age_ms: int
    wchan: str = ""
    process_state: str = ""
    before: BlockCounters | None = None
    now: BlockCounters | None = None
    device_ms: int = 0
    after_flush: bool = False
    ended_ms: int = 0


class Blockage(Struct, frozen=True):
    """Observations of the request that is not answered.

    Attributes:
        number: of the request.
        sampled_ms: time of the last sample.
        call: the step that it is in.
        observed_ms: sum of all observed time.
        step_ms: observed time in this step.
        hung_ms: observed time with requests in flight and none completed, up to now.
        held_ms: observed time with nothing in flight and none completed, up to now.
        frozen_ms: observed time in which the worker slept where a frozen file system puts it, up to now.
        blind_ms: observed time without counters, in this step.
        device_ms: as in the last sample.
        after_flush: whether the silence may have begun with a flush.
        ended_ms: as in the last sample.
        idle: whether nothing of it was with the device at the last sample; None when that is not known. Time between
            two samples counts for what both saw, that before the first one for what the first one saw.
        counters: at the last sample that had any.
    """

    number: int
    sampled_ms: int
    call: str = ""
    observed_ms: int = 0
    step_ms: int = 0
    hung_ms: int = 0
    held_ms: int = 0
    frozen_ms: int = 0
    blind_ms: int = 0
    device_ms: int = 0
    after_flush: bool = False
    ended_ms: int = 0
    idle: bool | None = None
    counters: BlockCounters | None = None

    def silent_device_ms(self, confirmed_by_ms: int) -> int:
        """Milliseconds for which the device has been hung, by this request alone or, once the request has stood in one
        step for ``confirmed_by_ms`` itself, by all that was seen of the device."""
        return max(self.hung_ms, self.device_ms) if self.step_ms >= confirmed_by_ms else self.hung_ms


def observe(blockage: Blockage | None, event: ProbeBlocked, now_ms: int, gap_ms: int) -> tuple[Blockage, bool]:
    """Return the blockage with one more sample, and whether the sample says anything about the disk."""
    first = blockage is None or blockage.number != event.number
    if blockage is None or first:
        unseen = event.before is None and event.now is not None
        begun_ms = now_ms if unseen else now_ms - min(event.age_ms, gap_ms)
        blockage = Blockage(event.number, begun_ms, event.call, counters=event.before)
    passed_ms = observed_ms(now_ms - blockage.sampled_ms, gap_ms)
    if not event.call or not could_go_on(event.process_state, event.wchan):
        return replace(blockage, sampled_ms=now_ms, idle=None), False  # nobody knows what it was until now
    earlier, now = blockage.counters, event.now
    frozen = event.wchan in FROZEN
    another_step = event.call != blockage.call
    progress = earlier is not None and now is not None and now.completed != earlier.completed
    idle = True if frozen else None if now is None else now.in_flight == 0
    held = frozen or (idle is True and not progress)
    hung = idle is False and not progress
    same_ms = passed_ms if first or idle is blockage.idle else 0
    blind = now is None and not frozen and not another_step
    return Blockage(
        number=blockage.number,
        sampled_ms=now_ms,
        call=event.call,
        observed_ms=blockage.observed_ms + passed_ms,
        step_ms=0 if another_step else blockage.step_ms + passed_ms,
        hung_ms=blockage.hung_ms + same_ms if hung else 0,
        held_ms=blockage.held_ms + same_ms if held else 0,
        frozen_ms=blockage.frozen_ms + same_ms if frozen else 0,
        blind_ms=blockage.blind_ms + passed_ms if blind else 0,
        device_ms=0 if frozen else event.device_ms,
        after_flush=event.after_flush or _after_flush(blockage, now),
        ended_ms=event.ended_ms,
        idle=idle,
        counters=now or earlier,
    ), True


def _after_flush(blockage: Blockage, now: BlockCounters | None) -> bool:
    """Whether the silence may have begun with a flush, by this request's own samples."""
    earlier = blockage.counters
    if now is None or earlier is None or not now.in_flight:
        return False
    return now.flushes != earlier.flushes if now.completed != earlier.completed else blockage.after_flush
