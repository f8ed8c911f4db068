"""Which file systems carry log directories of one broker and nothing else."""

import pytest
from msgspec.structs import replace

from kjbod_guard.surroundings import is_system, levels, why_shared
from kjbod_host.health.mounts import Mount
from kjbod_host.storage.api import Survey

ROOT = Mount(1, 0, "8:1", "/", "/", "ext4", "/dev/sda1", frozenset())
DISK = Mount(2, 1, "8:17", "/", "/mnt/d1", "ext4", "/dev/sdb1", frozenset())
ALONE = Survey((8, 17, 12), ())
OWN = {"kjbod.state.dir": "/var/lib/kjbod"}


@pytest.mark.parametrize(
    ("path", "mount_point", "expected"),
    [
        ("/mnt/d1", "/mnt/d1", []),
        ("/mnt/d1/kafka", "/mnt/d1", [("/mnt/d1", "kafka")]),
        ("/mnt/d1/a/b", "/mnt/d1", [("/mnt/d1", "a"), ("/mnt/d1/a", "b")]),
        ("/var/kafka", "/", [("/", "var"), ("/var", "kafka")]),
    ],
)
def test_the_way_down_from_the_mount_point(path: str, mount_point: str, expected: list[tuple[str, str]]) -> None:
    assert levels(path, mount_point) == expected


@pytest.mark.parametrize("path", ["/", "/usr", "/usr/local", "/boot/efi", "/var", "/home", "/tmp"])
def test_what_the_host_needs_is_never_cut(path: str) -> None:
    assert is_system(path) and not is_system("/mnt/d1") and not is_system("/var/lib/kafka")


def shared(
    *mounts: Mount, path: str = "/mnt/d1/kafka", surveys: dict[str, Survey] | None = None, own: dict[str, str] = OWN
) -> str | None:
    return why_shared(path, (ROOT, *mounts), {path: ALONE} if surveys is None else surveys, own)


def test_a_file_system_of_its_own_may_be_cut() -> None:
    assert shared(DISK) is None
    beside = {"/mnt/d1/a": Survey(None, ("/mnt/d1/b", "/mnt/d1/lost+found")), "/mnt/d1/b": Survey(None, ("/mnt/d1/a",))}
    assert shared(DISK, path="/mnt/d1/a", surveys=beside) is None  # two log directories of this broker


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (shared(), "its file system is the host's own, of /"),
        (shared(replace(DISK, mount_point="/home"), path="/home/kafka"), "its file system is the host's own, of /home"),
        (shared(replace(DISK, root="/sub")), "only a part of its file system (/sub) is mounted there"),
        (shared(DISK, replace(DISK, mount_id=3, mount_point="/data")), "its file system is mounted on /data as well"),
        (
            shared(DISK, own={"kjbod.state.dir": "/mnt/d1/kjbod"}),
            "kjbod.state.dir lies on its file system, at /mnt/d1/kjbod",
        ),
        (shared(DISK, surveys={}), "what else its file system carries is not known"),
        (
            shared(DISK, surveys={"/mnt/d1/kafka": Survey(None, ("/mnt/d1/postgres",))}),
            "its file system carries /mnt/d1/postgres as well",
        ),
        (
            shared(DISK, surveys={"/mnt/d1/kafka": Survey(None, None)}),
            "what else its file system carries cannot be listed",
        ),
    ],
)
def test_any_other_is_shared_and_it_is_said_by_what(found: str | None, reason: str) -> None:
    assert found == reason
