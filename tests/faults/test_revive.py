"""A disk that was broken is mounted again, also while the kernel is not done with what was there."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kjbod.faults import revive


@pytest.mark.parametrize(
    ("fstype", "number", "passes"),
    [
        ("btrfs", errno.EINVAL, True),
        ("btrfs", errno.EEXIST, True),
        ("ext4", errno.EBUSY, True),
        ("ext4", errno.EINVAL, False),
        ("btrfs", errno.EIO, False),
    ],
)
def test_a_mount_that_the_kernel_refuses_for_a_moment_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, fstype: str, number: int, passes: bool
) -> None:
    tried = 0

    def mount(*_: object) -> None:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(revive, "_mount", mount)
    target = cast(Any, SimpleNamespace(fstype=fstype))
    if passes:
        revive._mount_in_time(target, Path("/image"))
        assert tried == 3
        return
    with pytest.raises(OSError, match=os.strerror(number)):
        revive._mount_in_time(target, Path("/image"))
    assert tried == 1
