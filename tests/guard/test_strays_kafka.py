"""``kjbod strays`` beside a real, unmodified Apache Kafka broker: it lists, and touches no disk in doubt."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import Cluster, wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from tests.guard.conftest import Beside
from tests.preloading import run_kjbod

STRAY = f"events-0.{'b' * 32}-stray"


def test_the_strays_of_a_guarded_broker_are_listed_by_the_workers_of_healthy_disks_and_left_alone(
    tmp_path: Path,
    processes: Processes,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    disks = [real_disk(log_dir="kafka") for _ in range(2)]
    first, second = (disk.log_dir for disk in disks)
    cluster = Cluster(tmp_path, processes, kafka=kafka_kit)
    cluster.format_controller()
    cluster.start_controller()
    config = cluster.configure_broker(1, [first, second], {"metadata.log.dir": tmp_path / "metadata"})
    cluster.format_broker(config)
    for directory in (first, second):
        (directory / STRAY).mkdir()
    broker = cluster.launch_broker(kafka_kit, config, name="broker")
    wait_until_serving(broker)
    cluster.create_topic("events", partitions=6)
    watch = beside(config)
    guard = watch.start()
    guard.wait_for_event("guard.broker.found")
    guard.wait_for_event("guard.metadata.followed")

    def strays(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_kjbod("strays", *arguments, *watch.arguments)

    def listed(code: int) -> tuple[list[tuple[str, str]], Any]:
        done = strays("--json")
        assert done.returncode == code, done.stderr
        told = json.loads(done.stdout)
        return [(row["directory"], row["name"]) for row in told["strays"]], told["unreadable"]

    (second / "gone-0").mkdir()
    assert listed(0) == ([(str(first), STRAY), (str(second), STRAY), (str(second), "gone-0")], {})
    (second / "gone-0").rmdir()
    for arguments, tool in (
        (("remove", "--all", "--yes"), "restart the broker"),
        (("restore", STRAY), "kafka-reassign-partitions.sh"),
    ):
        refused = strays(*arguments)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert tool in refused.stderr and "kjbod agent" not in refused.stderr

    disks[1].set(FaultMode.HANG)
    guard.wait_for_event("directory.verdict", path=str(second), state="failed")
    assert listed(1) == ([(str(first), STRAY)], {str(second): f"not listed: {second} is failed"})
    disks[1].set(FaultMode.OK)
    assert (first / STRAY).is_dir() and (second / STRAY).is_dir()
    assert guard.stop() == 0
