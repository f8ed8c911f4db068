"""Raw values into which vendors pack more than one number: the same for an agent's disks and for drive histories."""

from typing import Any

import pytest

from kjbod.smart_raw import unpacked
from kjbod_host.smart.smartctl import parse_smartctl

VALUES = [
    (188, 0, 0),
    (188, 65535, 65535),
    (188, 0x1_0001_0001, 1),
    (188, 0x0000_0000_0002_0003, 3),
    (188, 0xFFFF_FFFF_FFFF, 65535),
    (5, 0x000A_000C_0008, 8),
    (5, 65535, 65535),
    (187, 0x0001_0000_0002, 2),
    (187, 70_000, 70_000),
    (197, 0x0003_0000_0010, 16),
    (197, 120_000, 120_000),
    (198, 0x0003_0002_0004, 4),
    (9, 31_427, 31_427),
    (9, (1_234_567 << 32) | 31_427, 31_427),
    (194, 0x0000_0012_0000_0024 & 0xFFFFFFFFFFFF, 0x24),
    (194, 36, 36),
    (190, 0x3C1E_0024, 0x24),
    (241, 1 << 41, 1 << 41),
    (231, 1 << 33, 1 << 33),
]


@pytest.mark.parametrize(("number", "raw", "count"), VALUES)
def test_the_count_is_in_the_lowest_part(number: int, raw: int, count: int) -> None:
    assert unpacked(number, raw) == count


FIELDS = {
    5: "realloc",
    9: "power_on_hours",
    187: "reported_uncorrect",
    188: "command_timeout",
    190: "temp_c",
    194: "temp_c",
    197: "pending",
    198: "uncorrect",
}


@pytest.mark.parametrize(("number", "raw", "count"), [one for one in VALUES if one[0] in FIELDS])
@pytest.mark.parametrize("text", [True, False])
def test_an_agent_reads_its_disks_so(number: int, raw: int, count: int, text: bool) -> None:
    packed: dict[str, Any] = {"value": raw, "string": str(raw)} if text else {"value": raw}
    found = parse_smartctl({"ata_smart_attributes": {"table": [{"id": number, "raw": packed}]}})
    assert found is not None and getattr(found, FIELDS[number]) == count
