"""Report the state of the process to the service manager: sd_notify(3) without a library.

The supervisor must feed the watchdog after a step of the state machine and a turn of the event loop. A separate thread
or timer must not: it would feed the watchdog while the work hangs.

These functions never block or raise: a service manager that does not listen must not stop the service.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping

from kjbod.errors import KjbodError

STATUS_BYTES_MAX = 2048
"""systemd ignores a whole message, including READY=1, that is longer than 4096 bytes (``NOTIFY_BUFFER_MAX``)."""


def sd_notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send ``state`` (``KEY=value`` lines) to the socket of ``NOTIFY_SOCKET``, a path or an abstract name (``@``).

    Return False if there is no service manager, or if it did not accept the message.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as peer:
            peer.sendto(state.encode("utf-8", "replace"), address)
    except OSError:
        return False
    return True


def notify_ready(status: str) -> bool:
    """Report that the start is complete (``Type=notify``). ``systemctl status`` shows ``status``."""
    return sd_notify(f"READY=1\nSTATUS={_one_line(status)}")


def notify_status(status: str) -> bool:
    """Set the line that ``systemctl status`` shows."""
    return sd_notify(f"STATUS={_one_line(status)}")


def notify_stopping(status: str) -> bool:
    """Report that the service has begun to stop."""
    return sd_notify(f"STOPPING=1\nSTATUS={_one_line(status)}")


@contextlib.contextmanager
def refusal_told() -> Iterator[None]:
    """Report to the service manager why a start was refused, and re-raise the error."""
    try:
        yield
    except KjbodError as error:
        notify_stopping(str(error))
        raise


def notify_starting(timeout_ms: int) -> bool:
    """Report that the start continues, so that systemd waits ``timeout_ms`` more from now."""
    return sd_notify(f"EXTEND_TIMEOUT_USEC={timeout_ms * 1000}")


def notify_watchdog() -> bool:
    """Feed the watchdog. Call it from the work itself (see the module) and only after :func:`notify_ready`: systemd
    counts from the first call on, even during a start."""
    return sd_notify("WATCHDOG=1")


def watchdog_interval_ms(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the interval of calls to :func:`notify_watchdog`: half of ``WATCHDOG_USEC``, as sd_watchdog_enabled(3)
    advises.

    None if no watchdog is set for this process.
    """
    pid = environ.get("WATCHDOG_PID")
    if pid is not None and pid != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return max(1, int(text) // 2000)


def _one_line(text: str) -> str:
    line = " ".join(text.splitlines()).encode("utf-8", "replace")
    if len(line) <= STATUS_BYTES_MAX:
        return line.decode()
    return line[: STATUS_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
