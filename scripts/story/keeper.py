"""``--keep``: the cluster goes on after the story, in the background, until ``--stop``.

A keeper process tells the story and then waits. It leads a session of its own, so that closing the terminal does not
end it; the process that the user started only relays its output. Everything lies in the machine's own namespaces, for
all to see. ``OUT/kept.json`` says where; it goes with the cluster.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kjbod.faults.disks import DiskControl, FaultMode
from scripts.rig.processes import WaitTimeoutError, kjbod_command, wait_until
from scripts.story.layout import BROKERS
from scripts.story.narrate import Narrator, StoryError

if TYPE_CHECKING:
    from scripts.story.steps import Story

_KEEPER_VARIABLE = "KJBOD_DEMO_KEEPER"
_KEPT = "kept.json"
_DEMO = Path(__file__).absolute().parents[1] / "demo"
_STOP_TIMEOUT_S = 60


def is_keeper() -> bool:
    """Whether this process is the one in the background."""
    return _KEEPER_VARIABLE in os.environ


def _state(out: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((out / _KEPT).read_text())
    except FileNotFoundError:
        return None
    alive = Path(f"/proc/{state['pid']}/cmdline")
    with contextlib.suppress(OSError):
        if b"scripts.story" in alive.read_bytes():
            return state
    (out / _KEPT).unlink()
    return None


def refuse_second(out: Path) -> None:
    """A kept cluster per output directory."""
    if not is_keeper() and _state(out) is not None:
        raise StoryError(f"a cluster is still kept by {out / _KEPT}: stop it with {_DEMO} --stop --out {out}")


def launch(out: Path) -> int:
    """Start the keeper and relay what it tells until the story ends; its verdict as exit code."""
    out.mkdir(parents=True, exist_ok=True)
    keeper = subprocess.Popen(
        [sys.executable, "-m", "scripts.story", *sys.argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, _KEEPER_VARIABLE: "1"},
        start_new_session=True,
    )
    assert keeper.stdout is not None
    try:
        for line in keeper.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        keeper.terminate()
        return keeper.wait(_STOP_TIMEOUT_S)
    if (out / _KEPT).exists():
        return 0
    return keeper.wait(_STOP_TIMEOUT_S)


def keep(out: Path, story: "Story", tell: Narrator) -> None:
    """Say how to use the cluster, let the terminal go, and wait for :func:`stop`."""
    cluster = story.cluster
    state = {
        "pid": os.getpid(),
        "disks": {
            f"{broker}/{number}": {"log_dir": str(disk.log_dir), "control": str(getattr(disk, "control", ""))}
            for (broker, number), disk in cluster.disks.items()
        },
    }
    (out / _KEPT).write_text(json.dumps(state, indent=1))
    tell.step("The cluster goes on")
    running = [broker for broker in BROKERS if cluster.agents[broker].running]
    layout = cluster.layout
    # The last one: the story broke disks of the first two.
    broker = running[-1]
    tell.show(f"controller   127.0.0.1:{cluster.port}, with agents of brokers {', '.join(map(str, running))}")
    tell.show(f"disks        {layout.work}/disks")
    tell.show(f"logs         {layout.logs}")
    tell.show(f"look at it:  {kjbod_command()} status -c {layout.config(f'broker{broker}')}")
    tell.show(f"             {kjbod_command()} log-dirs -c {layout.config(f'broker{broker}')}")
    tell.show(f"             tail -f {layout.log(f'broker{broker}')}")
    tell.show(f"             findmnt -l | grep {layout.work}")
    tell.show(f"break it:    {_DEMO} --break {broker}/1 --out {out}")
    tell.show(f"stop it:     {_DEMO} --stop --out {out}")
    _let_the_terminal_go(cluster.layout.log("keeper"))
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()
    (out / _KEPT).unlink(missing_ok=True)


def _let_the_terminal_go(log: Path) -> None:
    sys.stdout.flush()
    with open(log, "ab") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)


def break_disk(out: Path, which: str) -> int:
    """Kill one disk of the kept cluster."""
    state = _state(out)
    if state is None:
        raise StoryError(f"no cluster is kept by {out / _KEPT}: start one with {_DEMO} --keep")
    disk = state["disks"].get(which)
    if disk is None:
        raise StoryError(f"no disk {which!r}: choose one of {', '.join(state['disks'])}")
    if disk["control"]:
        DiskControl(Path(disk["control"])).set(FaultMode.EIO)
    else:
        path = Path(disk["log_dir"])
        if not path.exists():
            raise StoryError(f"disk {which} is broken already")
        path.rename(path.with_name(path.name + ".gone"))
    print(f"disk {which} ({disk['log_dir']}) is broken")
    return 0


def stop(out: Path) -> int:
    """End the keeper, and with it all that it keeps."""
    state = _state(out)
    if state is None:
        print(f"no cluster is kept by {out / _KEPT}: nothing to stop")
        return 0
    os.kill(state["pid"], signal.SIGTERM)
    try:
        wait_until(lambda: not Path(f"/proc/{state['pid']}").exists(), _STOP_TIMEOUT_S, "the keeper to end")
    except WaitTimeoutError as error:
        raise StoryError(f"{error}; see {out / 'logs' / 'keeper.log'}") from error
    print(f"stopped at {time.strftime('%H:%M:%S')}; report and logs stay in {out}")
    return 0
