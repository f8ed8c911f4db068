"""Which disk is asked when: never one that is in trouble, and one that hung not again for a day."""

import pytest

from kjbod_host.health.state import Health
from kjbod_host.smart.names import is_physical
from kjbod_host.smart.schedule import HUNG_PAUSE_MS, Lying, Past, next_disk, well_disks

INTERVAL_MS = 600_000


@pytest.mark.parametrize(
    ("name", "physical"),
    [
        *((name, True) for name in ("sda", "sdaa", "nvme0n1", "nvme12n3")),
        *((name, False) for name in ("loop0", "dm-0", "md127", "zram0", "nbd3", "rbd0", "vda", "xvda", "ram0", "sr0")),
        *((name, False) for name in ("sda1", "nvme0n1p1", "nvme0", "sd", "", "../sda", "sda\n", "sda b", "mmcblk0")),
    ],
)
def test_only_whole_physical_disks_are_asked(name: str, physical: bool) -> None:
    assert is_physical(name) == physical


@pytest.mark.parametrize("health", Health)
def test_a_disk_is_asked_only_while_it_is_well(health: Health) -> None:
    found = well_disks([Lying(("sda",), health, probed=True)])
    assert found == {"sda": health in (Health.ONLINE, Health.FULL)}


def test_a_disk_is_not_asked_before_a_probe_of_it_has_passed() -> None:
    assert well_disks([Lying(("sda",), Health.ONLINE, probed=False)]) == {"sda": False}


def test_a_disk_below_two_directories_is_asked_only_while_both_are_well() -> None:
    well, slow = Lying(("sda", "sdb"), Health.ONLINE, True), Lying(("sdb", "sdc"), Health.SLOW, True)
    assert well_disks([well, slow]) == well_disks([slow, well]) == {"sda": True, "sdb": False, "sdc": False}


def test_directories_on_loop_devices_and_volumes_without_disks_are_passed_over() -> None:
    assert well_disks([Lying(("loop3", "dm-2"), Health.ONLINE, True), Lying((), Health.ONLINE, True)]) == {}


@pytest.mark.parametrize(
    ("past", "now_ms", "expected"),
    [
        ({}, 0, "sda"),
        ({"sda": Past(0)}, 0, "sdb"),
        ({"sda": Past(0), "sdb": Past(5)}, INTERVAL_MS - 1, None),
        ({"sda": Past(0), "sdb": Past(5)}, INTERVAL_MS, "sda"),
        ({"sda": Past(9), "sdb": Past(5)}, INTERVAL_MS * 2, "sdb"),
        ({"sda": Past(0, hung=True), "sdb": Past(INTERVAL_MS)}, INTERVAL_MS + 1, None),
        ({"sda": Past(0, hung=True), "sdb": Past(HUNG_PAUSE_MS)}, HUNG_PAUSE_MS - 1, None),
        ({"sda": Past(0, hung=True), "sdb": Past(HUNG_PAUSE_MS)}, HUNG_PAUSE_MS, "sda"),
    ],
)
def test_disks_are_asked_in_turn_once_in_the_interval_and_after_a_hang_once_a_day(
    past: dict[str, Past], now_ms: int, expected: str | None
) -> None:
    assert next_disk({"sda": True, "sdb": True}, past, now_ms, INTERVAL_MS) == expected


def test_a_disk_in_trouble_keeps_nobody_else_from_being_asked() -> None:
    assert next_disk({"sda": False, "sdb": True}, {}, 0, INTERVAL_MS) == "sdb"
    assert next_disk({"sda": False}, {}, 0, INTERVAL_MS) is None


def test_an_interval_of_more_than_a_day_is_kept_after_a_hang_too() -> None:
    past = {"sda": Past(0, hung=True)}
    assert next_disk({"sda": True}, past, HUNG_PAUSE_MS, 2 * HUNG_PAUSE_MS) is None
