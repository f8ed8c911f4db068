"""A log directory that the privileged helper holds. Standard library only, like all of the helper."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

MASK_SOURCE = "kjbod-mask"


class Directory:
    """A log directory as it was when the helper took hold of it.

    Attributes:
        path: as configured.
        real: where that led when the helper was started.
        reason: why nothing is done to it; None: it is held.
        no_cut, no_mask: why that is not done to it; names beside it are looked at apart from that.
        identity: of the mounted file system: one that is mounted again is another one.
        cuts, cuts_ever: of that file system, and of all that were held here.
    """

    def __init__(self, path: str) -> None:
        self.path = self.real = path
        self.reason: str | None = None
        self.no_cut: str | None = None
        self.no_mask: str | None = None
        self.identity: list[Any] = []
        self.fd = self.mask_fd = self.mount_id = -1
        self.device = self.fstype = self.point = ""
        self.beside: list[str] = []
        self.inode = 0
        self.lock_inode = 0
        self.cuts = self.cuts_ever = 0
        self.masked = False

    def take(self, told: dict[str, Any], fd: int) -> None:
        """Take hold of what :func:`.helper_freezing.look` has found."""
        self.fd, self.real, self.device, self.reason = fd, told["real"], told["device"], None
        self.inode, self.mount_id, self.lock_inode = told["inode"], told["mount"], told["lock"]
        self.fstype, self.point, self.beside = told["fstype"], told["point"], told["beside"]
        self.masked = told["source"] == MASK_SOURCE
        if told["identity"] != self.identity:
            self.cuts = 0
        self.identity = told["identity"]
