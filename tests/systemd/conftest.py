"""A booted systemd with kjbod's units, for tests."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults.disks import RealDisk
from scripts.rig.kafka import RELEASE, broker_properties, controller_properties
from scripts.rig.processes import WaitTimeoutError, free_port, wait_until
from scripts.rig.systemd import BootedSystemd, require_systemd

UNITS = Path(__file__).parents[2] / "systemd"
SERVICES = ("kjbod-agent", "kjbod-controller", "kjbod-guard")
UNIT_D = "/run/systemd-units/kjbod-agent.service.d"
LOG = "/run/kjbod.log"
CLUSTER_ID = "kjbodInSystemd00000000"
DROP_INS = {path.stem: path for path in sorted(UNITS.glob("examples/*.service.d/*.conf"))}
JOURNAL = [
    Path("/lib/systemd/system") / name
    for name in ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
]

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
os.close(written)
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
Disks = Callable[[int], list[RealDisk]]


@pytest.fixture
def boot(
    machine_can: Callable[[Callable[[], None]], None],
    real_disk: Callable[..., RealDisk],  # a disk that a booted system uses cannot be taken down before it
) -> Iterator[Boot]:
    """Boots a systemd with our units, user and directories, and ``settings`` as the agent's configuration."""
    machine_can(require_systemd)
    with ExitStack() as stack:

        def start(
            settings: str = "",
            *,
            binds: dict[Path, str] | None = None,
            real: bool = False,
            with_drop_in: str = "",
            settings_of_unit: str = "",
            more_files: dict[str, str] | None = None,
            journal: bool = False,
        ) -> BootedSystemd:
            files = {**({} if real else {"/opt/kjbod/bin/kjbod": STAND_IN}), **(more_files or {})}
            links = {"/opt/kjbod": sys.prefix} if real else {}
            for service in (*SERVICES, "kjbod-agent@"):
                files[f"/run/systemd-units/{service}.service.d/test.conf"] = DROP_IN
            if with_drop_in:
                drop_in = DROP_INS[with_drop_in]
                files[f"/run/systemd-units/{drop_in.parent.name}/{drop_in.name}"] = drop_in.read_text()
            if settings_of_unit:
                files[f"{UNIT_D}/zz.conf"] = settings_of_unit
            for kind in ("sysusers", "tmpfiles"):
                files[f"/usr/lib/{kind}.d/kjbod.conf"] = (UNITS / f"{kind}.d" / "kjbod.conf").read_text()
            units = [*UNITS.glob("*.service"), *UNITS.glob("examples/*.mount"), *(JOURNAL if journal else ())]
            system = stack.enter_context(BootedSystemd(units, files=files, links=links, binds=binds))
            system.run("systemd-sysusers", "kjbod.conf")
            system.run("systemd-tmpfiles", "--create", "kjbod.conf")
            system.write("/etc/kjbod/agent.properties", settings)
            return system

        yield start


@pytest.fixture
def disks(real_disk: Callable[..., RealDisk]) -> Disks:
    return lambda count: [real_disk() for _ in range(count)]


class RealAgent:
    """The real agent and controller as services, on disks that are mounted at ``/mnt/d1`` and so on."""

    def __init__(
        self, boot: Boot, disks: list[RealDisk], *, settings: str = "", combined: bool = False, **options: Any
    ) -> None:
        paths = [f"/mnt/d{number}" for number in range(1, len(disks) + 1)]
        controller_port = free_port()
        port = free_port()
        agent = broker_properties(1, port, controller_port, [Path(path) for path in paths]) + settings
        if combined:
            listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}"
            agent += f"process.roles=broker,controller\nlisteners={listeners}\n"
            options["with_drop_in"] = "combined"
        self._services = ["kjbod-agent"] if combined else ["kjbod-controller", "kjbod-agent"]
        binds = {disk.mount_point: path for disk, path in zip(disks, paths, strict=True)}
        self.system = boot(agent, binds=binds, real=True, **options)
        controller = controller_properties(3000, controller_port, Path("/var/lib/kjbod-controller/metadata"))
        # An agent that died is a duplicate of itself until its session has timed out.
        self.system.write("/etc/kjbod/controller.properties", f"{controller}broker.session.timeout.ms=3000\n")
        own = ["/var/lib/kjbod", "/var/lib/kjbod/metadata", "/var/lib/kjbod-controller"]
        self.system.run("install", "-d", "-o", "kjbod", *own, *paths)
        alone = ["--standalone", "--release-version", RELEASE]  # real brokers may come
        formats = {"agent": alone} if combined else {"controller": alone, "agent": []}
        for service, more in formats.items():
            path = f"/etc/kjbod/{service}.properties"
            command = ["/opt/kjbod/bin/kjbod", "format", "-t", CLUSTER_ID, "-c", path, *more]
            self.system.run("runuser", "-u", "kjbod", "--", *command)

    def start(self) -> None:
        started = self.system.run("systemctl", "start", *self._services, check=False)
        assert started.returncode == 0, self.system.read(LOG)

    def show(self, *properties: str) -> dict[str, str]:
        return self.system.show("kjbod-agent", *properties)

    def events(self, event: str, **fields: object) -> list[dict[str, Any]]:
        return self.events_of("agent", event, **fields)

    def events_of(self, component: str, event: str, **fields: object) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.system.read(LOG).splitlines() if line.startswith("{")]
        own = [line for line in lines if line.get("component") == component]
        return [e for e in own if e["event"] == event and all(e.get(k) == v for k, v in fields.items())]

    def wait_for(self, event: str, count: int = 1, **fields: object) -> dict[str, Any]:
        wait_until(lambda: len(self.events(event, **fields)) >= count, 60, f"{event} {fields} in the log")
        return self.events(event, **fields)[count - 1]

    def wait_for_restart(self, count: int) -> None:
        def is_back() -> bool:
            shown = self.show("ActiveState", "NRestarts")
            return shown["ActiveState"] == "active" and int(shown["NRestarts"]) >= count

        try:
            wait_until(is_back, 60, f"restart {count} of the agent")
        except WaitTimeoutError as error:
            state = self.system.run("systemctl", "status", "kjbod-agent", check=False).stdout
            raise AssertionError(f"{error}\n{state}\n{self.system.read(LOG)}") from error
