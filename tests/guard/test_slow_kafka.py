"""A disk that is really slow under a real broker: others lead what it led there, and it leads again."""

import json
from collections.abc import Callable
from pathlib import Path

from kjbod.faults.disks import RealDisk
from scripts.rig.cluster import Cluster
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, wait_until
from tests.guard.brokers import start_brokers
from tests.guard.conftest import Beside
from tests.guard.test_beside_kafka import said

PARTITIONS = 4


def test_a_slow_disk_leads_nothing_until_it_is_quick_again(
    tmp_path: Path,
    stub: Cluster,
    processes: Processes,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    disks = [real_disk(log_dir="kafka") for _ in range(2)]
    paths = [disk.log_dir for disk in disks]
    stub.start_controller()
    configs = [
        stub.configure_broker(1, paths, {"metadata.log.dir": tmp_path / "m1"}),
        stub.configure_broker(2, [tmp_path / "b2-d1"]),
    ]
    start_brokers(stub, kafka_kit, configs)
    stub.create_topic("load", PARTITIONS, brokers=(1, 2))
    watch = beside(configs[0], guard_mode="act", guard_slow="demote", slow_ms=500)
    guard = watch.start()
    guard.wait_for_event("guard.broker", state="serving")

    def led() -> dict[str, int]:
        rows = json.loads(said(watch, processes, "status", "--json"))["directories"]
        return {row["path"]: row["leaders"] or 0 for row in rows if row["role"] == "log"}

    wait_until(lambda: sum(led().values()) == PARTITIONS, 60, "leaders on the broker's disks")
    before, slow = led(), str(paths[0])
    assert all(before.values()), before
    disks[0].delay_us(200_000)
    assert guard.wait_for_event("guard.would", 60, path=slow, would="demote")["kafka"] == "online"
    assert guard.wait_for_event("guard.done", means="demote", path=slow)["outcome"] == "done"
    wait_until(lambda: led() == {**before, slow: 0}, 60, "leaders that are elsewhere")
    disks[0].delay_us(0)
    assert guard.wait_for_event("guard.done", 120, means="promote", path=slow)["outcome"] == "done"
    wait_until(lambda: led() == before, 60, "leaders that are back")
    guard.wait_for_event("guard.directory", path=slow, state="leading")
    assert watch.deeds() == ["demote", "promote"]
    assert guard.stop() == 0
