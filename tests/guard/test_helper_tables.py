"""Where a path leads by a mount table, and what a waiting thread waits for: the pure part of the helper."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kjbod_guard import helper_broker, helper_kernel
from kjbod_guard.helper_broker import CALLS, is_below, waits_for
from kjbod_guard.helper_directory import Directory
from kjbod_guard.helper_freezing import restrict, why_not_cut
from kjbod_guard.helper_kernel import Mount, masks_on_top, require_there, resolve, unescape
from kjbod_guard.helper_netlink import Refused, attribute, nested, no_table, table_of
from kjbod_guard.helper_rights import KEPT_CAPABILITIES, NEEDED, RIGHTS
from kjbod_host.files import file_worker


def mount(
    number: int, parent: int, point: str, device: str = "7:1", source: str = "/dev/sdb", root: str = "/"
) -> Mount:
    return Mount(f"{number} {parent} {device} {root} {point} rw,noatime shared:1 - ext4 {source} rw,errors=remount-ro")


ROOT = mount(20, 1, "/", "8:1", "/dev/sda")
D1 = mount(30, 20, "/mnt/d1")
MASK = Mount("40 30 0:50 / /mnt/d1/kafka ro,nosuid - tmpfs kjbod-mask ro,size=64k")


@pytest.mark.parametrize(
    ("others", "path", "leads_to"),
    [
        ([D1], "/mnt/d1/kafka", 30),
        ([D1], "/mnt/d1", 30),
        ([D1], "/mnt/d10/kafka", 20),
        ([D1, mount(31, 30, "/mnt/d1/kafka")], "/mnt/d1/kafka", 31),
        ([D1, mount(31, 30, "/mnt/d1")], "/mnt/d1/kafka", 31),  # over it
        ([D1, mount(31, 20, "/mnt")], "/mnt/d1/kafka", 31),  # above it: it is not reached any more
        ([D1, mount(31, 20, "/mnt"), mount(32, 31, "/mnt/d1")], "/mnt/d1/kafka", 32),
        ([D1, MASK], "/mnt/d1/kafka", 40),
        ([], "/", 20),
    ],
)
def test_a_path_leads_to_the_mount_that_is_met_first_on_the_way(others: list[Mount], path: str, leads_to: int) -> None:
    found = resolve([ROOT, *others], path)
    assert found is not None and found.id == leads_to
    found = resolve([*reversed(others), ROOT], path)
    assert found is not None and found.id == leads_to, "in whatever order they are told"


def test_a_table_without_a_root_leads_nowhere() -> None:
    assert resolve([], "/mnt/d1") is None
    first = Mount("1 1 0:2 / / rw - rootfs rootfs rw")
    assert resolve([first], "/mnt") is first


def test_names_with_blanks_are_read_as_they_are() -> None:
    assert unescape("/mnt/my\\040disk\\134x") == "/mnt/my disk\\x"
    assert mount(1, 0, "/mnt/my\\040disk").point == "/mnt/my disk"


def directory(path: str = "/mnt/d1/kafka", **changed: Any) -> Directory:
    one = Directory(path)
    fields: dict[str, Any] = {
        "mount_id": 30,
        "device": "7:1",
        "fstype": "ext4",
        "point": "/mnt/d1",
        "inode": 2,
        **changed,
    }
    for name, value in fields.items():
        setattr(one, name, value)
    return one


def test_a_mask_of_ours_is_seen_through_and_nothing_else() -> None:
    assert masks_on_top([ROOT, D1], directory()) == 0
    assert masks_on_top([ROOT, D1, MASK], directory()) == 1
    require_there(directory(), [ROOT, D1])
    require_there(directory(), [ROOT, D1, MASK])
    for over in (mount(41, 40, "/mnt/d1/kafka"), mount(41, 30, "/mnt/d1")):
        with pytest.raises(Refused, match="/mnt/d1/kafka leads to /dev/sdb"):
            require_there(directory(), [ROOT, D1, MASK, over])
    with pytest.raises(Refused):
        require_there(directory(), [ROOT])
    with pytest.raises(Refused):
        require_there(directory(), [ROOT, mount(30, 20, "/mnt/d1", "7:2")])  # the id was used again


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"fstype": "btrfs"}, "btrfs cannot be shut down, only ext4 and xfs"),
        ({"point": "/var"}, "its file system is the host's own, of /var"),
        ({"beside": ["/mnt/d1/backup"]}, "/mnt/d1/backup lies on its file system as well"),
        ({"beside": ["/mnt/d1 (Permission denied)"]}, "/mnt/d1 (Permission denied) lies on its file system as well"),
        ({"masked": True}, "it was masked when the helper was started"),
    ],
)
def test_what_may_be_cut_carries_nothing_but_log_directories(changed: dict[str, Any], reason: str | None) -> None:
    one = directory(**changed)
    restrict([one], [])
    assert why_not_cut(one, [one]) == reason


def test_the_disk_of_the_root_and_of_our_own_files_is_not_cut(tmp_path: Path) -> None:
    for path in ("/", str(tmp_path)):
        one = directory(device=helper_kernel.device_of(os.stat(path)))
        restrict([one], [str(tmp_path)])
        assert one.no_cut is not None and one.no_cut.endswith("lies on its file system")


def test_log_directories_beside_each_other_are_allowed_and_one_that_was_not_frozen_is_not() -> None:
    one = directory(beside=["/mnt/d1/other", "/mnt/d1/third"])
    other = directory("/mnt/d1/other/deep", beside=["/mnt/d1/kafka", "/mnt/d1/third"])
    third = directory("/mnt/d1/third", beside=["/mnt/d1/kafka", "/mnt/d1/other"])
    found = [one, other, third]
    restrict(found, [])
    assert [why_not_cut(each, found) for each in found] == [None, None, None]
    third.reason = "it did not answer within 3000 ms"
    assert why_not_cut(one, found) == "/mnt/d1/third lies on its file system as well"


def test_a_file_system_that_is_frozen_again_keeps_the_count_of_its_cuts_and_another_one_begins_anew() -> None:
    one = Directory("/mnt/d1/kafka")
    told: dict[str, Any] = {
        "real": "/mnt/d1/kafka",
        "device": "7:1",
        "inode": 2,
        "mount": 30,
        "lock": 0,
        "fstype": "ext4",
        "point": "/mnt/d1",
        "beside": [],
        "source": "/dev/sdb",
        "identity": ["7:1", "uuid", 300],
    }
    one.take(told, 9)
    one.cuts = one.cuts_ever = 2
    one.take(told, 9)
    assert (one.cuts, one.cuts_ever) == (2, 2)
    one.take(told | {"identity": ["7:1", "uuid", 301]}, 9)  # mounted again
    assert (one.cuts, one.cuts_ever) == (0, 2)


@pytest.mark.parametrize("path", ["/", "/usr", "/var", "/home"])
def test_a_directory_above_what_the_host_needs_is_not_masked(path: str) -> None:
    one = directory(path)
    restrict([one], [])
    assert one.no_mask is not None and one.no_mask.endswith("would be masked with it")
    below = directory("/var/lib/kafka")
    restrict([below], [])
    assert below.no_mask is None


# -------------------------------------------------------------------------------------------------------------- threads


def test_a_descriptor_leads_to_the_file_and_its_log_directory(tmp_path: Path) -> None:
    log, partition = tmp_path / "log", tmp_path / "d1" / "load-7"
    partition.mkdir(parents=True)
    log.write_bytes(b"")
    (partition / "0.log").write_bytes(b"")
    (tmp_path / "5").symlink_to(partition / "0.log")
    (tmp_path / "6").symlink_to(log)
    reals = {"/data/one": str(tmp_path / "d1"), "/data/two": str(tmp_path / "d2")}
    number = {name: one for one, name in CALLS.items()}
    line = f"{number['write']} 0x5 0x7f 0x1000 0x0 0x0 0x0 0x7ffd 0x7f00"
    assert waits_for(line, str(tmp_path), reals) == {
        "call": "write",
        "file": str(partition / "0.log"),
        "directory": "/data/one",
    }
    assert waits_for(line.replace("0x5", "0x6"), str(tmp_path), reals)["directory"] is None
    assert waits_for(line.replace("0x5", "0x9"), str(tmp_path), reals)["file"] is None
    sendfile = f"{number['sendfile']} 0x6 0x5 0x0 0x1000 0x0 0x0 0x7ffd 0x7f00"
    assert waits_for(sendfile, str(tmp_path), reals)["directory"] == "/data/one", "the file that is sent"


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("running", None),
        ("", None),
        ("-1 0x7ffd 0x7f00", "page fault"),
        ("9999 0x5 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f00", "call 9999"),
    ],
)
def test_what_is_not_known_is_not_guessed(line: str, call: str | None) -> None:
    assert waits_for(line, "/nowhere", {"/": "/"}) == {"call": call, "file": None, "directory": None}


def test_a_path_is_below_its_directory_and_not_below_its_neighbour() -> None:
    assert is_below("/mnt/d1/x", "/mnt/d1") and is_below("/mnt/d1", "/mnt/d1") and is_below("/x", "/")
    assert not is_below("/mnt/d10/x", "/mnt/d1") and not is_below("/mnt", "/mnt/d1")


# ------------------------------------------------------------------------------------------------------------- messages


def test_netlink_attributes_are_padded_to_four_bytes() -> None:
    assert attribute(1, b"x") == b"\5\0\1\0x\0\0\0"
    assert nested(4, attribute(1, b"abcd")) == b"\x0c\0\4\x80\x08\0\1\0abcd"


def test_brokers_of_two_clusters_on_one_host_have_tables_of_their_own() -> None:
    assert table_of(1, [9093, 9092]) == "kjbod_guard_1_9092" != table_of(1, [19092])
    assert table_of(1, []) == "kjbod_guard_1"


def test_a_table_is_removed_whether_it_is_there_or_not() -> None:
    make, delete = no_table("kjbod_guard_1_9092")
    assert (make[4], delete[4]) == (0, 2) and make[16] == 1  # NFT_MSG_NEWTABLE, _DELTABLE, of NFPROTO_INET


def test_on_btrfs_a_holder_is_known_by_the_file_that_it_has_open_and_not_by_an_inode_s_number(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    directory: Any = SimpleNamespace(fd=os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    broker: Any = SimpleNamespace(pid=os.getpid())
    found = (tmp_path / ".lock").stat()
    try:
        assert not helper_broker.has_lock_open(broker, directory)
        assert not file_worker.has_open(os.getpid(), found.st_dev, found.st_ino)
        with open(tmp_path / ".lock"):
            assert helper_broker.has_lock_open(broker, directory)
            assert file_worker.has_open(os.getpid(), found.st_dev, found.st_ino)
            assert not file_worker.has_open(os.getpid(), found.st_dev + 1, found.st_ino), "another subvolume's"
    finally:
        os.close(directory.fd)


@pytest.mark.parametrize("name", ["mnt", "net"])
def test_nothing_is_done_in_a_namespace_of_which_nobody_knows_whether_it_is_the_broker_s(name: str) -> None:
    broker: Any = SimpleNamespace(pid=os.getpid(), namespaces={})
    with pytest.raises(Refused, match=f"{name} namespace of the broker cannot be told"):
        helper_kernel.enter(broker, name, 0)
    directory: Any = None  # it comes before any look at it
    for verb in (helper_kernel.mask, helper_kernel.unmask):
        with pytest.raises(Refused, match="cannot be told"):
            verb(directory, broker)


def test_a_capability_that_is_missed_is_one_that_is_kept_and_that_a_verb_takes() -> None:
    assert set(NEEDED) <= set(KEPT_CAPABILITIES)
    assert {line.partition(" is missing: ")[0] for line in NEEDED.values()} <= set(RIGHTS.values())
