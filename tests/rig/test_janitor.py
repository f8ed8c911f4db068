"""What is the machine's and not a namespace's goes too, when everything in the namespaces is killed."""

import os
import signal
import sys
from pathlib import Path

import pytest

from kjbod.faults.fusedisk import TAG_VARIABLE
from scripts.rig.processes import Processes, wait_until

pytestmark = pytest.mark.usefixtures("as_root")

FREEZE = """
import os, pathlib, subprocess, sys, time
from kjbod.faults.disks import RealDisk
disk = RealDisk(fstype=sys.argv[1], directory=pathlib.Path(sys.argv[2]))
open(f"/var/tmp/kjbod-{os.environ['KJBOD_DISK_TAG']}-x.swap", "w").close()
disk.freeze()
writer = subprocess.Popen(["sh", "-c", f"echo >{disk.log_dir}/x"])
while open(f"/proc/{writer.pid}/stat").read().rpartition(") ")[2][0] != "D":
    time.sleep(0.01)
print("stuck", file=sys.stderr, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_a_file_system_that_was_frozen_is_thawed_and_gone_when_all_who_knew_of_it_are_killed(
    processes: Processes, fstype: str, tmp_path: Path
) -> None:
    program = [sys.executable, "-c", FREEZE, fstype, str(tmp_path / "disk")]
    outside = processes.start([sys.executable, "-m", "scripts.rig.namespaces", *program], name="outside")
    outside.wait_for_text("stuck")
    tag = f"{os.environ[TAG_VARIABLE]}-run{outside.pid}"
    assert len(_left_of(tag)) == 2
    outside.signal(signal.SIGKILL)
    outside.wait()
    wait_until(lambda: not _left_of(tag), 30, "an end of swap file and disk")


def _left_of(tag: str) -> list[str]:
    found = [str(path) for path in Path("/var/tmp").glob(f"kjbod-{tag}-*")]
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            name = backing.read_text()
        except OSError:  # cleared while we looked
            continue
        found += [name] if f"/kjbod-{tag}-" in name else []
    return found
