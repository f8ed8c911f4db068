"""Stop a child before the n-th of its system calls that change a directory, and kill it there (ptrace(2)). Linux.

::

    calls = run_traced(work, directory, kill_at=None)       # all of them, in words
    run_traced(work, directory, kill_at=7)                  # dies before the seventh

``work`` runs in a forked child, with all its threads; so call this from a process that has one thread, and no children
of its own.
"""

import ctypes
import errno
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.rig.rig_error import RigError

_TRACEME, _SYSCALL, _SETOPTIONS, _GETEVENTMSG, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x4201, 0x420E
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x100000  # TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, EXITKILL
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY = 1
_WALL = 0x40000000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PATH_BYTES_MAX = 4096
"""With the NUL at its end (``PATH_MAX``)."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_ON_DESCRIPTOR = ("write", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate", "fchmod")
_NUMBERS = {
    "x86_64": "1 write,18 pwrite64,20 writev,74 fsync,75 fdatasync,77 ftruncate,91 fchmod,2 open,82 rename,87 unlink,"
    "83 mkdir,84 rmdir,90 chmod,257 openat,264 renameat,316 renameat2,263 unlinkat,258 mkdirat,268 fchmodat",
    "aarch64": "64 write,68 pwrite64,66 writev,82 fsync,83 fdatasync,46 ftruncate,52 fchmod,56 openat,38 renameat,"
    "276 renameat2,35 unlinkat,34 mkdirat,53 fchmodat",
}
_CALLS = {
    int(number): name
    for number, name in (each.split() for each in _NUMBERS.get(platform.machine(), "").split(",") if each)
}
"""Names of the calls that change a file system, by their number on this machine."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_OWN_DESCRIPTORS = "/proc/self/fd/"


class _SyscallInfo(ctypes.Structure):
    """``struct ptrace_syscall_info`` at an entry."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


def require_tracing() -> None:
    """Raise :class:`RigError`, one line for a person, where this machine's calls are not known."""
    if sys.platform != "linux" or not _CALLS:
        raise RigError(f"tracing system calls is not known for {sys.platform} on {platform.machine()}")


def run_traced(work: Callable[[], None], directory: Path, *, kill_at: int | None) -> list[str]:
    """Fork, do ``work`` there, and kill the child with SIGKILL before the call of number ``kill_at`` (from 1).

    Returns:
        The calls that were seen, in words; the last one was not carried out if it was the one to be killed at.

    Raises:
        RigError: the child ended with an exception of its own.
        OSError: it cannot be traced.
    """
    require_tracing()
    pid = os.fork()
    if pid == 0:
        _in_child(work)
    return _Tracer(pid, str(directory), kill_at).run()


def _in_child(work: Callable[[], None]) -> None:
    code = 1
    try:
        _libc.ptrace(_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        work()
        code = 0
    except BaseException:  # noqa: BLE001  nothing may escape: there would be two of us
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _string(read: Callable[[int], bytes], address: int) -> bytes:
    """The string at ``address``, to its NUL: page by page, as what lies behind its last page may not be there."""
    text = b""
    while b"\0" not in text and len(text) < _PATH_BYTES_MAX:
        more = read(_PAGE_BYTES - (address + len(text)) % _PAGE_BYTES)
        if not more:
            break
        text += more
    return text.split(b"\0")[0]


@dataclass(slots=True)
class _Tracer:
    pid: int
    directory: str
    kill_at: int | None
    calls: list[str] = field(default_factory=list)
    killed: bool = False

    def run(self) -> list[str]:
        _, status = os.waitpid(self.pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise RigError(f"the traced process ended with {status} before it began")
        self._request(_SETOPTIONS, self.pid, _OPTIONS)
        self._go_on(self.pid, 0)
        code = 0
        while True:
            try:
                task, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                break
            if os.WIFSTOPPED(status):
                self._stopped(task, status)
            elif task == self.pid:
                code = os.waitstatus_to_exitcode(status)
        if code and not self.killed:
            raise RigError(f"the traced process ended with {code} by itself")
        return self.calls

    def _stopped(self, task: int, status: int) -> None:
        number = os.WSTOPSIG(status)
        if number == _SYSCALL_STOP:
            self._at_call(task)
            self._go_on(task, 0)
        elif number in (signal.SIGTRAP, signal.SIGSTOP):  # a new thread, its first stop
            self._go_on(task, 0)
        else:
            self._go_on(task, number)

    def _at_call(self, task: int) -> None:
        info = _SyscallInfo()
        try:
            self._request(_GET_SYSCALL_INFO, task, ctypes.sizeof(info), ctypes.addressof(info))
        except ProcessLookupError:
            return
        if info.op != _ENTRY or self.killed:
            return
        what = self._describe(task, info)
        if what is None:
            return
        self.calls.append(what)
        if len(self.calls) == self.kill_at:
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)

    def _describe(self, task: int, info: _SyscallInfo) -> str | None:
        """The call in words, None when it does not change the directory."""
        name = _CALLS.get(info.number)
        if name is None:
            return None
        first, second, third = info.arguments[:3]
        if name in _ON_DESCRIPTOR:
            path = self._link(task, first)
        else:
            path = self._resolved(task, self._text(task, second if name.endswith(("at", "at2")) else first))
            if name in ("open", "openat") and not (third if name == "openat" else second) & _WRITES:
                return None
        return f"{name} {path.rpartition('/')[2]}" if path.startswith(self.directory) else None

    def _resolved(self, task: int, path: str) -> str:
        """The path, where it leads through a descriptor of the process."""
        if not path.startswith(_OWN_DESCRIPTORS):
            return path
        descriptor, _, rest = path.removeprefix(_OWN_DESCRIPTORS).partition("/")
        return f"{self._link(task, int(descriptor))}/{rest}"

    def _link(self, task: int, descriptor: int) -> str:
        try:
            return os.readlink(f"/proc/{task}/fd/{descriptor}")
        except OSError:
            return ""

    def _text(self, task: int, address: int) -> str:
        try:
            with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
                memory.seek(address)
                return os.fsdecode(_string(memory.read, address))
        except (OSError, OverflowError):
            return ""

    def _go_on(self, task: int, number: int) -> None:
        try:
            self._request(_SYSCALL, task, 0, number)
        except ProcessLookupError:
            return  # it was killed meanwhile

    def _request(self, request: int, task: int, address: int, data: int = 0) -> None:
        if request == _SETOPTIONS:
            address, data = 0, address
        if _libc.ptrace(request, task, address, data) == -1 and (code := ctypes.get_errno()):
            ctypes.set_errno(0)
            if code == errno.ESRCH:
                raise ProcessLookupError(code, os.strerror(code))
            raise OSError(code, f"ptrace request {request}: {os.strerror(code)}")
