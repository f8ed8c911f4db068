"""The helper that asks smartctl with rights that nothing else has: its socket and its service in a real systemd."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.rig.processes import wait_until
from scripts.rig.systemd import BootedSystemd, require_systemd
from tests.pages.markdown import ROOT, shown
from tests.systemd.conftest import UNITS, Boot

pytestmark = pytest.mark.usefixtures("as_root")

EXPOSURE = 1.3
"""Of 10, as README.md states it."""
UNIT_D = "/run/systemd-units/kjbod-smart@.service.d"
DROP_IN = """[Service]
# The Python that runs the tests may live in a home directory or below /tmp, which the unit hides.
ProtectHome=no
PrivateTmp=no
RuntimeMaxSec=2s
"""
SMARTCTL = r"""#!/bin/sh
capabilities=$(sed -n 's/^CapEff:\t//p' /proc/self/status)
mkdir /var/lib/written 2>/dev/null && written=true || written=false
network=$(grep -c : /proc/net/dev)
echo "{\"smartctl\": {\"exit_status\": 0}, \"serial_number\": \"$*\", \"capabilities\": \"$capabilities\","
echo "\"written\": $written, \"interfaces\": $network}"
"""
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect("/run/kjbod-smart.sock")
    asking.sendall(sys.argv[1].encode() + b"\\n")
    while said := asking.recv(65536):
        sys.stdout.buffer.write(said)
"""
CAPABILITIES = 1 << 17 | 1 << 21
"""CAP_SYS_RAWIO and CAP_SYS_ADMIN."""


def start(boot: Boot, smartctl: str) -> BootedSystemd:
    """A host with a disk ``sda``."""
    system: BootedSystemd = boot(
        real=True,
        more_files={
            f"{UNIT_D}/test.conf": DROP_IN,
            "/usr/local/sbin/smartctl": smartctl,
            "/run/ask.py": ASK,
        },
    )
    system.run("chmod", "755", "/usr/local/sbin/smartctl")
    system.run("mkdir", "-p", "/run/block/sda")
    system.run("mount", "--bind", "/run/block", "/sys/block")
    elsewhere = {"/etc/systemd/system": "/run/systemd-units", "systemctl enable --now": "systemctl start"}
    for typed in shown("systemd/README.md", "the-health-that-disks-tell-of-themselves"):
        line = typed.text
        for written, here in elsewhere.items():
            line = line.replace(written, here)
        system.run("sh", "-c", f"cd {ROOT} && {line}")
    return system


def ask(system: BootedSystemd, name: str, user: str = "kjbod") -> subprocess.CompletedProcess[str]:
    command = ["runuser", "-u", user, "--", "/opt/kjbod/bin/python", "/run/ask.py", name]
    return system.run(*command, check=False)


def running(system: BootedSystemd) -> str:
    return system.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "kjbod-smart@*.service").stdout


def test_the_helper_asks_smartctl_with_two_capabilities_and_nothing_else(boot: Boot) -> None:
    system = start(boot, SMARTCTL)
    facts, _, document = ask(system, "sda").stdout.partition("\n")
    assert json.loads(facts) == {"smartctl": True}, system.log()
    told = json.loads(document)
    assert told["serial_number"].endswith(" /dev/sda")
    assert int(told["capabilities"], 16) == CAPABILITIES
    assert (told["written"], told["interfaces"]) == (False, 1), "it writes nothing, and has lo alone"
    wait_until(lambda: running(system) == "", 20, "the end of the service")


def test_the_helper_does_nothing_for_others_and_for_what_is_no_disk(boot: Boot) -> None:
    system = start(boot, SMARTCTL)
    refused = ask(system, "sda", user="nobody")
    assert refused.returncode == 1 and "PermissionError" in refused.stderr
    for name in ("sdb", "loop0", "../sda", "sda -s off"):
        assert ask(system, name).stdout == "", name


def test_one_that_hangs_is_ended_and_leaves_nothing_failed_behind(boot: Boot) -> None:
    system = start(boot, "#!/bin/sh\nkill -STOP $$\n")
    assert json.loads(ask(system, "sda").stdout) == {"smartctl": True}
    wait_until(lambda: running(system) == "", 30, "the end of the service")
    assert system.run("systemctl", "is-active", "kjbod-smart.socket").stdout == "active\n"


def test_systemd_finds_nothing_to_say_about_the_helper(boot: Boot) -> None:
    system = start(boot, SMARTCTL)
    for name in ("kjbod-smart.socket", "kjbod-smart@.service"):
        command = ("systemd-analyze", "verify", "--man=no", "--recursive-errors=yes", f"/run/systemd-units/{name}")
        result = system.run(*command, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", ""), name


def test_the_helper_is_in_a_sandbox_as_tight_as_it_is_said_to_be(
    machine_can: Callable[[Callable[[], None]], None],
) -> None:
    machine_can(require_systemd)
    unit: Path = UNITS / "kjbod-smart@.service"
    command = ["systemd-analyze", "security", "--offline=true", str(unit)]
    verdict = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", verdict.splitlines()[-1])
    assert found is not None and float(found.group(1)) <= EXPOSURE, verdict.splitlines()[-1]
    assert f"| {EXPOSURE} |" in (UNITS / "README.md").read_text()
