"""The controller is killed before each system call of its write path, and loses nothing that it acknowledged.

Each call in the deep form, some, drawn, in the others. :mod:`tests.controller.killing` says what the life is that is
killed, and what must hold afterwards.
"""

import asyncio
import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.rig.kafka import KafkaKit, controller_properties
from scripts.rig.processes import Processes, free_port
from scripts.rig.tracing import require_tracing
from tests.controller.conftest import until
from tests.controller.test_snapshots import following
from tests.depth import Points, seeds, sweep

ROOT = Path(__file__).parents[2]


def kill(base: Path, at: Points | int) -> dict[str, Any]:
    spec = at if isinstance(at, int) else dataclasses.asdict(at)
    sources = os.pathsep.join(str(ROOT / folder) for folder in ("", "agent", "controller_stub"))
    done = subprocess.run(
        [sys.executable, "-m", "tests.controller.killing", str(base), json.dumps(spec)],
        capture_output=True,
        text=True,
        timeout=1_500,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": sources},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not found["bad"], f"{found['bad']}\n{done.stderr[-3_000:]}"
    return found


@pytest.mark.usefixtures("world")
@pytest.mark.timeout(1_600)
@pytest.mark.parametrize("points", sweep(ci=6, quick=2))
def test_a_kill_before_any_system_call_of_the_write_path_loses_nothing_acknowledged(
    tmp_path: Path, points: Points
) -> None:
    require_tracing()
    found = kill(tmp_path, points)
    assert found["killed_at"] == (len(found["calls"]) if points.seed is None else points.count)
    # It went through all that the write path has.
    seen = {call.rpartition(".")[0].split(" ")[0] + " " + call.rpartition(".")[2] for call in found["calls"]}
    assert seen >= {
        "ftruncate log",  # the torn tail
        "write log",
        "fdatasync log",
        "openat log",  # a new segment
        "unlink log",
        "write part",  # a snapshot
        "rename part",
        "unlink checkpoint",
    }
    assert {"rename quorum-state.tmp", "rename leader-epoch-checkpoint.tmp"} <= set(found["calls"])


@pytest.mark.usefixtures("kafka_kit")
@pytest.mark.parametrize("seed", seeds(deep=5))
async def test_what_a_kill_leaves_is_good_enough_for_a_real_controller(
    tmp_path: Path, kafka_kit: KafkaKit, processes: Processes, seed: int
) -> None:
    (tmp_path / "kills").mkdir()
    found = await asyncio.to_thread(kill, tmp_path / "kills", random.Random(seed).randrange(40, 80))
    assert found["killed_at"] == 1
    left, port = tmp_path / "kills" / "killed", free_port()
    config = tmp_path / "controller.properties"
    config.write_text(controller_properties(3000, port, left))
    controller = await asyncio.to_thread(kafka_kit.start_server, processes, config, name="controller")
    async with asyncio.timeout(60), following(port) as replayer:
        await until(lambda: replayer.image.topic_ids.keys() >= {f"before-{number}" for number in range(4)})
    assert await asyncio.to_thread(controller.stop) == 143
