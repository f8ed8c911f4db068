"""What ``kjbod guard check`` says of who would ask the disks."""

import pytest

from kjbod_host.smart.words import asked_by, recovery

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


@pytest.mark.parametrize(
    ("recovery_ms", "cut_after_ms", "text", "remedy"),
    [
        (
            7_000,
            3_000,
            "retries a bad sector for up to 7 s (SCT ERC), and the guard waits 3 s",
            "scterc,15,15 /dev/sda",
        ),
        (10_000, 10_000, "for up to 10 s", "scterc,50,50 /dev/sda"),
        (0, 10_000, "without a limit", "scterc,50,50 /dev/sda"),
        (7_000, 10_000, None, None),
        (None, 3_000, None, None),
    ],
)
def test_the_check_warns_of_a_disk_that_retries_for_longer_than_the_guard_waits(
    recovery_ms: int | None, cut_after_ms: int, text: str | None, remedy: str | None
) -> None:
    line = recovery("sda", recovery_ms, cut_after_ms)
    if text is None or remedy is None:
        assert line is None
    else:
        assert line is not None and line[0] == "note" and text in line[1] and remedy in line[2]
