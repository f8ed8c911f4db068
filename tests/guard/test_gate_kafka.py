"""A broker that starts beside disks that hang: the gate has them cut or masked, and it serves with the others."""

from collections.abc import Callable

from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import wait_until_guarding
from scripts.rig.processes import Processes
from tests.guard.conftest import Beside, OneBroker
from tests.pages.markdown import ROOT


def test_a_broker_starts_beside_disks_that_hang_when_its_unit_has_the_gate(
    processes: Processes, one_broker: Callable[..., OneBroker], beside: Callable[..., Beside]
) -> None:
    site = one_broker()
    disks, config = site.disks, site.config
    (disks[2].mount_point / "backup.tar").write_text("somebody's: it cannot be cut")
    broker = site.launch()
    watch = beside(config, guard_mode="act")
    guard = watch.start()
    wait_until_guarding(guard)

    drop_in = (ROOT / "systemd/examples/kafka.service.d/kjbod-gate.conf").read_text()
    (line,) = (line for line in drop_in.splitlines() if line.startswith("ExecStartPre="))
    program, *words = line.removeprefix("ExecStartPre=-").split()
    assert program == "/opt/kjbod/bin/kjbod"
    files = {"/etc/kafka/server.properties": str(config), "/etc/kafka/kjbod-guard.properties": str(watch.own)}

    def pass_gate(name: str, *more: str) -> str:
        asked = processes.kjbod(*(files.get(word, word) for word in words), *more, name=name)
        assert asked.wait() == 0, asked.stdout() + asked.stderr()
        return asked.stderr()

    assert pass_gate("well") == ""
    broker.stop(120)
    guard.wait_for_event("guard.broker.unbound", 60)
    bad = [str(path) for path in site.paths[1:]]
    for disk, path in zip(disks[1:], bad, strict=True):
        disk.set(FaultMode.HANG)
        guard.wait_for_event("directory.verdict", path=path, state="failed")
    assert watch.deeds() == [], "nothing is done while no broker starts"
    assert guard.stop() == 0
    guard = watch.start("restarted")  # beside disks that hang already: they are known from memory
    watch.wait_until_answering()  # for which After= of the gate's unit waits

    assert pass_gate("hung").splitlines() == [
        f"kjbod: {bad[0]} is cut: the broker starts without it",
        f"kjbod: {bad[1]} is masked: the broker starts without it",
    ]
    assert sorted(watch.deeds()) == ["cut", "mask"]
    again = site.launch("broker-again")
    for path in bad:
        guard.wait_for_event("guard.directory", 60, path=path, state="offline")
    assert not {"fence", "kill", "evict"} & set(watch.deeds()) and again.running
    assert len(pass_gate("again").splitlines()) == 2

    for disk in disks[1:]:
        disk.set(FaultMode.OK)
    again.stop(120)
    released = processes.kjbod("guard", "release", bad[1], *watch.arguments, name="release")
    assert released.wait() == 0, released.stderr()
    assert guard.wait_for_event("guard.done", means="unmask", path=bad[1])["outcome"] == "done"
    assert guard.stop() == 0
    assert "and the broker starts all the same: no guard answers" in pass_gate("no-guard")
