"""What sysfs says of a disk, as the kernel lays it out for SATA, SAS and NVMe."""

from pathlib import Path

from kjbod_host.smart.asker import facts_of, find_smartctl


def make(root: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / "block" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_a_sata_disk_with_drivetemp(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "sda/size": "31251759104\n",
        "sda/device/model": "EX16000NM001    \n",
        "sda/device/rev": "SN02\n",
        "sda/device/wwid": "naa.5000c50000000001\n",
        "sda/device/vpd_pg80": b"\x00\x80\x00\x14            ZTEST001",
        "sda/device/hwmon/hwmon3/temp1_input": "36000\n",
    }
    assert facts_of("sda", make(tmp_path, files)) == {
        "model": "EX16000NM001",
        "serial": "ZTEST001",
        "firmware": "SN02",
        "wwid": "naa.5000c50000000001",
        "capacity_bytes": 16_000_900_661_248,
        "temp_c": 36,
    }


def test_an_nvme_disk(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "nvme0n1/size": "7501476528\n",
        "nvme0n1/wwid": "eui.0000000000000001\n",
        "nvme0n1/device/model": "NV7450-3T8                      \n",
        "nvme0n1/device/serial": "NTEST007  \n",
        "nvme0n1/device/firmware_rev": "E2MU200 \n",
        "nvme0n1/device/hwmon1/temp1_input": "37850\n",
    }
    assert facts_of("nvme0n1", make(tmp_path, files)) == {
        "model": "NV7450-3T8",
        "serial": "NTEST007",
        "firmware": "E2MU200",
        "wwid": "eui.0000000000000001",
        "capacity_bytes": 3_840_755_982_336,
        "temp_c": 38,
    }


def test_a_multipath_head_has_the_temperature_of_a_controller(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"nvme0n1/size": "8\n", "nvme0n1/device/nvme1/hwmon4/temp1_input": "41000\n"}
    assert facts_of("nvme0n1", make(tmp_path, files)) == {"capacity_bytes": 4096, "temp_c": 41}


def test_what_is_not_there_or_makes_no_sense_is_left_out(tmp_path: Path) -> None:
    assert facts_of("sda", tmp_path) == {}
    files: dict[str, str | bytes] = {"sda/size": "-5", "sda/device/hwmon/hwmon0/temp1_input": "warm", "sda/serial": ""}
    assert facts_of("sda", make(tmp_path, files)) == {}


def test_smartctl_is_only_looked_for_in_folders_with_an_absolute_path(tmp_path: Path) -> None:
    program = tmp_path / "smartctl"
    program.write_text("")
    assert find_smartctl([str(tmp_path)]) is None, "it cannot be executed"
    program.chmod(0o755)
    assert find_smartctl(["", ".", str(tmp_path)]) == str(program)
