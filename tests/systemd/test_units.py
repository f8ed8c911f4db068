"""The units, in a real systemd: with a stand-in for the programs where the unit is meant, and with the real ones."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kjbod.faults.disks import RealDisk
from kjbod_agent.daemon import CONTROLLED_SHUTDOWN_TIMEOUT_MS
from kjbod_host.ending import END_TIMEOUT_MS
from scripts.rig.processes import wait_until
from scripts.rig.rig_error import RigError
from scripts.rig.systemd import require_systemd
from tests.systemd.conftest import DROP_INS, LOG, SERVICES, UNIT_D, UNITS, Boot, Disks, RealAgent

pytestmark = pytest.mark.usefixtures("as_root")

EXPOSURE = {  # of 10, as README.md states it; "OK" in the words of systemd-analyze security
    "kjbod-agent": 1.5,
    "kjbod-agent with kernel-events": 1.5,
    "kjbod-agent with host-mounts": 3.1,
    "kjbod-agent with stop-with-mount": 1.5,
    "kjbod-agent with combined": 1.5,
    "kjbod-agent@": 1.5,
    "kjbod-guard": 1.5,
    "kjbod-guard with act": 3.0,
    "kjbod-controller": 1.4,
    "kjbod-fleet-ingest": 1.8,
    "kjbod-fleet-page": 1.8,
    "kjbod-fleet-upkeep": 1.8,
}


@contextmanager
def frozen(*disks: RealDisk) -> Iterator[None]:
    """Thawed at the end, also of a test that fails: what is stuck in them would outlive the systemd."""
    try:
        for disk in disks:
            disk.freeze()
        yield
    finally:
        for disk in disks:
            disk.thaw()


def test_copying_everything_activates_no_drop_in(boot: Boot) -> None:
    below = [path for path in UNITS.rglob("*") if path.is_file() and path.parent != UNITS]
    copied = {f"/run/systemd-units/{path.relative_to(UNITS)}": path.read_text() for path in below}
    assert any(path.endswith("host-mounts.conf") for path in copied)
    system = boot(more_files=copied)
    for service in SERVICES:
        of_the_rig = f"/run/systemd-units/{service}.service.d/test.conf"
        assert system.show(service, "DropInPaths") == {"DropInPaths": of_the_rig}


BROKER = "[Service]\nExecStart=/bin/sleep infinity\n"
"""A broker's unit, as far as systemd is concerned."""


