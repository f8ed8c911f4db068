"""The wear of SSDs by the names of their attributes: own examples, named and laid out as disks in use do."""

from typing import Any

import pytest

from kjbod_host.smart.smartctl import parse_smartctl


def row(name: str, value: int | None, raw: int | None, text: str | None = None, number: int = 231) -> dict[str, Any]:
    found: dict[str, Any] = {"id": number, "name": name}
    if value is not None:
        found["value"] = value
    if raw is not None:
        found["raw"] = {"value": raw, "string": str(raw) if text is None else text}
    return found


def wear(*rows: dict[str, Any], **more: Any) -> int | None:
    found = parse_smartctl({"ata_smart_attributes": {"table": list(rows)}, **more})
    assert found is not None
    return found.wear_pct


LEFT = (
    *("SSD_Life_Left", "SSD_Life_Left_Perc", "Life_Remaining_Percent", "SSD_Remaining_Life_Perc", "Remaining_Life"),
    *("Lifetime_Left", "Lifetime_Remaining%", "Percent_Lifetime_Remain", "PCT_Life_Remaining", "DriveLife_Remaining%"),
    *("Drive_Life_Remaining%", "Sys_Percent_Life_Remain", "Perc_Rated_Life_Remain", "Remaining_Lifetime_Perc"),
    *("Percent_Life_Remaining", "Remaining_Endurance", "SSDLifeLeft"),
)
USED = (
    *("Percent_Lifetime_Used", "Perc_Rated_Life_Used", "Drive_Life_Used%", "DriveLife_Used%", "Percent_Life_Used"),
    "Endurance_Used",
)


@pytest.mark.parametrize("number", [169, 177, 181, 201, 202, 233, 245, 248])
@pytest.mark.parametrize("name", LEFT)
def test_a_name_for_life_that_is_left_is_wear_whatever_the_number(name: str, number: int) -> None:
    assert wear(row(name, 88, 88, number=number)) == 12
    assert wear(row(name, 88, 12, number=number)) == 12, "a raw value of what is used"
    assert wear(row(name, 88, 0, number=number)) == 12
    assert wear(row(name, 100, 88, number=number)) == 12, "a normalized value that stays"
    assert wear(row(name, None, 88, number=number)) == 12, "without a normalized value"
    assert wear(row(name, 0, 88, number=number)) == 12
    assert wear(row(name, 100, 100, number=number)) == wear(row(name, 100, 0, number=number)) == 0
    assert wear(row(name, 0, 0, number=number)) == 100
    assert wear(row(name, 0, 117, number=number)) == 117, "a raw value of what is used, beyond the rated life"


@pytest.mark.parametrize("number", [173, 202, 232, 245])
@pytest.mark.parametrize("name", USED)
def test_a_name_for_life_that_is_used_is_wear_whatever_the_number(name: str, number: int) -> None:
    assert wear(row(name, 75, 25, number=number)) == 25
    assert wear(row(name, 100, 25, number=number)) == 25, "a normalized value that stays"
    assert wear(row(name, 25, 25, number=number)) == 25, "a normalized value that counts up"
    assert wear(row(name, 75, None, number=number)) == wear(row(name, 75, 0, number=number)) == 25
    assert wear(row(name, 100, 0, number=number)) == wear(row(name, 0, 0, number=number)) == 0
    assert wear(row(name, 0, 117, number=number)) == 117


@pytest.mark.parametrize(
    "name",
    [
        *("Lifetime_Writes_GiB", "Lifetime_Reads_GiB", "Life_Curve_Status", "Drv_Life_Protect_Status"),
        *("Remaining_Spare_Blocks", "Spares_Remaining_Perc", "Used_Rsvd_Blk_Cnt_Tot", "Capacitor_Life", "NOR_Health"),
        *("Capacitor_Life_Left", "Remaining_Energy_Storg", "SPI_Test_Remaining", "Lifetime_Retried_Blk_Ct"),
        *("Timed_Workld_Media_Wear", "Wear_Range_Delta", "Head_Health", "Power_On_Hours", "Unknown_SSD_Attribute"),
        *("Temperature_Celsius", "Perc_Avail_Resrvd_Space", "Average_Erase_Count", "", "%"),
    ],
)
def test_a_name_for_something_else_is_no_wear(name: str) -> None:
    assert wear(row(name, 60, 60)) is None


@pytest.mark.parametrize(
    ("value", "raw", "text", "used"),
    [
        (100, 1 << 32, None, 0),
        (95, 1 << 32, None, 5),
        (97, 0x61, "0x000000000061", 3),
        (100, 0x61, "0x000000000061", 0),
        (100, 48384, None, 0),
        (None, 48384, None, None),
        (200, 0x5C00000064, None, None),
    ],
)
def test_a_raw_value_that_is_no_percentage_is_not_read_as_one(
    value: int | None, raw: int, text: str | None, used: int | None
) -> None:
    assert wear(row("SSD_Life_Left", value, raw, text)) == used


@pytest.mark.parametrize(
    ("value", "raw", "used"), [(100, 9_950, 0), (100, 9_725, 2), (None, 4_000, 60), (93, 9_301, 7)]
)
def test_a_name_with_a_unit_of_hundredths_counts_in_hundredths(value: int | None, raw: int, used: int) -> None:
    assert wear(row("SSD_LifeLeft(0.01%)", value, raw)) == used


@pytest.mark.parametrize(
    ("value", "raw", "used"),
    [
        (1, 0x0107_0042_0107, 1),
        (100, 0x0107_0042_0107, 1),
        (100, 0x2E12_1409_2E12, 0x2E),
        (100, 0x6400_0A00_6400, 100),
        (1, 0x0063_0041_0063, 0),
        (91, 0, 9),
        (91, 12345, 9),
        (0, 48384, None),
        (None, 5, None),
    ],
)
def test_a_wearout_indicator_of_three_words_has_percents_in_the_lowest(value: int | None, raw: int, used: int) -> None:
    assert wear(row("Media_Wearout_Indicator", value, raw, number=230)) == used


def test_what_a_name_says_of_life_goes_before_a_count_of_erasures_and_the_worst_of_both_kinds_counts() -> None:
    leveling = row("Wear_Leveling_Count", 40, 900, number=177)
    assert wear(leveling) == 60
    assert wear(leveling, row("SSD_Life_Left", 90, 90)) == 10
    assert wear(row("SSD_Life_Left", 100, 0), row("Percent_Life_Used", 70, 30, number=232)) == 30
    assert wear(row("Media_Wearout_Indicator", 100, 0, number=233), leveling) == 60


def test_the_raw_value_goes_before_what_smartctl_makes_of_a_normalized_one() -> None:
    assert wear(row("SSD_Life_Left", 100, 93), endurance_used={"current_percent": 0}) == 7


@pytest.mark.parametrize(
    "raw", [None, 5, [], {"value": "7"}, {"value": -1}, {"value": True}, {"value": 7, "string": []}]
)
@pytest.mark.parametrize("value", [None, "60", True, -5, 101, 255, 10**30])
def test_an_attribute_that_makes_no_sense_is_no_wear(value: object, raw: object) -> None:
    assert wear({"id": 231, "name": "SSD_Life_Left", "value": value, "raw": raw}) is None
    assert wear({"id": 231, "name": value, "value": value, "raw": raw}) is None
