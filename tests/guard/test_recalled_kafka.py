"""A guard that is started beside disks which hang already, as after an upgrade: it knows them from the one before."""

import re
from collections.abc import Callable
from pathlib import Path

from kjbod.faults.orders import FaultMode
from scripts.rig.kafka import render_properties
from scripts.rig.processes import Processes, kjbod_command
from tests.guard.conftest import Beside, OneBroker


def test_a_guard_that_was_restarted_cuts_disks_that_hung_before_it_came_and_says_of_a_new_one_that_it_cannot(
    tmp_path: Path, processes: Processes, one_broker: Callable[..., OneBroker], beside: Callable[..., Beside]
) -> None:
    site = one_broker()
    disks, paths, config = site.disks, [str(path) for path in site.paths], site.config
    broker = site.launch()

    watch = beside(config)
    first = watch.start("observes")
    first.wait_for_event("guard.broker.found")
    disks[1].set(FaultMode.HANG)
    first.wait_for_event("directory.verdict", path=paths[1], state="failed")
    assert first.stop() == 0  # its worker stays where it is stuck
    disks[2].set(FaultMode.HANG)

    # One that has never read them says so: it has a state directory of its own.
    stranger = tmp_path / "stranger.properties"
    stranger.write_text(render_properties({"kjbod.state.dir": tmp_path / "stranger", "kjbod.host": "host1"}))
    asked = ["-c", str(config), "--guard-config", str(stranger)]
    new = processes.kjbod("guard", "run", *asked, name="new")
    new.wait_for_event("guard.broker.found")
    told = processes.kjbod("status", *asked, "--check", name="status")
    assert told.wait() == 2
    for path in paths[1:]:
        said = new.wait_for_event("directory.unwatched", path=path)["reason"]
        assert "no answer since" in said and "nothing can be done about it until it answers" in said
        assert f"{path} does not answer, and nothing can be done about it until it does" in told.stdout()
    assert new.stop() == 0

    watch.own.write_text(watch.own.read_text() + "kjbod.guard.mode=act\n")
    # As its service: with mounts of its own, which have other ids.
    apart = ["unshare", "--mount", "--propagation", "slave"]
    again = processes.start([*apart, kjbod_command(), "guard", "run", *watch.arguments], name="acts")
    for path in paths[1:]:
        again.wait_for_event("directory.recalled", path=path)
        verdict = again.wait_for_event("directory.verdict", path=path, state="failed")
        assert verdict["cause"] == "hung"
        assert again.wait_for_event("guard.done", means="cut", path=path)["outcome"] in ("done", "pending")
        again.wait_for_event("guard.directory", path=path, state="offline")
    assert broker.running and {"kill", "fence"}.isdisjoint(watch.deeds())
    assert again.stop() == 0


def test_what_is_remembered_of_a_directory_that_was_formatted_anew_since_is_not_taken_for_what_the_broker_has_there(
    processes: Processes, one_broker: Callable[..., OneBroker], beside: Callable[..., Beside]
) -> None:
    site = one_broker(2)
    hung = str(site.paths[1])
    watch = beside(site.config)
    first = watch.start("before")
    first.wait_for_event("guard.started")
    assert first.stop() == 0
    (site.paths[1] / "meta.properties").unlink()
    site.format(again=True)
    site.launch()
    site.disks[1].set(FaultMode.HANG)

    again = watch.start("after")
    again.wait_for_event("directory.recalled", path=hung)
    said = again.wait_for_event("directory.unwatched", path=hung)
    assert re.search("has registered another directory|where its path leads cannot be told", said["reason"])
    assert "nothing can be done about it" in said["reason"]
    watch.wait_until_answering()
    told = processes.kjbod("status", *watch.arguments, "--check", name="status")
    assert told.wait() == 2
    assert f"{hung} does not answer, and nothing can be done about it until it does" in told.stdout()
    assert again.stop() == 0
