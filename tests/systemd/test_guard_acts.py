"""The guard's unit with the rights to act, beside the unit of a real broker."""

import sys
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from kjbod_guard.checking import capabilities
from kjbod_guard.helper_rights import KEPT_CAPABILITIES, OOM_SCORE_ADJUST
from scripts.rig.kafka import SERVER, KafkaKit
from scripts.rig.processes import WaitTimeoutError, free_port, wait_until
from tests.pages.markdown import ROOT, shown
from tests.systemd.conftest import LOG, Boot, Disks, RealAgent

pytestmark = pytest.mark.usefixtures("as_root")

KEPT = sum(1 << number for number in KEPT_CAPABILITIES)
MAY_PROTECT = bool(capabilities(Path("/proc/self/status").read_text()) >> 24 & 1)
"""Whether the root that this systemd has may keep processes from the OOM killer (CAP_SYS_RESOURCE)."""
UNPROTECTED = "not protected from the OOM killer: Permission denied (CAP_SYS_RESOURCE)"
GUARD_D = "/run/systemd-units/kjbod-guard.service.d"
OWN = "/etc/kafka/kjbod-guard.properties"
USER = f"""[Service]
User=kjbod
Group=kjbod
ExecStart=
ExecStart=/opt/kjbod/bin/kjbod guard run -c /etc/kafka/server.properties --guard-config {OWN}
"""
BROKER = """[Service]
User=kjbod
ExecStart={command}
StandardOutput=append:/run/kafka.log
StandardError=append:/run/kafka.log
"""
AS_ROOT = """[Service]
User=root
Group=root
StateDirectory=
AmbientCapabilities=
CapabilityBoundingSet=~
SystemCallFilter=
"""
SANDBOX = "PrivateMounts=yes\nProtectSystem=full\nPrivateTmp=yes\nNoNewPrivileges=yes\nRestart=always\nRestartSec=1s\n"

SCRAPE = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:PORT/metrics').read().decode())"


