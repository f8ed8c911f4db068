import pytest

from kjbod_host.health.sources.uevents import Uevent, describe, parse_uevent


def message(head: str, **variables: str) -> bytes:
    return b"\0".join([head.encode(), *(f"{name}={value}".encode() for name, value in variables.items())]) + b"\0"


def test_a_message_of_the_kernel_is_understood() -> None:
    data = message(
        "change@/devices/virtual/block/loop1",
        ACTION="change",
        DEVPATH="/devices/virtual/block/loop1",
        SUBSYSTEM="block",
        RESIZE="1",
        MAJOR="7",
        MINOR="1",
        DEVNAME="loop1",
        SEQNUM="4711",
    )
    event = parse_uevent(data)
    assert event is not None
    assert (event.action, event.name, event.number) == ("change", "loop1", "7:1")
    assert describe(event) == "its size changed"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        b"\xff\xfe@\xff\0SUBSYSTEM\0=\0",
        message("add@/devices/x", ACTION="add", SUBSYSTEM="net"),
        message("libudev", SUBSYSTEM="block", ACTION="remove"),
    ],
)
def test_what_is_not_about_a_block_device_is_passed_over(data: bytes) -> None:
    assert parse_uevent(data) is None


@pytest.mark.parametrize(
    ("action", "variables", "text"),
    [
        ("remove", {}, "it was removed"),
        ("offline", {}, "it went offline"),
        ("change", {"DISK_EJECT_REQUEST": "1"}, "it is to be ejected"),
        ("change", {"DISK_MEDIA_CHANGE": "1"}, "its medium changed"),
        ("change", {"DISK_RO": "1"}, "it became read-only or writable"),
        ("change", {}, None),  # udev's, after somebody closed the device
        ("change", {"SYNTH_UUID": "0"}, None),
        ("add", {}, None),
        ("online", {}, None),
    ],
)
def test_only_what_matters_to_who_uses_the_device_is_told(
    action: str, variables: dict[str, str], text: str | None
) -> None:
    assert describe(Uevent(action, "sda", "8:0", variables)) == text
