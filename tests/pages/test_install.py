"""The page on systemd, typed as root into a machine that has a systemd and nothing of kjbod's."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import RealDisk
from scripts.rig.cluster import Cluster
from scripts.rig.processes import Processes
from scripts.rig.systemd import BootedSystemd, require_systemd
from tests.pages.markdown import ROOT, shown
from tests.pages.typed import with_names

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
CONFIG = "/etc/kjbod/agent.properties"
DISKS = ("/mnt/d1", "/mnt/d2", "/mnt/d3")
FROM_THE_NETWORK = ("apt install", "python3 -m venv", "/opt/kjbod/bin/pip")
"""Lines that make /opt/kjbod, which is the environment of the tests here."""
DROP_IN = """[Service]
# The Python that runs the tests may live in a home directory or below /tmp, which the unit hides.
ProtectHome=no
PrivateTmp=no
"""
JOURNAL = [
    Path("/lib/systemd/system") / name
    for name in ("systemd-journald.service", "systemd-journald.socket", "systemd-journald-dev-log.socket")
]


@pytest.mark.usefixtures("as_root")
def test_the_page_installs_formats_and_starts_an_agent(
    tmp_path: Path,
    processes: Processes,
    real_disk: Callable[..., RealDisk],
    machine_can: Callable[[Callable[[], None]], None],
) -> None:
    machine_can(require_systemd)
    cluster = Cluster(tmp_path, processes, cluster_id=CLUSTER_ID)
    cluster.format_controller()
    cluster.start_controller()
    config = cluster.configure_broker(1, [Path(path) for path in DISKS])
    empty = tmp_path / "etc-systemd-system"
    empty.mkdir()
    binds = {empty: "/etc/systemd/system", **{real_disk().mount_point: path for path in DISKS}}
    files = {
        "/run/systemd-units/kjbod-agent.service.d/test.conf": DROP_IN,
        "/etc/systemd/journald.conf.d/test.conf": "[Journal]\nStorage=volatile\nReadKMsg=no\n",
    }
    said = {}
    with BootedSystemd(
        JOURNAL, files=files, links={"/opt/kjbod": sys.prefix}, binds=binds, more_units=["/etc/systemd/system"]
    ) as system:
        system.run("systemctl", "start", "systemd-journald")
        for command in shown("systemd/README.md", "install", "configure-format-start"):
            line = command.text.partition("  #")[0].strip()
            if line.startswith(FROM_THE_NETWORK):
                continue
            if line.startswith("chown"):  # the page says before: put the broker's file there
                system.write(CONFIG, config.read_text())
            done = system.run("sh", "-c", f"cd {ROOT} && {with_names(line, {'CLUSTER_ID': CLUSTER_ID})}", check=False)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{system.log()}"
            said[line.split()[0]] = done.stdout
    assert 'Status: "OK: running, unfenced, 3 directories online"' in said["systemctl"]
    assert '"event": "agent.unfenced"' in said["journalctl"] or '"event":"agent.unfenced"' in said["journalctl"]
    assert said["/opt/kjbod/bin/kjbod"].startswith("OK: running, unfenced")
