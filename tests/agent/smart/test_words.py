"""What ``kjbod guard check`` says of who would ask the disks."""

import pytest

from kjbod_agent.smart.words import asked_by

BEST = {"is_there": True, "is_usable": True, "may": True, "has_smartctl": True}


@pytest.mark.parametrize(
    ("lacking", "mark", "text", "remedy"),
    [
        ((), "ok", "by the helper behind /run/s", ""),
        (("may",), "ok", "by the helper behind /run/s", ""),
        (("is_there", "is_usable"), "ok", "by smartctl, as long as the guard has the rights", ""),
        (("is_usable",), "note", "from sysfs alone", "SocketUser="),
        (("is_there", "is_usable", "may"), "note", "from sysfs alone", "systemctl enable --now kjbod-smart.socket"),
        (("has_smartctl",), "note", "from sysfs alone", "not installed (smartmontools)"),
    ],
)
def test_the_check_says_who_would_ask_the_disks_and_what_is_missing(
    lacking: tuple[str, ...], mark: str, text: str, remedy: str
) -> None:
    found = asked_by(["sda", "sdb"], "/run/s", **{**BEST, **dict.fromkeys(lacking, False)})
    assert found[0] == mark
    assert found[1].startswith("SMART and NVMe health of sda, sdb: ") and text in found[1]
    assert remedy in found[2] and bool(found[2]) == bool(remedy)
