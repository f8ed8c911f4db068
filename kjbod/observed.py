"""Count only time in which this process ran. Pure.

After a process was stopped, or its machine suspended, every age looks long, although nothing was observed. A deadline
that passed in that time proves nothing about the awaited process. So time is counted in samples. Each adds the time
since the previous sample or, if that is longer than expected, only the planned time.
"""

NOT_WAITING_FOR_A_DISK = frozenset("TtRZXx")
"""Process states: stopped by a signal, traced, runnable, dead. Not ``S``: a process that waits for FUSE is first in
``S``."""
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
"""Kernel functions in which a process in state ``S`` or ``D`` is suspended on its way back to user mode: by the freezer
of cgroup v2 (``get_signal``, which has ``do_freezer_trap`` inlined) and v1, a signal, a debugger, or the memory limit
of its cgroup (kernel/signal.c, kernel/freezer.c, mm/memcontrol.c). Its system call has returned, so it does not wait
for a disk."""
_STEPS = 10
"""Samples in a time limit: few, so that a busy machine does not count as suspended."""


def observed_ms(passed_ms: int, gap_ms: int) -> int:
    """Return the milliseconds that a sample adds to a silence. A late sample adds only half of ``gap_ms``, the planned
    time."""
    return max(0, passed_ms) if passed_ms <= gap_ms else gap_ms // 2


def could_go_on(process_state: str, wchan: str) -> bool:
    """Return whether a silent process was free to run: otherwise its silence proves nothing about a disk. Empty text is
    unknown."""
    return process_state not in NOT_WAITING_FOR_A_DISK and wchan not in SUSPENDED


class ObservedTimeout:
    """Time limit that counts only the time in which this process ran.

    Attributes:
        step_ms: interval of samples.
        waited_ms: observed time.
    """

    def __init__(self, timeout_ms: int, now_ms: int, step_ms: int | None = None) -> None:
        self.step_ms = max(1, timeout_ms // _STEPS) if step_ms is None else step_ms
        self.waited_ms = 0
        self._timeout_ms = timeout_ms
        self._sampled_ms = now_ms

    def is_over(self, now_ms: int, *, counts: bool = True) -> bool:
        """Take a sample, and return whether the limit is reached.

        A late sample does not reach the limit: the awaited event may have come while this process did not run.

        Args:
            now_ms: time of a clock that never goes back.
            counts: whether the time since the last sample is evidence.
        """
        passed_ms, self._sampled_ms = now_ms - self._sampled_ms, now_ms
        gap_ms = 2 * self.step_ms
        if counts:
            self.waited_ms += observed_ms(passed_ms, gap_ms)
        return self.waited_ms >= self._timeout_ms and passed_ms <= gap_ms
