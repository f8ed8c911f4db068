"""A broker's file that is changed under a guard that acts: it does nothing on what it read before."""

import shutil
from collections.abc import Callable

from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import wait_until_guarding
from tests.guard.conftest import Beside, OneBroker

METADATA = "__cluster_metadata-0"


def test_a_guard_does_nothing_to_a_broker_that_was_restarted_with_other_log_directories_until_it_is_restarted_too(
    one_broker: Callable[..., OneBroker], beside: Callable[..., Beside]
) -> None:
    site = one_broker(apart=False)  # the metadata log is on the first one
    disks, paths, config = site.disks, site.paths, site.config
    broker = site.launch()
    watch = beside(config, guard_mode="act")
    guard = watch.start()
    wait_until_guarding(guard)

    text, before = config.read_text(), ",".join(map(str, paths))
    assert before in text
    config.write_text(text.replace(before, ",".join(map(str, reversed(paths)))))
    broker.stop(120)
    shutil.move(paths[0] / METADATA, paths[2] / METADATA)  # without that Kafka does not start
    broker = site.launch("broker-again")
    said = guard.wait_for_event("guard.broker.unbound", 30, where=lambda line: "has changed" in line["reason"])
    assert said["reason"].startswith(f"log.dirs in {config} has changed since the guard read it"), said
    disks[0].set(FaultMode.HANG)
    guard.wait_for_event("directory.verdict", 60, path=str(paths[0]), state="failed")
    would = guard.wait_for_event("guard.would", 60, path=str(paths[0]))
    assert would["would"] == "nothing" and "has changed" in would["reason"], would
    assert not watch.deeds() and broker.running
    disks[0].set(FaultMode.OK)
    assert guard.stop() == 0

    # One that is started with the file as it is knows that the metadata are elsewhere by now.
    again = watch.start("again")
    wait_until_guarding(again)
    disks[0].set(FaultMode.HANG)
    assert again.wait_for_event("guard.done", 60, means="cut", path=str(paths[0]))["outcome"] in ("done", "pending")
    assert broker.running
    assert again.stop() == 0
