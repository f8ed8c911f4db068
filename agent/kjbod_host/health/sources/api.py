"""Interface of a source of kernel events, and the events.

A source wakes the monitor up: the directory is probed at once, with a full probe. It never decides: a source that fell
silent, that needs a privilege which this process has not, or that speaks of another partition of the same disk, costs
time and nothing else. At the start each says for every directory whether it is active, and why not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from kjbod_host.health.block import BlockDevice
from kjbod_host.health.mounts import Mount


class Subject(Struct, frozen=True, kw_only=True):
    """A log directory with its mount and its device.

    Attributes:
        path: the log directory as configured.
        mount: the mount it lies on; None where the mount table does not show it.
        device: what that lies on.
    """

    path: str
    mount: Mount | None
    device: BlockDevice


class KernelEvent(Struct, frozen=True, kw_only=True):
    """An event of the kernel about log directories.

    Attributes:
        source: name of the source.
        paths: the log directories that it may concern.
        text: what was said, one line for people: ``"ext4 recorded an error (errors_count 1, was 0)"``.
        damage: the file system itself says that its own structures are damaged. Probes may pass all the same: ext4
            mounted ``errors=continue`` goes on, and no call ever fails.
    """

    source: str
    paths: tuple[str, ...]
    text: str
    damage: bool = False


class KernelSource(Protocol):
    """A source of kernel events. No method touches a log directory or blocks."""

    name: str
    """As in the log line ``health.sources``: ``"fs-error"``."""

    def start(self, subjects: Sequence[Subject], on_event: Callable[[KernelEvent], None]) -> Mapping[str, str | None]:
        """Begin, on the running event loop; ``on_event`` is called on it.

        Returns:
            By path: None where the source is active, else why it is not, for people: ``"needs CAP_SYS_ADMIN"``.
        """

    def poll(self) -> None:
        """Look for changes that raise no event; called about once a second."""

    def close(self) -> None:
        """End; may be called again, also when it never started."""
