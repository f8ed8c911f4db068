"""Telling the service manager how we are: sd_notify(3) without a library.

The watchdog is to be fed from the supervisor after the machine has made a step and the loop has gone round, never from
a thread or a timer of its own: a watchdog that is fed beside the work proves nothing.

Nothing here blocks or raises: a service manager that does not listen must not stop the service.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping

from kjbod.errors import KjbodError

STATUS_BYTES_MAX = 2048
"""systemd ignores a whole message, READY=1 included, that is longer than 4096 bytes (``NOTIFY_BUFFER_MAX``)."""


def sd_notify(state: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send ``state`` (``KEY=value`` lines) to the socket of ``NOTIFY_SOCKET``, a path or an abstract name (``@``).

    False where there is no service manager, or it did not take the message.
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
    """Start-up is complete (``Type=notify``); ``status`` is what ``systemctl status`` shows."""
    return sd_notify(f"READY=1\nSTATUS={_one_line(status)}")


def notify_status(status: str) -> bool:
    """Set the line that ``systemctl status`` shows."""
    return sd_notify(f"STATUS={_one_line(status)}")


def notify_stopping(status: str) -> bool:
    """The service has begun to stop."""
    return sd_notify(f"STOPPING=1\nSTATUS={_one_line(status)}")


@contextlib.contextmanager
def refusal_told() -> Iterator[None]:
    """Tell the service manager why a start was refused, and let the error go on."""
    try:
        yield
    except KjbodError as error:
        notify_stopping(str(error))
        raise


def notify_starting(timeout_ms: int) -> bool:
    """The start is not complete and gets on: do not give it up within ``timeout_ms`` from now."""
    return sd_notify(f"EXTEND_TIMEOUT_USEC={timeout_ms * 1000}")


def notify_watchdog() -> bool:
    """Alive. Call it from the work itself, see the top of the file, and only after :func:`notify_ready`: systemd counts
    from the first one on, also during a start."""
    return sd_notify("WATCHDOG=1")


def watchdog_interval_ms(environ: Mapping[str, str] = os.environ) -> int | None:
    """Interval of calls to :func:`notify_watchdog`: half of ``WATCHDOG_USEC``, as sd_watchdog_enabled(3) advises.

    None where no watchdog waits for this process.
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
