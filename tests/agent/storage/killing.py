"""Kills a process of its own at a system call of a piece of work."""

import ctypes
import os
import signal
from collections.abc import Callable

_TRACEME, _SYSCALL, _SETOPTIONS = 0, 24, 0x4200
_O_TRACESYSGOOD, _O_EXITKILL = 1, 0x100000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, ctypes.c_void_p(data)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Fork, do the work there, and kill it (SIGKILL) on its way into system call ``number``, which then never happens.

    Returns:
        Whether it got there; False: the work was done with fewer calls.
    """
    return _trace(work, number) is None


def calls_of(work: Callable[[], object]) -> int:
    """Fork, do the work there, and count its system calls."""
    calls = _trace(work, None)
    assert calls is not None
    return calls


def _trace(work: Callable[[], object], kill_at: int | None) -> int | None:
    """How many system calls the work made to its end; None: it was killed."""
    pid = os.fork()
    if pid == 0:
        try:
            _ptrace(_TRACEME, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    _ptrace(_SETOPTIONS, pid, _O_TRACESYSGOOD | _O_EXITKILL)
    stops = signum = 0
    while True:
        _ptrace(_SYSCALL, pid, signum)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return (stops + 1) // 2
        signum = 0 if os.WSTOPSIG(status) == _SYSCALL_STOP else os.WSTOPSIG(status)
        if signum == 0:
            stops += 1  # one on the way in, one on the way out
        if kill_at is not None and stops == 2 * kill_at + 1:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