@pytest.mark.parametrize("drop_in", ["", *DROP_INS])
def test_systemd_finds_nothing_to_say_about_the_units(boot: Boot, drop_in: str) -> None:
    system = boot(with_drop_in=drop_in, more_files={"/run/systemd-units/kafka.service": BROKER})
    names = (
        [DROP_INS[drop_in].parent.name.removesuffix(".d")]
        if drop_in
        else [f"{name}.service" for name in (*SERVICES, "kjbod-agent@")]
    )
    fleet = [path.name for path in UNITS.glob("kjbod-fleet-*.service")]
    for name in [*names, *fleet, *(path.name for path in UNITS.glob("examples/*.mount"))]:
        command = ("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", f"/run/systemd-units/{name}")
        result = system.run(*command, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", ""), name


@pytest.mark.parametrize("service", EXPOSURE)
def test_the_units_keep_the_services_in_a_sandbox_as_tight_as_it_is_said_to_be(
    tmp_path: Path, machine_can: Callable[[Callable[[], None]], None], service: str
) -> None:
    machine_can(require_systemd)
    name, _, drop_in = service.partition(" with ")
    unit = tmp_path / f"{name}.service"
    unit.write_text((UNITS / unit.name).read_text())
    if drop_in:
        directory = tmp_path / f"{unit.name}.d"
        directory.mkdir()
        (directory / f"{drop_in}.conf").write_text(DROP_INS[drop_in].read_text())
    command = ["systemd-analyze", "security", "--offline=true", str(unit)]
    verdict = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    summary = verdict.splitlines()[-1]
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", summary)
    assert found is not None and float(found.group(1)) <= EXPOSURE[service], summary
    assert f"| {EXPOSURE[service]} |" in (UNITS / "README.md").read_text()


def test_the_template_differs_from_the_unit_by_its_paths_alone() -> None:
    text = (UNITS / "kjbod-agent.service").read_text()
    for one, many in (
        ("Description=kjbod agent,", "Description=kjbod agent %i,"),
        ("/etc/kjbod/agent.properties", "/etc/kjbod/%i/agent.properties"),
        ("StateDirectory=kjbod\n", "StateDirectory=kjbod kjbod/%i\n"),
    ):
        assert one in text
        text = text.replace(one, many)
    assert (UNITS / "kjbod-agent@.service").read_text() == text


def test_the_units_leave_the_agent_the_time_that_it_takes_to_stop_by_itself() -> None:
    stop_s = re.search(r"^TimeoutStopSec=(\d+)s$", (UNITS / "kjbod-agent.service").read_text(), re.MULTILINE)
    assert stop_s is not None
    assert int(stop_s.group(1)) * 1000 > CONTROLLED_SHUTDOWN_TIMEOUT_MS + END_TIMEOUT_MS


def test_several_agents_run_side_by_side_each_with_its_own_configuration_and_state(boot: Boot) -> None:
    system = boot()
    for name in ("left", "right"):
        system.run("mkdir", "-p", f"/etc/kjbod/{name}")
        system.write(f"/etc/kjbod/{name}/agent.properties", f"write=/var/lib/kjbod/{name}/file")
        system.run("systemctl", "start", f"kjbod-agent@{name}")
    assert [system.read(f"/var/lib/kjbod/{name}/file") for name in ("left", "right")] == ["x", "x"]


def test_an_agent_without_privileges_gets_the_kernel_s_events_by_the_drop_in(boot: Boot) -> None:
    # tracefs is one for the whole machine: an instance of our own, and the modes as they were.
    tracefs, name = "/sys/kernel/tracing", f"kjbod-test-{os.getpid()}"
    trace = f"{tracefs}/instances/{name}"
    text = DROP_INS["kernel-events"].read_text().replace("instances/kjbod", f"instances/{name}")
    system = boot(f"write={trace}/trace_marker", more_files={f"{UNIT_D}/kernel-events.conf": text})
    if system.run("mount", "-t", "tracefs", "tracefs", tracefs, check=False).returncode:
        pytest.skip("this kernel has no tracefs")
    passages = (tracefs, f"{tracefs}/instances")
    modes = system.run("stat", "-c", "%a", *passages).stdout.split()
    try:
        system.run("systemctl", "start", "kjbod-agent")
        assert "tracing_mark_write: x" in system.read(f"{trace}/trace"), system.read(LOG)
        assert system.show("kjbod-agent", "CapabilityBoundingSet") == {"CapabilityBoundingSet": ""}
    finally:
        system.run("systemctl", "stop", "kjbod-agent")
        system.run("rmdir", trace)  # the instance is the kernel's, and outlives this systemd
        for path, mode in zip(passages, modes, strict=True):
            system.run("chmod", mode, path)


def test_a_host_with_one_disk_can_have_its_agent_stopped_with_the_mount(boot: Boot) -> None:
    mount = "[Mount]\nWhat=disk\nWhere=/mnt/d1\nType=tmpfs\n"
    system = boot(with_drop_in="stop-with-mount")
    system.write("/run/systemd-units/mnt-d1.mount", mount)
    system.run("systemctl", "daemon-reload")
    system.run("systemctl", "start", "kjbod-agent")
    assert system.show("mnt-d1.mount", "ActiveState") == {"ActiveState": "active"}
    system.run("umount", "/mnt/d1")
    wait_until(lambda: system.show("kjbod-agent", "ActiveState")["ActiveState"] == "inactive", 30, "the agent to stop")


def test_the_agent_waits_for_a_disk_that_it_can_do_without(boot: Boot) -> None:
    system = boot()
    mount = (UNITS / "examples/mnt-d1.mount").read_text()
    system.write("/run/systemd-units/mnt-d1.mount", mount.replace("JobTimeoutSec=10s", "JobTimeoutSec=1s"))
    system.run("systemctl", "daemon-reload")
    system.run("systemctl", "start", "--no-block", "mnt-d1.mount", "kjbod-agent")
    wait_until(lambda: system.show("kjbod-agent", "ActiveState")["ActiveState"] == "active", 40, "the agent to start")
    assert system.show("mnt-d1.mount", "ActiveState") == {"ActiveState": "inactive"}, "its disk does not exist here"


def test_the_agent_runs_unprivileged_is_ready_when_it_says_so_and_stops_cleanly(boot: Boot) -> None:
    system = boot()
    system.run("systemctl", "start", "kjbod-agent")
    shown = system.show("kjbod-agent", "ActiveState", "StatusText")
    assert shown == {"ActiveState": "active", "StatusText": "standing in"}
    uid = system.run("id", "-u", "kjbod").stdout.strip()
    assert uid != "0"
    assert system.read("/run/kjbod.out").split()[:2] == ["uid", uid]
    assert system.run("stat", "-c", "%U %a", "/var/lib/kjbod").stdout == "kjbod 750\n"
    assert system.run("stat", "-c", "%U:%G %a", "/etc/kjbod").stdout == "root:kjbod 750\n"
    system.run("systemctl", "stop", "kjbod-agent")
    assert system.show("kjbod-agent", "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}


def test_a_mistake_in_the_configuration_is_not_restarted(boot: Boot) -> None:
    system = boot("exit=78")
    with pytest.raises(RigError):
        system.run("systemctl", "start", "kjbod-agent")
    shown = system.show("kjbod-agent", "ActiveState", "NRestarts", "ExecMainStatus")
    assert shown == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": "78"}


@pytest.mark.parametrize("exit_code", [1, 74])
def test_another_failure_is_restarted_and_not_for_ever(boot: Boot, exit_code: int) -> None:
    system = boot(f"exit={exit_code}")
    system.run("systemctl", "start", "kjbod-agent", check=False)
    wait_until(lambda: system.show("kjbod-agent", "ActiveState")["ActiveState"] == "failed", 30, "systemd to give up")
    assert system.show("kjbod-agent", "NRestarts") == {"NRestarts": "5"}


def test_an_agent_that_is_killed_comes_back(boot: Boot) -> None:
    system = boot()
    system.run("systemctl", "start", "kjbod-agent")
    before = system.show("kjbod-agent", "MainPID")["MainPID"]
    system.run("kill", "-9", before)

    def is_back() -> bool:
        shown = system.show("kjbod-agent", "ActiveState", "MainPID")
        return shown["ActiveState"] == "active" and shown["MainPID"] not in (before, "0")

    wait_until(is_back, 30, "the agent to come back")
    wait_until(lambda: system.read("/run/kjbod.out").count("uid") == 2, 10, "its second start")
    first, second = (line.split()[3] for line in system.read("/run/kjbod.out").splitlines())
    assert system.run("test", "-d", f"/proc/{first}", check=False).returncode == 1, "a worker outlived its agent"
    assert system.run("test", "-d", f"/proc/{second}", check=False).returncode == 0


def test_a_log_directory_that_belongs_to_the_agent_is_writable_wherever_it_is(boot: Boot) -> None:
    system = boot("write=/mnt/d1/file")
    system.run("install", "-d", "-o", "kjbod", "/mnt/d1")
    system.run("systemctl", "start", "kjbod-agent")
    assert system.read("/mnt/d1/file") == "x"


def test_stopping_with_a_worker_stuck_in_a_disk_is_quick_and_a_success(boot: Boot, disks: Disks) -> None:
    (disk,) = disks(1)
    disk.mount_point.chmod(0o777)
    system = boot("write=/mnt/d1/file stuck=percpu_rwsem_wait", binds={disk.mount_point: "/mnt/d1"})
    with frozen(disk):
        system.run("systemctl", "start", "kjbod-agent")
        # Less than TimeoutStopSec= of the unit, which any other KillMode= would wait out.
        system.run("systemctl", "stop", "kjbod-agent", timeout_s=40)
        shown = system.show("kjbod-agent", "ActiveState", "Result")
        assert shown == {"ActiveState": "inactive", "Result": "success"}


BLOCK_ON_SIGNAL = "import signal, time\nsignal.signal(signal.SIGVTALRM, lambda *_: time.sleep(1000))\n"


def test_the_real_controller_and_agent_run_as_services_and_stop_cleanly(boot: Boot, disks: Disks) -> None:
    agent = RealAgent(boot, disks(2))
    agent.start()
    # Type=notify: the start is complete when the broker is unfenced.
    assert agent.events("agent.unfenced"), agent.system.read(LOG)
    well = {"StatusText": "OK: running, unfenced, 2 directories online"}
    assert agent.show("StatusText") == well
    agent.system.run("systemctl", "stop", "kjbod-controller")
    gone = "DEGRADED: no controller since "
    wait_until(lambda: agent.show("StatusText")["StatusText"].startswith(gone), 30, "a status without a controller")
    agent.system.run("systemctl", "start", "kjbod-controller")
    wait_until(lambda: agent.show("StatusText") == well, 60, "a status with a controller")
    agent.system.run("systemctl", "stop", "kjbod-agent", "kjbod-controller")
    for service in ("kjbod-agent", "kjbod-controller"):
        shown = agent.system.show(service, "ActiveState", "Result", "NRestarts")
        expected = {"ActiveState": "inactive", "Result": "success", "NRestarts": "0"}
        assert shown == expected, agent.system.read(LOG)


def test_a_combined_node_is_one_service_by_the_drop_in_ready_when_both_halves_are(boot: Boot, disks: Disks) -> None:
    agent = RealAgent(boot, disks(2), combined=True)
    agent.start()
    agent.wait_for("agent.unfenced")
    assert agent.events_of("controller", "controller.started")
    well = {"StatusText": "OK: running, unfenced, 2 directories online, controller 1 active in epoch 1"}
    wait_until(lambda: agent.show("StatusText") == well, 20, "the status of both halves")
    agent.system.run("systemctl", "stop", "kjbod-agent")
    shown = agent.show("ActiveState", "Result", "NRestarts")
    assert shown == {"ActiveState": "inactive", "Result": "success", "NRestarts": "0"}, agent.system.read(LOG)


def test_root_and_the_user_of_the_agent_may_ask_it_and_nobody_else(boot: Boot, disks: Disks) -> None:
    agent = RealAgent(boot, disks(1))
    agent.start()
    ask = ["/opt/kjbod/bin/kjbod", "status", "-c", "/etc/kjbod/agent.properties"]
    for user in ([], ["runuser", "-u", "kjbod", "--"]):
        assert "running, unfenced" in agent.system.run(*user, *ask).stdout
    group = ["setpriv", "--reuid=65534", "--regid=kjbod", "--clear-groups"]
    refused = agent.system.run(*group, *ask, check=False)
    assert refused.returncode == 1
    assert "/var/lib/kjbod/control.sock: no permission: ask as root or as the user of the agent" in refused.stderr


def test_an_agent_that_waits_for_its_controller_is_not_given_up(boot: Boot, disks: Disks) -> None:
    agent = RealAgent(boot, disks(1), settings_of_unit="[Service]\nTimeoutStartSec=4s\n")
    agent.system.run("systemctl", "start", "--no-block", "kjbod-agent")
    started = agent.wait_for("agent.started")["timestamp"]

    def is_overdue() -> bool:
        age = datetime.now(UTC) - datetime.fromisoformat(started)
        return age.total_seconds() > 6

    wait_until(is_overdue, 60, "TimeoutStartSec= to pass")
    assert agent.show("ActiveState", "NRestarts") == {"ActiveState": "activating", "NRestarts": "0"}
    agent.start()
    assert agent.show("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}


def test_an_agent_that_hangs_is_started_again(boot: Boot, disks: Disks) -> None:
    agent = RealAgent(
        boot,
        disks(1),
        settings_of_unit="[Service]\nWatchdogSec=4s\nTimeoutAbortSec=1s\nEnvironment=PYTHONPATH=/run/for-test\n",
        more_files={"/run/for-test/sitecustomize.py": BLOCK_ON_SIGNAL},
    )
    agent.start()
    for count, signal in enumerate(("-STOP", "-VTALRM"), 1):
        agent.system.run("kill", signal, agent.show("MainPID")["MainPID"])
        agent.wait_for_restart(count)
    # The loop that hung said where, as it was ended.
    log = agent.system.read(LOG)
    assert "Fatal Python error: Aborted" in log and "sitecustomize.py" in log
    agent.system.run("systemctl", "stop", "kjbod-agent")
    assert agent.show("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}


def test_a_mistake_in_the_real_configuration_is_not_restarted_and_is_in_the_status(boot: Boot) -> None:
    system = boot("process.roles=broker\nnode.id=one\n", real=True)
    system.run("systemctl", "start", "kjbod-agent", check=False)
    shown = system.show("kjbod-agent", "ActiveState", "NRestarts", "ExecMainStatus", "StatusText")
    assert "node.id" in shown.pop("StatusText")
    assert shown == {"ActiveState": "failed", "NRestarts": "0", "ExecMainStatus": "78"}


def test_stopping_the_real_agent_does_not_wait_for_its_stuck_workers(boot: Boot, disks: Disks) -> None:
    made = disks(3)
    agent = RealAgent(boot, made, settings="metadata.log.dir=/var/lib/kjbod/metadata\nkjbod.held.timeout.ms=0\n")
    agent.start()
    with frozen(*made[:2]):
        for path in ("/mnt/d1", "/mnt/d2"):
            agent.wait_for("directory.verdict", path=path, state="held")
        # Less than TimeoutStopSec= of the unit, which any other KillMode= would wait out.
        agent.system.run("systemctl", "stop", "kjbod-agent", timeout_s=40)
        assert agent.show("ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    assert agent.events("agent.stopped")[-1]["exit_code"] == 0


def test_a_missing_disk_is_named_and_the_last_one_to_fail_ends_the_agent_which_then_stays_down(
    boot: Boot, disks: Disks
) -> None:
    agent = RealAgent(boot, disks(3), settings_of_unit="[Unit]\nStartLimitBurst=3\n")
    system = agent.system
    agent.start()
    system.run("systemctl", "stop", "kjbod-agent")
    system.run("umount", "/mnt/d2")
    agent.start()
    assert "/mnt/d2 could not be read at the start" in agent.show("StatusText")["StatusText"]
    assert "mount its disk" in agent.wait_for("directory.unreadable")["reason"]
    # The second of three dies, then the last one, which also has the cluster metadata.
    system.run("umount", "-l", "/mnt/d3")
    agent.wait_for("directory.offline.acknowledged")
    assert "/mnt/d3 failed since 2" in agent.show("StatusText")["StatusText"]
    system.run("umount", "-l", "/mnt/d1")
    stopped = agent.wait_for("agent.stopped", exit_code=74)
    assert "log directory /mnt/d1" in stopped["reason"] and "failed since" in stopped["reason"]
    wait_until(lambda: agent.show("ActiveState")["ActiveState"] == "failed", 60, "systemd to give up")
    shown = agent.show("NRestarts", "ExecMainStatus", "StatusText")
    assert shown["ExecMainStatus"] == "1" and int(shown["NRestarts"]) <= 3
    assert "/mnt/d1" in shown["StatusText"]


FILL_STDERR = """
import ctypes, os, socket, sys
pidfd = os.pidfd_open(int(sys.argv[1]))
stream = socket.socket(fileno=ctypes.CDLL(None).syscall(438, pidfd, 2, 0))  # pidfd_getfd(2)
try:
    while True:
        stream.send(b"x" * 1000 + b"\\n", socket.MSG_DONTWAIT)
except BlockingIOError:
    print("full")
"""


def test_a_journald_that_stands_still_keeps_neither_the_agent_nor_its_end(boot: Boot, disks: Disks) -> None:
    agent = RealAgent(
        boot,
        disks(1),
        settings_of_unit="[Service]\nStandardOutput=journal\nStandardError=journal\nRestart=no\n",
        more_files={"/etc/systemd/journald.conf.d/test.conf": "[Journal]\nStorage=volatile\nReadKMsg=no\n"},
        journal=True,
    )
    system = agent.system
    system.run("systemctl", "start", "systemd-journald")
    agent.start()
    journald = system.show("systemd-journald", "MainPID")["MainPID"]
    system.run("kill", "-STOP", journald)
    assert system.run(sys.executable, "-c", FILL_STDERR, agent.show("MainPID")["MainPID"]).stdout == "full\n"
    system.run("umount", "-l", "/mnt/d1")
    wait_until(lambda: agent.show("ActiveState")["ActiveState"] == "failed", 30, "the agent to end")
    shown = agent.show("ExecMainStatus", "StatusText")
    assert shown["ExecMainStatus"] == "74"
    assert "log directory /mnt/d1" in shown["StatusText"] and "failed since 2" in shown["StatusText"]
    system.run("kill", "-CONT", journald)


def test_what_is_done_to_mounts_of_the_host_reaches_the_agent_in_its_sandbox(boot: Boot, disks: Disks) -> None:
    made = disks(4)
    agent = RealAgent(boot, made, settings="metadata.log.dir=/var/lib/kjbod/metadata\n")
    agent.start()
    pid = agent.show("MainPID")["MainPID"]
    assert len({agent.system.run("readlink", f"/proc/{one}/ns/mnt").stdout for one in ("1", pid)}) == 2
    # The locks of the agent are open files, which the kernel does not make read-only.
    assert "busy" in agent.system.run("mount", "-o", "remount,ro", "/mnt/d4", check=False).stderr
    # The fourth first, since nothing shall come of it: the option of a mount of the host is not that of the agent's.
    agent.system.run("mount", "-o", "remount,ro,bind", "/mnt/d4")
    assert "Read-only" in agent.system.run("touch", "/mnt/d4/file", check=False).stderr
    agent.system.run("umount", "-l", "/mnt/d1")
    agent.system.run("mount", "-t", "tmpfs", "over", "/mnt/d2")
    made[2].trigger_fs_error()
    for number in (1, 2, 3):
        agent.wait_for("directory.failed", path=f"/mnt/d{number}")
    agent.system.run("systemctl", "stop", "kjbod-agent")
    assert not agent.events("directory.failed", path="/mnt/d4")


def test_an_agent_in_the_mounts_of_the_host_sees_what_is_done_to_them_or_keeps_it_from_being_done(
    boot: Boot, disks: Disks
) -> None:
    agent = RealAgent(boot, disks(2), with_drop_in="host-mounts")
    agent.start()
    pid = agent.show("MainPID")["MainPID"]
    assert len({agent.system.run("readlink", f"/proc/{one}/ns/mnt").stdout for one in ("1", pid)}) == 1
    assert "busy" in agent.system.run("mount", "-o", "remount,ro,bind", "/mnt/d2", check=False).stderr
    agent.system.run("umount", "-l", "/mnt/d2")
    agent.wait_for("directory.failed", path="/mnt/d2")
    agent.system.run("systemctl", "stop", "kjbod-agent")


def test_the_guard_watches_without_privileges_says_how_it_is_and_stops_cleanly(boot: Boot, disks: Disks) -> None:
    # The user of the broker is the one that there is here.
    ours = "[Service]\nUser=kjbod\nGroup=kjbod\n"
    agent = RealAgent(boot, disks(2), more_files={"/run/systemd-units/kjbod-guard.service.d/user.conf": ours})
    system = agent.system
    system.run("mkdir", "-p", "/etc/kafka")
    system.write("/etc/kafka/server.properties", system.read("/etc/kjbod/agent.properties"))
    system.run("systemctl", "start", "kjbod-guard")
    waits = "DEGRADED: no broker runs: nobody holds .lock in its log directories"

    def status() -> str:
        return system.show("kjbod-guard", "StatusText")["StatusText"]

    # Type=notify: the directories were read; neither a broker nor a controller is waited for.
    assert system.show("kjbod-guard", "ActiveState") == {"ActiveState": "active"}
    wait_until(lambda: status().startswith(waits), 30, f"no broker: {status()}")
    system.run("umount", "-l", "/mnt/d2")
    wait_until(lambda: "1 of 2 directories failed" in status(), 30, "the disk that is gone")
    system.run("systemctl", "stop", "kjbod-guard")
    shown = system.show("kjbod-guard", "ActiveState", "Result", "NRestarts")
    assert shown == {"ActiveState": "inactive", "Result": "success", "NRestarts": "0"}, system.read(LOG)
