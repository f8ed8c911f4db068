"""The storage agent of the plug-in: that of real disks, whose workers are forked by a zygote that counts calls."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kjbod_host.storage import posix, zygote
from kjbod_host.storage.api import StorageOptions


class KillingStorageAgent(posix.PosixStorageAgent):
    """Only the program that forks the workers is another one."""

    def __init__(self, options: StorageOptions) -> None:
        names: dict[str, Any] = {**vars(zygote), "__file__": str(Path(__file__).with_name("killing_zygote.py"))}
        setattr(posix, "zygote", SimpleNamespace(**names))  # noqa: B010  it is not exported
        super().__init__(options)