class Guarded(RealAgent):
    """A real broker as a service, and a guard that acts for it: of three disks the second cannot be cut, since it is
    mounted twice. It observes first, and is told to act as the page says."""

    def __init__(self, boot: Boot, disks: list[RealDisk], kit: KafkaKit, sandbox: str, more: str) -> None:
        command = " ".join(kit.command(SERVER, "/etc/kafka/server.properties"))
        super().__init__(
            boot,
            disks,
            settings="metadata.log.dir=/var/lib/kjbod/metadata\n",
            more_files={
                f"{GUARD_D}/user.conf": USER,
                OWN: "kjbod.host=h\n",
                "/run/systemd-units/kafka.service": BROKER.format(command=command) + sandbox,
            },
        )
        for above in kit.libs.parents:
            self.system.run("chmod", "o+x", str(above))
        self.system.run("mkdir", "-p", "/etc/kafka", "/mnt/other")
        self.system.write("/etc/kafka/server.properties", self.system.read("/etc/kjbod/agent.properties"))
        self.system.run("mount", "--bind", "/mnt/d2", "/mnt/other")
        self.system.run("systemctl", "start", "kjbod-controller", "kafka")
        self.metrics = str(free_port())  # the network is the host's
        self.type("a-guard-beside-a-kafka-broker")
        self.wait_for_guard("guard.started", mode="observe")
        self.system.write(f"{GUARD_D}/zz.conf", more)
        self.type("a-guard-that-acts")
        begun = self.wait_for_guard("guard.started", mode="act")["timestamp"]
        # Of the guard that acts, not of the one before it.
        wait_until(
            lambda: [e for e in self.events_of("guard", "guard.broker", state="serving") if e["timestamp"] > begun],
            60,
            "the broker to be seen serving",
        )

    def type(self, section: str) -> None:
        """Type the commands of a section of the page; units are elsewhere here, and kjbod is not this host's."""
        elsewhere = {"/etc/systemd/system": "/run/systemd-units", "/opt/kjbod": "/run/no-kjbod", "LOG_DIR": "/mnt/d3"}
        elsewhere["9858"] = self.metrics
        elsewhere |= {"systemctl enable --now": "systemctl start", "systemctl disable --now": "systemctl stop"}
        elsewhere["userdel kjbod"] = "id kjbod"  # a controller runs as this user here
        for typed in shown("systemd/README.md", section):
            line = typed.text
            for name, here in elsewhere.items():
                line = line.replace(name, here)
            if not line.startswith("kjbod "):
                self.system.run("sh", "-c", f"cd {ROOT} && {line}")

    def wait_for_guard(self, event: str, **fields: object) -> dict[str, Any]:
        try:
            wait_until(lambda: self.events_of("guard", event, **fields), 60, f"{event} {fields}")
        except WaitTimeoutError as error:
            raise AssertionError(f"{error}\n{self.system.read(LOG)}\n{self.system.read('/run/kafka.log')}") from error
        return self.events_of("guard", event, **fields)[-1]

    def pid(self, service: str) -> str:
        return self.system.show(service, "MainPID")["MainPID"]

    def helper(self) -> str:
        return self.system.run("pgrep", "-f", "kjbod_guard/helper.py").stdout.split()[0]

    def status(self, pid: str) -> dict[str, str]:
        lines = self.system.read(f"/proc/{pid}/status").splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    def capabilities(self, pid: str) -> list[int]:
        status = self.status(pid)
        return [int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")]


@pytest.mark.parametrize(
    ("sandbox", "more"),
    [("", ""), (SANDBOX, ""), ("", AS_ROOT)],
    ids=["in-the-host-s-mounts", "in-mounts-of-its-own", "started-as-root"],
)
def test_a_guard_acts_with_the_rights_of_its_hand_alone(
    boot: Boot, disks: Disks, kafka_kit: KafkaKit, sandbox: str, more: str
) -> None:
    made = disks(3)
    guarded = Guarded(boot, made, kafka_kit, sandbox, more)
    system, daemon, helper = guarded.system, guarded.pid("kjbod-guard"), guarded.helper()
    uid, gid = (system.run("id", option, "kjbod").stdout.strip() for option in ("-u", "-g"))
    assert [guarded.status(daemon)[name].split() for name in ("Uid", "Gid")] == [[uid] * 4, [gid] * 4]
    assert guarded.status(helper)["Uid"].split() == ["0" if more else uid] * 4
    assert guarded.status(daemon)["NoNewPrivs"] == guarded.status(helper)["NoNewPrivs"] == "1"
    assert guarded.capabilities(daemon) == [0, 0, 0, 0]
    assert guarded.capabilities(helper) == [KEPT, KEPT, 0, 0]
    assert system.read(f"/proc/{helper}/oom_score_adj") == f"{OOM_SCORE_ADJUST if MAY_PROTECT else 0}\n"
    assert int(guarded.status(helper)["VmLck"].split()[0]) > 0, "its pages are locked"
    missing = [event["reason"] for event in guarded.events_of("guard", "guard.hand.missing")]
    assert missing == ([] if MAY_PROTECT else [UNPROTECTED])

    made[0].set(FaultMode.HANG)
    done = guarded.wait_for_guard("guard.done", means="cut", path="/mnt/d1")
    assert done["outcome"] in ("done", "pending"), done
    guarded.wait_for_guard("guard.kafka.view", path="/mnt/d1", view="offline")

    made[1].set(FaultMode.HANG)
    done = guarded.wait_for_guard("guard.done", means="mask", path="/mnt/d2")
    assert done["outcome"] == "done", done
    seen = f"/proc/{guarded.pid('kafka')}/root/mnt/d2/meta.properties"
    assert system.run("test", "-d", seen, check=False).returncode == 0, "the broker does not see the mask"

    system.run("systemctl", "stop", "kjbod-guard", timeout_s=15)
    assert system.show("kjbod-guard", "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    wait_until(lambda: not system.read(f"/proc/{helper}/status"), 10, "the end of the helper")
    for disk in made[:2]:
        disk.set(FaultMode.OK)


def test_a_unit_of_a_broker_passes_the_gate_beside_a_disk_that_hangs_and_nothing_of_kjbod_is_left(
    boot: Boot, disks: Disks, kafka_kit: KafkaKit
) -> None:
    made = disks(3)
    # Not PrivateTmp: a checkout may lie in /tmp, and the broker's unit could not run its kjbod.
    guarded = Guarded(boot, made, kafka_kit, SANDBOX.replace("PrivateTmp=yes\n", ""), "")
    system = guarded.system
    guarded.type("before-the-broker-starts")
    system.run("systemctl", "stop", "kafka", timeout_s=60)
    made[0].set(FaultMode.HANG)
    guarded.wait_for_guard("directory.verdict", path="/mnt/d1", state="failed")
    system.run("systemctl", "start", "kafka", timeout_s=60)
    told = system.read("/run/kafka.log")
    seen = system.run("systemctl", "show", "kafka", "--property=ExecStartPre,DropInPaths,NeedDaemonReload").stdout
    asked = f"{seen}\n{told}\n{system.read(LOG)}"
    assert "kjbod: /mnt/d1 is cut: the broker starts without it\n" in told, asked
    guarded.wait_for_guard("guard.kafka.view", path="/mnt/d1", view="offline")
    assert "kjbod_guard_kafka_view" in system.run(sys.executable, "-c", SCRAPE.replace("PORT", guarded.metrics)).stdout
    made[0].set(FaultMode.OK)
    left = (
        "sh",
        "-c",
        "ls -d /mnt/d3/.kjbod* /var/lib/kjbod /etc/kafka/kjbod* /run/systemd-units/*/kjbod* /etc/kjbod || :",
    )
    assert system.run(*left).stdout
    guarded.type("remove-it")
    assert not system.run(*left).stdout
    assert system.show("kafka", "ActiveState") == {"ActiveState": "active"}


DRIVER = """
import asyncio, sys
from kjbod.clock import SystemClock
from kjbod_guard import helper_broker, rights
from kjbod_guard.helper_link import Facts, HelperLink, start_helper
from kjbod_guard.actions import Done

async def main():
    pid, port = int(sys.argv[1]), int(sys.argv[2])
    facts = Facts(
        node=port, directories=("/mnt/d1", "/mnt/d2"), ports=(port,), broker=(pid, helper_broker.started_at(pid))
    )
    started = start_helper()
    rights.give_up(None)
    link = await HelperLink.open(started, facts, clock=SystemClock(), told=print)
    print(*link.missing)
    for verb in ("threads", "mask", "unmask", "reset", "destroy", "unreset", "cut", "kill"):
        arguments = {"mask": ["/mnt/d2"], "unmask": ["/mnt/d2"], "cut": ["/mnt/d2", 2**62]}.get(verb, [])
        told = await getattr(link, verb)(*arguments)
        print(verb, told.outcome if isinstance(told, Done) else "done", getattr(told, "reason", ""))
    link.close()

asyncio.run(main())
"""
HOLDER = """
import fcntl, socket
lock = open("/mnt/d1/.lock", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
listener = socket.create_server(("127.0.0.1", PORT))
mine = socket.create_connection(listener.getsockname())
taken = listener.accept()
while True:
    listener.accept()
"""


@pytest.mark.parametrize("sandbox", ["", SANDBOX], ids=["in-the-host-s-mounts", "in-mounts-of-its-own"])
def test_every_verb_of_the_hand_works_in_the_sandbox_of_the_unit(boot: Boot, disks: Disks, sandbox: str) -> None:
    made, port = disks(2), free_port()
    system = boot(
        binds={disk.mount_point: f"/mnt/d{number}" for number, disk in enumerate(made, 1)},
        real=True,
        with_drop_in="act",
        more_files={
            "/run/for-test/driver.py": DRIVER,
            "/run/for-test/holder.py": HOLDER.replace("PORT", str(port)),
            "/run/systemd-units/holder.service": f"[Service]\nExecStart={sys.executable} /run/for-test/holder.py\n"
            # Python may be of a clone in /tmp.
            + sandbox.replace("Restart=always\n", "").replace("PrivateTmp=yes\n", ""),
        },
    )
    system.run("systemctl", "start", "holder")
    wait_until(lambda: "POSIX" in system.read("/proc/locks"), 20, "a lock")
    pid = system.show("holder", "MainPID")["MainPID"]
    system.write(
        f"{GUARD_D}/driver.conf",
        "[Service]\nType=oneshot\nUser=kjbod\nGroup=kjbod\nRestart=no\nExecStart=\n"
        f"ExecStart={sys.executable} /run/for-test/driver.py {pid} {port}\n",
    )
    system.run("systemctl", "daemon-reload")
    system.run("systemctl", "start", "kjbod-guard", check=False)
    said = system.read("/run/kjbod.out").splitlines()
    verbs = ("threads", "mask", "unmask", "reset", "destroy", "unreset", "cut", "kill")
    assert said == ["" if MAY_PROTECT else UNPROTECTED, *(f"{verb} done " for verb in verbs)], (said, system.read(LOG))
    wait_until(lambda: system.show("holder", "Result") == {"Result": "signal"}, 20, "the end of the holder")
