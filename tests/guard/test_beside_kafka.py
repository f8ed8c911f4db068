"""A guard beside a real, unmodified Apache Kafka broker, on real disks."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import Cluster, directory_id, wait_until_serving
from scripts.rig.kafka import SIGTERMED, KafkaKit
from scripts.rig.processes import Processes, wait_until
from tests.guard.conftest import Beside

PROBE_FILES = {".kjbod_created_guard", ".kjbod_known_guard", ".kjbod_probe_guard"}


def said(beside: Beside, processes: Processes, *command: str, code: int = 0) -> str:
    asked = processes.kjbod(*command, *beside.arguments, name="-".join(command))
    assert asked.wait() == code, asked.stdout() + asked.stderr()
    return asked.stdout()


def test_a_guard_beside_a_real_broker_says_what_kafka_does_not_notice_and_disturbs_nothing(
    tmp_path: Path,
    processes: Processes,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    disks = [real_disk(fstype=fstype, log_dir="kafka") for fstype in ("ext4", "ext4", "xfs")]
    paths = [str(disk.log_dir) for disk in disks]
    cluster = Cluster(tmp_path, processes, kafka=kafka_kit)
    cluster.format_controller()
    cluster.start_controller()
    config = cluster.configure_broker(1, [Path(path) for path in paths], {"metadata.log.dir": tmp_path / "metadata"})
    cluster.format_broker(config)
    text = config.read_bytes()
    broker = cluster.launch_broker(kafka_kit, config, name="broker")
    wait_until_serving(broker)
    cluster.create_topic("events", partitions=9)

    # It finds the broker and its registration.
    watch = beside(config, reports_interval_ms=500)
    guard = watch.start()
    assert guard.wait_for_event("guard.broker.found")["pid"] == broker.pid
    guard.wait_for_event("guard.metadata.followed")
    told = said(watch, processes, "guard", "check")
    assert "missing" not in told and "is a Kafka broker that runs with" in told, told
    assert f"{paths[0]}: directory.id {directory_id(Path(paths[0]))}, node 1" in told and "ext4 on loop" in told

    def all_led() -> bool:
        rows = json.loads(said(watch, processes, "status", "--json"))["directories"]
        return [row["leaders"] for row in rows] == [3, 3, 3, 0]

    wait_until(all_led, 30, "three leaders in each directory")
    assert said(watch, processes, "status", "--check") == "OK: watching, 4 directories online\n"
    rows = json.loads(said(watch, processes, "log-dirs", "--replicas", "--json"))["directories"]
    assert [len(row["replica_list"]) for row in rows] == [3, 3, 3, 0]

    # A second one for the same broker is refused, and disturbs nothing.
    second = watch.start("second")
    assert second.wait() == 1
    assert f"is in use by another guard (node 1, pid {guard.pid}): stop it first" in second.stderr()

    # A disk that hangs: Kafka does not notice.
    disks[1].set(FaultMode.HANG)
    would = guard.wait_for_event("guard.would", path=paths[1], where=lambda line: "other copy" in line["reason"])
    assert would["would"] == "wait", would
    assert re.fullmatch(
        rf"disk {paths[1]} hung for \d\.\d s, Kafka has not noticed, 3 partitions led, 0 followed; "
        r"would wait \(no cut yet: 3 partitions \(events-\d is one\) have no other copy in sync\)",
        would["text"],
    ), would
    critical = said(watch, processes, "status", "--check", code=2)
    assert critical.startswith(f"CRITICAL: {paths[1]} has failed, and Kafka has not noticed"), critical
    screen = said(watch, processes, "status")
    assert any(line.startswith("failed") and line.split()[-2:] == ["wait", paths[1]] for line in screen.splitlines())
    disks[1].set(FaultMode.OK)
    guard.wait_for_event("directory.watched", 60, path=paths[1])

    # A disk that answers errors: Kafka notices by itself, which the metadata show.
    disks[2].set(FaultMode.EIO)
    guard.wait_for_event("directory.verdict", path=paths[2], state="failed")
    guard.wait_for_event("guard.kafka.view", 60, path=paths[2], view="offline")
    assert guard.wait_for_event("guard.would", path=paths[2], kafka="offline")["would"] == "nothing"

    # A disk that is pulled from under its directory.
    disks[0].unmount()
    would = guard.wait_for_event("guard.would", path=paths[0], where=lambda line: "other copy" in line["reason"])
    assert would["would"] == "wait" and would["reason"].startswith("no report yet: "), would

    # It lives through a restart of the broker, which minds nothing that it finds.
    assert broker.running and config.read_bytes() == text
    first = guard.wait_for_event("guard.registration")["broker_epoch"]
    assert broker.stop(120) == SIGTERMED
    gone = guard.wait_for_event("guard.broker.unbound", 60)
    assert gone["reason"] == "no broker runs: nobody holds .lock in its log directories"
    disks[0].mount()
    assert {name for name in os.listdir(paths[0]) if "kjbod" in name} == PROBE_FILES
    again = cluster.launch_broker(kafka_kit, config, name="broker-again")
    wait_until_serving(again)
    guard.wait_for_event("guard.broker.found", 60, pid=again.pid)
    guard.wait_for_event("guard.registration", 60, where=lambda line: line["broker_epoch"] > first)
    guard.wait_for_event("directory.watched", 60, path=paths[0])
    assert ".kjbod" not in again.stdout() + again.stderr()

    # It ends in good order.
    assert guard.stop() == 0
    assert [line["event"] for line in guard.events()][-1] == "guard.stopped"
    assert {"wait", "nothing"} <= {line.get("would") for line in watch.audit()}
    kinds = watch.report_kinds()
    assert {"agent_started", "dir_failed", "guard_would", "kafka_noticed", "agent_stopped"} <= set(kinds)
    assert again.running
