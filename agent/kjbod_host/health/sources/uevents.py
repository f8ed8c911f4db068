"""Events of block devices: the kernel's own uevents, over netlink. Need no privilege.

Told: a device, or one that it lies on, is removed or goes offline; asks to be ejected; changed its medium, its size
(``RESIZE``, Linux 5.11) or became read-only or writable. A plain ``change`` says nothing, udev makes one whenever
somebody closes a device after writing.

Messages that did not fit into the socket's buffer are lost, and the kernel says so: then one event concerns all log
directories. None arrive in a network namespace that does not belong to the host's user namespace.
"""

import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.sources.descriptor_watch import Watch, reason_of
from kjbod_host.health.sources.device_stack import DeviceMap
from kjbod_host.health.sysfs import SYS

MESSAGES_PER_WAKEUP = 64
MESSAGE_BYTES_MAX = 8192  # the kernel's are at most 2 KiB of variables and a path
_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1  # group 2 is udev's
_TOLD = {
    "RESIZE": "its size changed",
    "DISK_MEDIA_CHANGE": "its medium changed",
    "DISK_EJECT_REQUEST": "it is to be ejected",
    "DISK_RO": "it became read-only or writable",
}


class Uevent(Struct, frozen=True):
    """A kernel's message about a block device.

    Attributes:
        action: ``remove``, ``offline``, ``change``, ...
        name: the kernel's, ``"sda1"``.
        number: ``"8:1"``; empty where it has none.
        variables: all of the message's.
    """

    action: str
    name: str
    number: str
    variables: Mapping[str, str]


def parse_uevent(message: bytes) -> Uevent | None:
    """Parse a message ``action@devpath NUL KEY=VALUE NUL ...``; None: the message is malformed, or not about a block
    device."""
    head, *pairs = message.rstrip(b"\0").decode("utf-8", "replace").split("\0")
    variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if "@" not in head or variables.get("SUBSYSTEM") != "block":
        return None
    number = f"{variables['MAJOR']}:{variables['MINOR']}" if {"MAJOR", "MINOR"} <= variables.keys() else ""
    name = variables.get("DEVPATH", "").rpartition("/")[2]
    return Uevent(variables.get("ACTION", ""), name, number, variables)


def describe(event: Uevent) -> str | None:
    """Meaning of the event for users of the device; None when it has none."""
    if event.action == "remove":
        return "it was removed"
    if event.action == "offline":
        return "it went offline"
    if event.action == "change":
        said = [text for variable, text in _TOLD.items() if variable in event.variables]
        return ", ".join(said) or None
    return None


class BlockUevents:
    """Implements ``KernelSource``; see the head of this module."""

    name = "uevents"

    def __init__(self, sys: Path = SYS) -> None:
        self._sys = sys
        self._socket: socket.socket | None = None
        self._watch: Watch | None = None
        self._paths: dict[str, tuple[str, ...]] = {}

    def start(self, subjects: Sequence[Subject], on_event: Callable[[KernelEvent], None]) -> Mapping[str, str | None]:
        self._on_event = on_event
        devices = DeviceMap(subjects, self._sys)
        self._paths = dict(devices.names)
        self._all = tuple(s.path for s in subjects if s.path not in devices.missing)
        result: dict[str, str | None] = dict.fromkeys(devices.missing, "it lies on no block device")
        if not self._all:
            return result
        try:
            self._socket = _kernel_uevents()
        except OSError as error:
            return result | dict.fromkeys(self._all, f"no netlink socket: {reason_of(error)}")
        self._watch = Watch(self._socket.fileno(), self._readable)
        return result | dict.fromkeys(self._all)

    def poll(self) -> None:
        """Do nothing: every event wakes the loop (``KernelSource.poll``)."""

    def _readable(self) -> None:
        told: dict[tuple[str, str], None] = {}
        for _ in range(MESSAGES_PER_WAKEUP):
            if self._socket is None:
                return
            try:
                message, sender = self._socket.recvfrom(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self._tell(self._all, "the kernel sent more device events than could be read: some are lost")
                    continue
                break
            event = parse_uevent(message) if sender[0] == 0 else None  # 0: from the kernel, not from a process
            if event is not None and event.name in self._paths and (text := describe(event)) is not None:
                told[event.name, f"{event.name} {event.number}: {text}"] = None
        for name, text in told:
            self._tell(self._paths[name], text)

    def _tell(self, paths: tuple[str, ...], text: str) -> None:
        self._on_event(KernelEvent(source=self.name, paths=paths, text=text))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _kernel_uevents() -> socket.socket:
    """A socket that gets the kernel's messages.

    Raises:
        OSError: this process may not have one (seccomp, RestrictAddressFamilies=).
    """
    found = socket.socket(
        socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _NETLINK_KOBJECT_UEVENT
    )
    try:
        found.bind((0, _KERNEL_GROUP))
    except BaseException:
        found.close()
        raise
    return found
