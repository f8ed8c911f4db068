"""What is read of smartctl's documents: synthetic ones, in the shapes of real disks (tests/data/smart)."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kjbod_host.smart.readings import Smart, columns, of_directory
from kjbod_host.smart.smartctl import (
    ENTRIES_MAX,
    TEXT_MAX,
    exit_status,
    explain,
    parse_facts,
    parse_smartctl,
    why_unread,
)

DATA = Path(__file__).parents[2] / "data" / "smart"
GB = 10**9


def document(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


def read(name: str) -> Smart:
    found = parse_smartctl(document(name))
    assert found is not None
    return found


READ: dict[str, dict[str, Any]] = {
    "ata-hdd-packed": {
        "model": "EX16000NM001",
        "serial": "ZTEST001",
        "firmware": "SN02",
        "capacity_bytes": 16_000_900_661_248,
        "passed": True,
        "power_on_hours": 31427,
        "temp_c": 36,
        "realloc": 8,
        "pending": 16,
        "uncorrect": 4,
        "reported_uncorrect": 2,
        "command_timeout": 3,
        "recovery_ms": 10_000,
    },
    "ata-hdd-failing": {
        "model": "HT8004",
        "serial": "VTEST002",
        "firmware": "A3T0",
        "capacity_bytes": 8_001_563_222_016,
        "passed": False,
        "power_on_hours": 50123,
        "temp_c": 40,
        "realloc": 1999,
        "pending": 120,
        "uncorrect": 118,
        "recovery_ms": 0,
    },
    "ata-ssd-177": {
        "model": "PM8-960",
        "serial": "STEST003",
        "firmware": "HXT7",
        "capacity_bytes": 960_197_124_096,
        "passed": True,
        "power_on_hours": 21345,
        "temp_c": 29,
        "wear_pct": 7,
        "realloc": 0,
        "reported_uncorrect": 0,
    },
    "ata-ssd-233": {
        "model": "DC4510",
        "serial": "ITEST004",
        "firmware": "XCV1",
        "capacity_bytes": 1_920_383_410_176,
        "passed": True,
        "power_on_hours": 12000,
        "temp_c": 31,
        "wear_pct": 12,
        "spare_pct": 99,
        "realloc": 1,
    },
    "ata-ssd-statistics": {
        "model": "5300MTF",
        "serial": "MTEST005",
        "firmware": "D3MU",
        "capacity_bytes": 3_840_755_982_336,
        "passed": True,
        "power_on_hours": 9000,
        "temp_c": 38,
        "wear_pct": 4,
        "realloc": 0,
    },
    "ata-ssd-231-new": {
        "model": "DC500M",
        "serial": "KTEST006",
        "firmware": "SCEJ",
        "capacity_bytes": 480_103_981_056,
        "passed": True,
        "power_on_hours": 700,
        "temp_c": 33,
        "wear_pct": 3,
        "spare_pct": 100,
    },
    "nvme": {
        "model": "NV7450-3T8",
        "serial": "NTEST007",
        "firmware": "E2MU200",
        "capacity_bytes": 3_840_755_982_336,
        "passed": True,
        "power_on_hours": 17520,
        "temp_c": 38,
        "wear_pct": 7,
        "spare_pct": 100,
        "media_errors": 0,
        "critical_warning": 0,
    },
    "nvme-worn": {
        "model": "NV3610",
        "serial": "NTEST008",
        "firmware": "VDV1",
        "capacity_bytes": 2_000_398_934_016,
        "passed": False,
        "power_on_hours": 17520,
        "temp_c": 71,
        "wear_pct": 131,
        "spare_pct": 4,
        "media_errors": 27,
        "critical_warning": 5,
    },
    "scsi-hdd": {
        "model": "SEATEST ST12",
        "serial": "ZLTEST09",
        "firmware": "E004",
        "capacity_bytes": 12_000_138_625_024,
        "passed": True,
        "power_on_hours": 26011,
        "temp_c": 34,
        "realloc": 5,
        "pending": 2,
        "media_errors": 3,
    },
    "scsi-ssd": {
        "model": "KTEST KPM6",
        "serial": "TTEST10",
        "firmware": "0104",
        "capacity_bytes": 960_197_124_096,
        "passed": True,
        "temp_c": 28,
        "wear_pct": 11,
        "realloc": 0,
    },
    "virtual-disk": {
        "model": "VTEST Virtual disk",
        "firmware": "2.0",
        "capacity_bytes": 107_374_182_400,
    },
}


@pytest.mark.parametrize("name", READ)
def test_what_a_disk_says_of_itself_is_read(name: str) -> None:
    found = read(name)
    known = {field: getattr(found, field) for field in Smart.__struct_fields__ if field != "raw"}
    assert {field: value for field, value in known.items() if value is not None} == READ[name]


@pytest.mark.parametrize("name", ["standby", "behind-raid"])
def test_a_document_about_no_disk_gives_nothing(name: str) -> None:
    assert parse_smartctl(document(name)) is None


def test_why_nothing_was_read_is_said_in_smartctl_s_own_words_where_it_has_some() -> None:
    assert why_unread(document("behind-raid")) == (
        "exit status 2: Smartctl open device: /dev/sdj failed: DELL or MegaRaid controller, please try adding "
        "'-d megaraid,N'"
    )
    assert why_unread(document("standby")) == (
        "exit status 2: the device could not be opened or identified, or is in standby"
    )
    assert why_unread("smartctl: command not found") == "no document of smartctl's"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("smartctl 6.6 2017-11-05 r4594 [x86_64-linux-4.18.0] (local build)\nCopyright\n", "6.6"),
        ("smartctl 6.2 2013-07-26 r3841 [x86_64-linux-3.10.0-1160.el7.x86_64] (local build)\n", "6.2"),
        ("smartctl 6.5 2016-05-07 r4318 [aarch64-linux-4.4.0]", "6.5"),
        ("smartctl 5.43 2012-06-30 r3573", "5.43"),
        ("smartctl version 5.38 [x86_64-redhat-linux-gnu]", "5.38"),
        ("smartctl pre-6.7 2018-02-01", "6.7"),
    ],
)
def test_a_smartctl_without_json_is_named_with_the_version_that_is_needed(version: str, found: str) -> None:
    assert why_unread(version) == f"smartctl {found} knows no JSON: smartmontools 7.0 or later is needed"


@pytest.mark.parametrize("text", ["", "smartctl 7.2 2020-12-30 r5155", "smartctl: error", "{", "smartctl 6", None, []])
def test_any_other_output_is_no_document(text: object) -> None:
    assert why_unread(text) == "no document of smartctl's"


@pytest.mark.parametrize("bit", range(8))
def test_of_the_exit_status_only_the_first_two_bits_mean_that_nothing_was_read(bit: int) -> None:
    told = {"smartctl": {"exit_status": 1 << bit}}
    assert (why_unread(told) is not None) == (bit < 2)
    assert exit_status(told) == 1 << bit
    assert explain(1 << bit)


def test_an_exit_status_of_several_bits_is_explained_bit_by_bit() -> None:
    assert explain(0b11000) == "the disk says that it is failing; attributes are below their thresholds"
    assert explain(0) == ""


def test_raw_attributes_are_kept_as_they_came() -> None:
    packed = read("ata-hdd-packed").raw
    assert packed["5"] == [100, 100, 10, 8]
    assert packed["188"] == [100, 97, 0, (1 << 32) | (2 << 16) | 3]
    assert read("nvme").raw["percentage_used"] == 7
    assert read("nvme-worn").raw["data_units_written"] == 2**63 - 1, "what no column holds is cut"
    assert read("scsi-hdd").raw["write.total_uncorrected_errors"] == 2


@pytest.mark.parametrize(
    ("raw", "count"),
    [
        ({"value": 5, "string": "5"}, 5),
        ({"value": 720575940379279368, "string": "8 (0 12)"}, 8),
        ({"value": 9, "string": "0x000000000009"}, 9),
        ({"value": 7, "string": ""}, 7),
        ({"value": 7}, 7),
        ({"value": -1, "string": "-1"}, None),
        ({"value": "7"}, None),
        ({"value": True}, None),
        ({}, None),
        (None, None),
        (12, None),
    ],
)
def test_a_raw_value_is_the_count_that_smartctl_finds_in_it(raw: object, count: int | None) -> None:
    found = parse_smartctl({"ata_smart_attributes": {"table": [{"id": 5, "raw": raw}]}})
    assert found is not None
    assert found.realloc == count


@pytest.mark.parametrize(
    "row",
    [
        {"id": 231, "name": "Temperature_Celsius", "value": 60},
        {"id": 202, "name": "Data_Address_Mark_Errs", "value": 60},
        {"id": 177, "name": "Wear_Leveling_Count", "value": 200},
        {"id": 177, "name": "Wear_Leveling_Count", "value": "60"},
    ],
)
def test_an_attribute_that_may_be_something_else_is_no_wear(row: dict[str, Any]) -> None:
    found = parse_smartctl({"ata_smart_attributes": {"table": [row]}})
    assert found is not None and found.wear_pct is None


def test_texts_of_a_disk_are_short_and_printable() -> None:
    found = parse_smartctl({"model_name": " A\x1b[31m  B\n", "serial_number": "S" * 10_000, "firmware_version": "\t"})
    assert found is not None
    assert (found.model, found.serial, found.firmware) == ("A [31m B", "S" * TEXT_MAX, None)


def test_a_table_without_end_is_cut() -> None:
    rows = [{"id": 1 + number % 255, "value": 1, "raw": {"value": 1}} for number in range(100_000)]
    found = parse_smartctl({"ata_smart_attributes": {"table": rows}})
    assert found is not None and len(found.raw) == ENTRIES_MAX


# ------------------------------------------------------------------------------------------------------------ anything

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
NAMES = st.sampled_from(
    [
        *("smartctl", "exit_status", "messages", "string", "model_name", "serial_number", "user_capacity", "bytes"),
        *(
            "smart_status",
            "passed",
            "power_on_time",
            "hours",
            "temperature",
            "current",
            "ata_smart_attributes",
            "table",
        ),
        *("id", "name", "value", "raw", "nvme_smart_health_information_log", "critical_warning", "percentage_used"),
        *("ata_device_statistics", "pages", "scsi_error_counter_log", "read", "write", "scsi_grown_defect_list"),
        *("scsi_pending_defects", "count", "endurance_used", "current_percent", "total_uncorrected_errors"),
    ]
)
JSON = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(NAMES | st.text(max_size=5), below, max_size=6),
    max_leaves=40,
)


def is_sound(smart: Smart) -> bool:
    """Whether each value has its type, and fits into a BIGINT."""
    numbers = [value for name, value in columns(smart, raw=False).items() if name != "firmware" and value is not None]
    return all(type(value) is int and -(2**63) <= value < 2**63 for value in numbers)


@given(JSON)
@example({"ata_smart_attributes": {"table": [None, 5, {"id": 5}, {"id": True}, {"id": 10**30}]}})
@example({"nvme_smart_health_information_log": [1]})
@example({"smartctl": {"messages": [5], "exit_status": 3}})
def test_nothing_that_a_document_may_hold_is_an_error(anything: object) -> None:
    found = parse_smartctl(anything)
    why_unread(anything)
    assert is_sound(parse_facts(anything))
    if found is not None:
        assert is_sound(found)
        directory = of_directory({"sda": found, "sdb": found})
        assert directory is not None and is_sound(directory)
        assert columns(directory, raw=True)["smart_raw"] is None or found.raw


@given(st.sampled_from(sorted(READ)), st.data())
def test_nothing_that_a_document_may_lack_is_an_error(name: str, data: st.DataObject) -> None:
    spoilt = _spoil(document(name), data)
    found = parse_smartctl(spoilt)
    assert found is None or is_sound(found)


def _spoil(value: Any, data: st.DataObject) -> Any:
    """The same with one part gone, or of another type."""
    if not isinstance(value, dict | list) or not value:
        return data.draw(SCALARS)
    kept = dict(enumerate(value)) if isinstance(value, list) else dict(value)
    key = data.draw(st.sampled_from(list(kept)))
    if data.draw(st.booleans()):
        kept[key] = _spoil(kept[key], data)
    else:
        del kept[key]
    return list(kept.values()) if isinstance(value, list) else kept
