"""An agent and a guard as real processes, on disks that a smartctl of ours speaks for: what becomes of its answers, and
that one that hangs keeps nobody."""

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kjbod.faults.disks import RealDisk
from scripts.rig.processes import ManagedProcess, Processes, free_port, kjbod_command, wait_until
from tests.agent.daemon_cluster import Cluster
from tests.agent.smart.test_smartctl import DATA
from tests.metrics.exposition import checked, of_directory, values

PROGRAM = """
import sys
from kjbod_host.health import sysfs
from kjbod_host.health.block import BlockDevice
from kjbod_host.smart import names, rights

names.is_physical = lambda name: True
rights.has_rights = lambda: True
sysfs.block_device_of = lambda mount: BlockDevice((), "0:1", reason="a test", disks=({disk!r},))
from kjbod.cli.main import main
sys.exit(main())
"""
"""The ``kjbod`` command where plain directories lie on a disk that is asked."""


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Cluster:
    return Cluster(tmp_path, processes)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: None) -> Callable[[str], list[str]]:
    """The ``kjbod`` command on a host where ``smartctl`` has this body."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(body: str) -> list[str]:
        smartctl = folder / "smartctl"
        smartctl.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\n{body}\n")
        smartctl.chmod(0o755)
        program = tmp_path / "on_a_disk.py"
        program.write_text(PROGRAM.format(disk=min(os.listdir("/sys/block"))))
        return [sys.executable, str(program)]

    return make


def samples(home: Path) -> list[dict[str, Any]]:
    """Lines of a health report, in its open files."""
    files = sorted((home / "state" / "reports" / "samples").rglob(".*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


def told(home: Path) -> list[dict[str, Any]]:
    """Samples that have what the disk told."""
    return [sample for sample in samples(home) if "smart_ts" in sample]


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    checked(text)
    return values(text)


def test_what_a_disk_tells_is_in_the_health_report_and_in_the_metrics(
    cluster: Cluster, command: Callable[[str], list[str]], tmp_path: Path
) -> None:
    cluster.start_controller()
    port = free_port()
    config = cluster.configure(
        1,
        directories=1,
        kjbod_reports_interval_ms=100,
        kjbod_smart_interval_ms=100,
        kjbod_metrics_listener=f"localhost:{port}",
    )
    agent = cluster.start_agent(config, kjbod=command(f"cat {DATA}/ata-hdd-failing.json"))
    said = agent.wait_for_event("smart.failing")
    assert (said["serial"], said["paths"]) == ("VTEST002", [str(cluster.directory(1, 1))])
    home = tmp_path / "b1"
    wait_until(lambda: len(told(home)) > 2, 30, "samples with what the disk tells")
    sample = told(home)[0]
    assert (sample["serial"], sample["firmware"], sample["capacity_bytes"]) == ("VTEST002", "A3T0", 8_001_563_222_016)
    assert (sample["smart_realloc"], sample["smart_pending"], sample["smart_uncorrect"]) == (1999, 120, 118)
    assert (sample["smart_passed"], sample["smart_poh"], sample["smart_temp_c"]) == (0, 50123, 40)
    with_raw = [json.loads(one["smart_raw"]) for one in told(home) if "smart_raw" in one]
    assert [next(iter(raw.values()))["5"] for raw in with_raw] == [[1, 1, 5, 1999]], "once an hour"
    found = {name: value for name, value in scraped(port).items() if name.startswith("kjbod_disk_smart_")}
    path = cluster.directory(1, 1)
    assert found[f"kjbod_disk_smart_passed{{{of_directory(path)}}}"] == 0
    assert found[f"kjbod_disk_smart_reallocated_sectors{{{of_directory(path)}}}"] == 1999
    assert agent.stop() == 0


def test_an_agent_whose_smartctl_hangs_works_and_ends_as_any_other(
    cluster: Cluster, command: Callable[[str], list[str]], tmp_path: Path
) -> None:
    cluster.start_controller()
    port = free_port()
    config = cluster.configure(
        1, directories=1, kjbod_smart_interval_ms=100, kjbod_metrics_listener=f"localhost:{port}"
    )
    agent = cluster.start_agent(config, kjbod=command("kill -STOP $$"))
    agent.wait_for_event("agent.unfenced")
    pid = int(wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text(), 30, "a question"))
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, 30, "it to hang")
    before = probes(port)
    wait_until(lambda: probes(port) > before + 1, 30, "further probes")
    assert agent.stop() == 0
    with socket.create_server(("localhost", port)):
        pass  # nobody keeps the port
    wait_until(lambda: not psutil.pid_exists(pid), 30, "the end of what was left behind")
    assert not agent.events("directory.verdict")


def probes(port: int) -> float:
    return sum(
        value for name, value in scraped(port).items() if name.startswith("kjbod_log_directory_probe_seconds_count")
    )


def test_a_guard_asks_too_and_says_so_before(
    cluster: Cluster, command: Callable[[str], list[str]], processes: Processes, tmp_path: Path
) -> None:
    config = cluster.configure(
        1,
        directories=1,
        kjbod_reports_interval_ms=100,
        kjbod_smart_interval_ms=100,
        kjbod_smart_socket=tmp_path / "smart.sock",
    )
    cluster.start_controller()
    kjbod = command(f"cat {DATA}/nvme.json")
    check = processes.start([*kjbod, "guard", "check", "-c", str(config)], name="check")
    check.wait()
    assert "by smartctl, as long as the guard has the rights of who asks" in check.stdout()
    guard: ManagedProcess = processes.start([*kjbod, "guard", "run", "-c", str(config)], name="guard")
    assert guard.wait_for_event("smart.source")["source"] == "smartctl"
    wait_until(lambda: told(tmp_path / "b1"), 30, "a sample with what the disk tells")
    sample = told(tmp_path / "b1")[0]
    assert (sample["smart_wear_pct"], sample["smart_spare_pct"], sample["smart_media_errors"]) == (7, 100, 0)
    assert guard.stop() == 0


def test_nothing_is_asked_or_said_of_a_loop_device(
    cluster: Cluster, real_disk: Callable[..., RealDisk], command: Callable[[str], list[str]], tmp_path: Path
) -> None:
    command("exit 0")
    disk = real_disk()
    cluster.start_controller()
    home = tmp_path / "b1"
    settings = {
        "kjbod.state.dir": home / "state",
        "kjbod.placement.full.percent": 100,
        "kjbod.smart.interval.ms": 100,
        "kjbod.reports.interval.ms": 100,
    }
    config = cluster.configure_broker(1, [disk.mount_point], settings)
    cluster.format_broker(config)
    agent = cluster.start_agent(config, kjbod=[kjbod_command()])
    agent.wait_for_event("agent.unfenced")
    seen = len(samples(home))
    wait_until(lambda: len(samples(home)) > seen + 5, 30, "further samples")
    assert agent.stop() == 0
    assert [event for event in agent.events() if event["event"].startswith("smart.")] == []
    assert not (tmp_path / "pids").exists()
