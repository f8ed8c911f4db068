"""Rows *observe* and *act*: a guard beside unmodified brokers of a Kafka."""

import json
from pathlib import Path
from typing import Final

from kjbod.faults.orders import FaultMode
from scripts.matrix.stage import Stage, claim
from scripts.rig.cluster import wait_until_serving
from scripts.rig.kafka import SIGTERMED
from scripts.story.guard_cluster import GuardedCluster
from scripts.story.guard_stage import stage as disks_of_three
from scripts.story.guard_stage import started
from scripts.story.layout import Layout
from scripts.story.narrate import Narrator

_WAIT_S: Final = 60.0
_STOP_S: Final = 120.0
_PARTITIONS: Final = 9


def observe(stage: Stage) -> None:
    """A disk hangs and another one answers EIO: the guard says so, and does nothing."""
    disks = [stage.disk() for _ in range(3)]
    paths = [str(disk.log_dir) for disk in disks]
    cluster = stage.cluster()
    config = cluster.configure_broker(1, [disk.log_dir for disk in disks], {"metadata.log.dir": stage.base / "m1"})
    cluster.format_broker(config)
    broker = cluster.launch_broker(stage.kit, config, name="broker")
    wait_until_serving(broker)
    cluster.create_topic("events", _PARTITIONS)
    beside = stage.guard(config, act=False)
    guard = beside.start()
    checked = stage.kjbod("guard", "check", *beside.arguments)
    claim("missing" not in checked and "broker 1 is registered" in checked, f"guard check: {checked}")
    told = stage.kjbod("status", "--check", *beside.arguments)
    claim(told.startswith("OK: watching"), f"status of a healthy broker: {told}")
    disks[1].set(FaultMode.HANG)
    guard.wait_for_event("guard.would", _WAIT_S, path=paths[1], where=lambda line: "other copy" in line["reason"])
    told = stage.kjbod("status", "--check", *beside.arguments, code=2)
    claim(told.startswith(f"CRITICAL: {paths[1]} has failed"), f"status while a disk hangs: {told}")
    disks[1].set(FaultMode.OK)
    guard.wait_for_event("directory.watched", _WAIT_S, path=paths[1])
    disks[2].set(FaultMode.EIO)
    guard.wait_for_event("directory.verdict", _WAIT_S, path=paths[2], state="failed")
    guard.wait_for_event("guard.kafka.view", _WAIT_S, path=paths[2], view="offline")
    claim(broker.running, "the broker ended")
    audit = (Path(beside.own).parent / "state" / "guard-audit.jsonl").read_text().splitlines()
    did = [line for line in map(json.loads, audit) if line["event"] == "does"]
    claim(not did, f"a guard that observes did {did}")
    claim(guard.stop(_STOP_S) == 0, f"the guard's end: {guard.tail()}")
    code = broker.stop(_STOP_S)
    claim(code == SIGTERMED, f"the broker's end: exit code {code}")


def act(stage: Stage) -> None:
    """A disk hangs under three brokers and is replaced, another one answers EIO: no acknowledged record is lost."""
    layout = Layout(stage.base / "work", stage.base)
    with disks_of_three(layout) as (disks, processes):
        cluster = GuardedCluster(layout, disks, processes, stage.kit, "disk")
        with started(cluster, Narrator()) as story:
            story.start_guards()
            story.hang_guarded()
            story.replace()
            story.fail()
            story.check_records()
            cluster.release_disks()
            cluster.stop()
