"""The units, in a real systemd: with a stand-in for the programs where the unit is meant, and with the real ones."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kjbod.testing.disks import RealDisk
from kjbod.testing.errors import RigError
from kjbod.testing.kafka import broker_properties, controller_properties
from kjbod.testing.processes import free_port, wait_until
from kjbod.testing.systemd import BootedSystemd, require_systemd

pytestmark = pytest.mark.root

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = ("kjbod-agent", "kjbod-controller")
EXPOSURE_MAX = 2.0  # of 10; "OK" in the words of systemd-analyze security

STAND_IN = (
    f"#!{sys.executable}\n"
    + r'''
"""Behaves as its configuration says; as the agent, it has a worker that dies with it."""
import ctypes, os, signal, socket, sys, time

settings = dict(line.split("=", 1) for line in open(sys.argv[3]).read().split())
if "exit" in settings:
    sys.exit(int(settings["exit"]))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
done, written = os.pipe()
worker = os.fork()
if worker == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "write" in settings:
        with open(settings["write"], "w") as file:
            file.write("x")
    os.write(written, b"x")
    signal.pause()
if "stuck" in settings:
    while open(f"/proc/{worker}/wchan").read() != settings["stuck"]:
        time.sleep(0.01)
else:
    os.read(done, 1)
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
    manager.sendto(b"READY=1\nSTATUS=standing in", os.environ["NOTIFY_SOCKET"])
print("uid", os.getuid(), "worker", worker, flush=True)
while True:
    signal.pause()
'''
)

DROP_IN = """[Service]
# The Python that runs the tests may live in a home directory or below /tmp, which the units hide.
ProtectHome=no
PrivateTmp=no
RestartSec=100ms
StandardOutput=append:/run/kjbod.out
StandardError=append:/run/kjbod.log
"""

Boot = Callable[..., BootedSystemd]


@pytest.fixture
def boot(machine_can: Callable[[Callable[[], None]], None]) -> Iterator[Boot]:
    """Boots a systemd with our units, user and directories, and ``settings`` as the agent's configuration."""
    machine_can(require_systemd)
    with ExitStack() as stack:

        def start(settings: str = "", *, binds: dict[Path, str] | None = None, real: bool = False) -> BootedSystemd:
            files = {} if real else {"/opt/kjbod/bin/kjbod": STAND_IN}
            links = {"/opt/kjbod": sys.prefix} if real else {}
            for service in SERVICES:
                files[f"/run/systemd-units/{service}.service.d/test.conf"] = DROP_IN
            for kind in ("sysusers", "tmpfiles"):
                files[f"/usr/lib/{kind}.d/kjbod.conf"] = (UNITS / f"{kind}.d" / "kjbod.conf").read_text()
            units = [UNITS / f"{service}.service" for service in SERVICES]
            system = stack.enter_context(BootedSystemd(units, files=files, links=links, binds=binds))
            system.run("systemd-sysusers", "kjbod.conf")
            system.run("systemd-tmpfiles", "--create", "kjbod.conf")
            system.write("/etc/kjbod/agent.properties", settings)
            return system

        yield start


def test_systemd_finds_nothing_to_say_about_the_units(boot: Boot) -> None:
    system = boot()
    for service in SERVICES:
        command = ("systemd-analyze", "verify", "--man=no", f"/run/systemd-units/{service}.service")
        result = system.run(*command, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", ""), service


@pytest.mark.parametrize("service", SERVICES)
def test_the_units_keep_the_services_in_a_sandbox(boot: Boot, service: str) -> None:
    system = boot()
    verdict = system.run("systemd-analyze", "security", "--offline=true", str(f"/run/systemd-units/{service}.service"))
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", verdict.stdout)
    assert found is not None and float(found.group(1)) <= EXPOSURE_MAX, verdict.stdout


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


def test_stopping_with_a_worker_stuck_in_a_disk_is_quick_and_a_success(boot: Boot) -> None:
    with RealDisk() as disk:
        disk.mount_point.chmod(0o777)
        system = boot("write=/mnt/d1/file stuck=percpu_rwsem_wait", binds={disk.mount_point: "/mnt/d1"})
        disk.freeze()
        system.run("systemctl", "start", "kjbod-agent")
        # Far less than TimeoutStopSec= of the unit, which any other KillMode= would wait out.
        system.run("systemctl", "stop", "kjbod-agent", timeout_s=20)
        shown = system.show("kjbod-agent", "ActiveState", "Result")
        assert shown == {"ActiveState": "inactive", "Result": "success"}
        disk.thaw()


CLUSTER_ID = "kjbodInSystemd00000000"


def test_the_real_controller_and_agent_run_as_services_and_stop_cleanly(boot: Boot) -> None:
    with RealDisk() as first, RealDisk() as second:
        disks = {first.mount_point: "/mnt/d1", second.mount_point: "/mnt/d2"}
        controller_port = free_port()
        agent = broker_properties(1, free_port(), controller_port, [Path(path) for path in disks.values()])
        system = boot(agent, binds=disks, real=True)
        controller = controller_properties(3000, controller_port, Path("/var/lib/kjbod-controller/metadata"))
        system.write("/etc/kjbod/controller.properties", controller)
        system.run("install", "-d", "-o", "kjbod", "/var/lib/kjbod-controller", *disks.values())
        for service, options in (("controller", ["--standalone"]), ("agent", [])):
            path = f"/etc/kjbod/{service}.properties"
            command = ["/opt/kjbod/bin/kjbod", "format", "-t", CLUSTER_ID, "-c", path, *options]
            system.run("runuser", "-u", "kjbod", "--", *command)

        started = system.run("systemctl", "start", "kjbod-controller", "kjbod-agent", check=False)
        assert started.returncode == 0, system.read("/run/kjbod.log")

        wait_until(lambda: '"agent.unfenced"' in system.read("/run/kjbod.log"), 60, "the agent to be unfenced")
        system.run("systemctl", "stop", "kjbod-agent", "kjbod-controller")
        for service in SERVICES:
            shown = system.show(service, "ActiveState", "Result", "NRestarts")
            expected = {"ActiveState": "inactive", "Result": "success", "NRestarts": "0"}
            assert shown == expected, system.read("/run/kjbod.log")
