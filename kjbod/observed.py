"""Time that somebody watched. Pure.

A process that was stopped, or a machine that stood still, sees every age long and has looked at nothing: a deadline
that passed meanwhile says nothing of who was waited for. So time is counted in samples, and each adds what passed since
the one before, or, when that is more than was to be expected, what was planned.
"""

NOT_WAITING_FOR_A_DISK = frozenset("TtRZXx")
"""Process states: stopped by a signal, traced, wants a processor, dead. Not ``S``: FUSE waits in it at first."""
SUSPENDED = frozenset(
    {
        "get_signal",
        "do_freezer_trap",
        "__refrigerator",
        "do_signal_stop",
        "do_jobctl_trap",
        "ptrace_stop",
        "mem_cgroup_handle_over_high",
        "__mem_cgroup_handle_over_high",
    }
)
"""Where a process sleeps, in state ``S`` or ``D``, that somebody keeps from running on its way back to user mode: the
freezer of cgroup v2 (``get_signal``, which has ``do_freezer_trap`` inlined) and v1, a signal, a debugger, the memory
limit of its cgroup (kernel/signal.c, kernel/freezer.c, mm/memcontrol.c). The call before it has returned: no disk is
waited for."""
_STEPS = 10
"""Samples in a time limit: few, so that a busy machine is not taken for one that stood still."""


def observed_ms(passed_ms: int, gap_ms: int) -> int:
    """Milliseconds that a sample adds to a silence, so long after the one before: a late one only what was planned, a
    half."""
    return max(0, passed_ms) if passed_ms <= gap_ms else gap_ms // 2


def could_go_on(process_state: str, wchan: str) -> bool:
    """Whether a process that does not answer was free to: else its silence says nothing of what it waits for. Empty
    text is what nobody knows."""
    return process_state not in NOT_WAITING_FOR_A_DISK and wchan not in SUSPENDED


class ObservedTimeout:
    """A limit of waiting that counts only the time in which somebody looked.

    Attributes:
        step_ms: when to take the next sample.
        waited_ms: what has been observed.
    """

    def __init__(self, timeout_ms: int, now_ms: int, step_ms: int | None = None) -> None:
        self.step_ms = max(1, timeout_ms // _STEPS) if step_ms is None else step_ms
        self.waited_ms = 0
        self._timeout_ms = timeout_ms
        self._sampled_ms = now_ms

    def is_over(self, now_ms: int, *, counts: bool = True) -> bool:
        """Take a sample; whether it has been waited long enough.

        A late sample decides nothing: what was waited for may have come while nobody looked.

        Args:
            now_ms: of a clock that never goes back.
            counts: whether the time since the last sample is evidence.
        """
        passed_ms, self._sampled_ms = now_ms - self._sampled_ms, now_ms
        gap_ms = 2 * self.step_ms
        if counts:
            self.waited_ms += observed_ms(passed_ms, gap_ms)
        return self.waited_ms >= self._timeout_ms and passed_ms <= gap_ms
