"""A host that has no room: for another thread, another process, another open file."""

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from scripts.rig.cluster import format_node
from scripts.rig.processes import free_port, kjbod_command
from tests.agent.daemon_cluster import CLUSTER_ID

pytestmark = pytest.mark.usefixtures("as_root")

UID = 54_321
"""Nobody's; root is not limited in its processes."""
_RIGHTS = "+dac_override,+dac_read_search"  # to read this source tree, wherever it lies
AS_NOBODY = [
    *("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"),
    *(f"--inh-caps={_RIGHTS}", f"--ambient-caps={_RIGHTS}"),
]
TASKS = "raise TasksMax= of the unit, pids.max of the container, or ulimit -u"
FILES = "raise LimitNOFILE= of the unit, or ulimit -n"


def configured(base: Path, role: str) -> Path:
    config = base / f"{role}.properties"
    port = free_port()
    lines = {
        "agent": f"process.roles=broker\nnode.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={base}/d1,{base}/d2",
        "controller": f"process.roles=controller\nnode.id=3000\nlisteners=CONTROLLER://127.0.0.1:{port}\n"
        f"log.dirs={base}/metadata",
    }[role]
    config.write_text(
        f"{lines}\ncontroller.listener.names=CONTROLLER\ncontroller.quorum.bootstrap.servers=127.0.0.1:{free_port()}\n"
        f"kjbod.state.dir={base}/state\ninitial.broker.registration.timeout.ms=500\n"
    )
    format_node(config, CLUSTER_ID)
    for path in base.iterdir():
        if path.is_dir():
            subprocess.run(["chown", "-R", f"{UID}", str(path)], check=True)
    return config


@pytest.mark.parametrize("role", ["agent", "controller"])
@pytest.mark.parametrize(("limit", "remedy"), [("--nproc=1", TASKS), ("--nproc=6", TASKS), ("--nofile=12", FILES)])
def test_a_start_without_room_is_one_line_that_says_what_to_raise(
    tmp_path: Path, role: str, limit: str, remedy: str
) -> None:
    assert shutil.which("setpriv") and shutil.which("prlimit")
    tmp_path.chmod(0o755)
    config = configured(tmp_path, role)
    command = [*AS_NOBODY, "prlimit", limit, kjbod_command(), role, "-c", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("kjbod: there is room for ") and line.endswith(remedy)


RESPAWN = """
    import asyncio, os, resource, signal, sys
    from kjbod.clock import SystemClock
    from kjbod_host.storage.api import StorageOptions, WorkerUnavailable
    from kjbod_host.storage.posix import PosixStorageAgent

    async def until(condition):
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.005)

    async def main():
        storage = PosixStorageAgent(StorageOptions(clock=SystemClock()))
        await storage.start()
        agents = [storage.directory(path) for path in sys.argv[1:]]
        for agent in agents:
            await agent.load(timeout_ms=30_000)
            await agent.lock(timeout_ms=30_000)
        await until(lambda: len(storage.process_ids()) == 4)
        zygote, keeper, worker, other = storage.process_ids()
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.prlimit(zygote, resource.RLIMIT_NPROC, (1, hard))
        os.kill(worker, signal.SIGKILL)
        await until(lambda: agents[0].worker_pid == 0)
        try:
            await agents[0].probe(full=False, timeout_ms=30_000)
            raise AssertionError("there was room for a worker")
        except WorkerUnavailable:
            pass
        os.kill(keeper, signal.SIGKILL)
        await agents[1].probe(full=False, timeout_ms=30_000)
        assert storage.process_ids()[0] == zygote and other in storage.process_ids()
        resource.prlimit(zygote, resource.RLIMIT_NPROC, (hard, hard))
        await until(lambda: storage.process_ids()[1] not in (0, keeper))
        for agent in agents:
            await agent.probe(full=False, timeout_ms=30_000)
        assert storage.process_ids()[0] == zygote
        await storage.close()

    asyncio.run(main())
"""


def test_no_room_for_one_more_process_ends_neither_the_other_workers_nor_their_locks(tmp_path: Path) -> None:
    paths = [tmp_path / "d1", tmp_path / "d2"]
    tmp_path.chmod(0o755)
    for path in paths:
        path.mkdir()
        shutil.chown(path, UID)
    command = [*AS_NOBODY, sys.executable, "-c", textwrap.dedent(RESPAWN), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
