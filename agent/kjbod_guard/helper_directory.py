"""Log directory that the privileged helper holds. Uses only the standard library, like all of the helper."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

MASK_SOURCE = "kjbod-mask"


class Directory:
    """A log directory as it was when the helper opened it.

    Attributes:
        path: as configured.
        real: target of the path when the helper was started.
        reason: why the helper does nothing to the directory; None: the helper holds it.
        no_cut, no_mask: why the directory is never cut or masked. Names beside it are checked separately.
        identity: of the mounted file system. A file system that is mounted again gets another identity.
        cuts, cuts_ever: number of cuts of that file system, and of all file systems at this path.
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
        """Store the facts and the descriptor that :func:`.helper_freezing.look` has found."""
        self.fd, self.real, self.device, self.reason = fd, told["real"], told["device"], None
        self.inode, self.mount_id, self.lock_inode = told["inode"], told["mount"], told["lock"]
        self.fstype, self.point, self.beside = told["fstype"], told["point"], told["beside"]
        self.masked = told["source"] == MASK_SOURCE
        if told["identity"] != self.identity:
            self.cuts = 0
        self.identity = told["identity"]
