"""Health data of several disks together, and as columns of the health report."""

import json

import pytest
from msgspec.structs import replace

from kjbod.fleet.schema import Sample
from kjbod.fleet.schema import columns as schema_columns
from kjbod_host.smart.readings import RAW_BYTES_MAX, Smart, columns, of_directory, over, raw_json

ONE = Smart(
    at_ms=5000,
    model="M",
    serial="S1",
    firmware="F",
    capacity_bytes=100,
    passed=True,
    temp_c=30,
    spare_pct=90,
    realloc=0,
    critical_warning=1,
    raw={"5": [100, 100, 10, 0]},
)
OTHER = Smart(
    at_ms=4000, model="M", serial="S2", capacity_bytes=100, passed=False, temp_c=41, spare_pct=40, realloc=8, pending=1
)


def test_a_directory_on_several_disks_has_the_worst_of_each_value() -> None:
    found = of_directory({"sda": ONE, "sdb": OTHER})
    assert found == Smart(
        at_ms=4000,
        model="M",
        serial="S1 S2",
        firmware="F",
        capacity_bytes=200,
        passed=False,
        temp_c=41,
        spare_pct=40,
        realloc=8,
        pending=1,
        critical_warning=1,
        raw={"sda": {"5": [100, 100, 10, 0]}},
    )


def capacity(*disks: Smart) -> int | None:
    found = of_directory({f"sd{number}": one for number, one in enumerate(disks)})
    assert found is not None
    return found.capacity_bytes


def test_a_disk_that_is_there_on_several_paths_has_its_capacity_once() -> None:
    disk = Smart(model="M", serial="S1", capacity_bytes=100)
    assert capacity(disk, disk) == capacity(disk, disk, disk, disk) == 100
    assert capacity(replace(disk, capacity_bytes=None), disk) == 100
    assert capacity(replace(disk, unit="naa.1"), replace(disk, unit="naa.1", temp_c=30)) == 100
    assert capacity(replace(disk, serial=None, unit="naa.1"), replace(disk, serial=None, unit="naa.1")) == 100
    mirrored = (disk, disk, replace(disk, serial="S2"), replace(disk, serial="S2"))
    assert capacity(*mirrored) == 200


def test_disks_that_only_look_alike_have_their_capacities_each() -> None:
    disk = Smart(model="M", serial="S1", capacity_bytes=100)
    assert capacity(disk, replace(disk, serial="S2")) == 200
    assert capacity(disk, replace(disk, model="N")) == 200
    assert capacity(replace(disk, serial=None), replace(disk, serial=None)) == 200, "virtual disks"
    assert capacity(replace(disk, unit="naa.1"), replace(disk, unit="naa.2")) == 200, "two actuators"
    assert capacity(replace(disk, unit="eui.1"), replace(disk, unit="eui.2", capacity_bytes=50)) == 150, "namespaces"
    assert capacity(replace(disk, capacity_bytes=None)) is None


def test_warnings_of_several_disks_are_all_there() -> None:
    found = of_directory({"a": Smart(critical_warning=1), "b": Smart(critical_warning=4), "c": Smart()})
    assert found is not None and found.critical_warning == 5


def test_without_a_disk_that_was_read_nothing_is_known() -> None:
    assert of_directory({}) is None
    assert columns(None, raw=True) == {}


def test_what_smartctl_says_goes_before_what_sysfs_says() -> None:
    facts = Smart(model="sysfs", temp_c=20, firmware="F0")
    assert over(facts, Smart(model="smartctl", realloc=0)) == Smart(
        model="smartctl", temp_c=20, firmware="F0", realloc=0
    )
    assert over(facts, None) == facts


def test_each_column_is_one_of_the_health_report() -> None:
    known = schema_columns(Sample)
    assert set(columns(ONE, raw=True)) <= set(known)
    assert set(columns(ONE, raw=True)) >= {name for name in known if name.startswith("smart_")}
    assert (columns(ONE, raw=True)["smart_passed"], columns(OTHER, raw=True)["smart_passed"]) == (1, 0)


@pytest.mark.parametrize(
    ("smart", "is_failing"), [(Smart(), False), (ONE, True), (OTHER, True), (Smart(passed=True), False)]
)
def test_a_disk_fails_when_it_says_so_itself(smart: Smart, is_failing: bool) -> None:
    assert smart.is_failing == is_failing


def test_raw_attributes_are_one_value_of_a_bounded_size() -> None:
    attributes = {str(number): [100, 100, 10, 2**40] for number in range(30)}
    one = raw_json({"sda": attributes})
    assert one is not None and json.loads(one) == {"sda": attributes}
    many = raw_json({f"sd{letter}": attributes for letter in "abcdefghijklmnopqrstuvwxyz"})
    assert many is not None and len(many) <= RAW_BYTES_MAX
    kept = json.loads(many)
    assert kept["left_out"] == 26 - (len(kept) - 1) > 0
    assert raw_json({}) is None
