"""``scripts/bench/false-positives`` in a few seconds: healthy disks under some conditions, drawn, in the deep form for
minutes under all of them; it leaves nothing behind."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kjbod.faults.fusedisk import TAG_VARIABLE
from scripts.bench.false_positives_conditions import CONDITIONS, find_libfaketime
from scripts.rig import namespaces
from scripts.rig.processes import wait_until
from tests.depth import at, sample, seeded

BENCH = (sys.executable, "-m", "scripts.bench.false_positives")
ROOT = Path(__file__).parents[2]


def _environment(temporary: Path) -> dict[str, str]:
    """Without our namespaces, so that it makes its own and can be killed with all that is in them."""
    ours = {name: value for name, value in os.environ.items() if name != namespaces.INSIDE_VARIABLE}
    return {**ours, "TMPDIR": str(temporary)}


def _swap_and_groups(tag: str) -> list[str]:
    files = [str(path) for path in Path("/var/tmp").glob(f"kjbod-{tag}-*")]
    swaps = [line for line in Path("/proc/swaps").read_text().splitlines() if f"/kjbod-{tag}-" in line]
    cgroups = Path("/sys/fs/cgroup")
    return [*files, *swaps, *(str(path) for at in ("", "*/") for path in cgroups.glob(f"{at}kjbod-{tag}-*"))]


@pytest.mark.every_run
@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("conditions", [sample(list(CONDITIONS), ci=4, quick=1)], ids=[seeded("drawn")])
def test_a_few_seconds_of_bad_conditions_fail_no_directory(
    tmp_path: Path, machine_can: Callable[[Callable[[], object]], None], conditions: list[str]
) -> None:
    machine_can(find_libfaketime)
    _fails_nothing(tmp_path, conditions, at(quick="4", ci="4", deep="300"))


@pytest.mark.usefixtures("as_root", "kafka_kit")
@pytest.mark.parametrize("conditions", [sample(list(CONDITIONS), ci=1, salt="guard")], ids=[seeded("drawn")])
def test_a_few_seconds_of_bad_conditions_have_no_guard_do_anything(
    tmp_path: Path, machine_can: Callable[[Callable[[], object]], None], conditions: list[str]
) -> None:
    machine_can(find_libfaketime)
    _fails_nothing(tmp_path, conditions, at(quick="4", ci="4", deep="300"), "--guard")


def _fails_nothing(tmp_path: Path, conditions: list[str], seconds: str, *more: str) -> None:
    command = [*BENCH, "--seconds", seconds, "--conditions", ",".join(conditions), "--out", str(tmp_path), *more]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=_environment(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
    with open(tmp_path / "false-positives.csv", newline="") as file:
        rows = {row["condition"]: row for row in csv.DictReader(file)}
    assert rows.keys() == {*conditions}
    for name, row in rows.items():
        assert (row["wrong_failed"], row["offline_sent"], row["deeds"], row["trouble"]) == ("0", "0", "0", ""), row
        assert int(row["probes"]) > 0, f"{name} was not probed"
    for name, verdict in (("frozen", "held"), ("slow-1s", "slow"), ("slow-1500ms", "slow")):
        assert name not in rows or int(rows[name][verdict]) > 0, f"{name} did not reach the disks"
    assert "0 wrong failed, 0 reported offline, 0 deeds" in result.stdout


@contextmanager
def _at_work(out: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The benchmark with swap, control groups and file systems that are frozen; and its tag."""
    command = [*BENCH, "--minutes", "5", "--conditions", "throttled,frozen,swap", "--out", str(out)]
    with open(out / "stderr", "wb") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stderr=errors, start_new_session=True, env=_environment(out))
    tag = f"{os.environ[TAG_VARIABLE]}-run{process.pid}"
    log = out / "logs-1" / "agent-frozen.log"

    def frozen() -> bool:
        assert process.poll() is None, (out / "stderr").read_text()
        return log.exists() and '"state":"held"' in log.read_text().replace(" ", "")

    try:
        wait_until(frozen, 90, "a held directory")
        assert len(_swap_and_groups(tag)) >= 3
        assert namespaces.loop_devices(tag)
        yield process, tag
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_its_end_at_any_moment_leaves_no_swap_no_control_group_and_no_frozen_disk(
    tmp_path: Path, number: signal.Signals
) -> None:
    with _at_work(tmp_path) as (process, tag):
        if number is signal.SIGKILL:
            process.kill()
            assert process.wait(40) == -signal.SIGKILL
        else:
            os.killpg(process.pid, number)
            assert process.wait(40) == 130, (tmp_path / "stderr").read_text()
        wait_until(lambda: not _swap_and_groups(tag) + namespaces.loop_devices(tag), 30, "an end of all that it made")


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--conditions", "nonsense"], "no such condition: nonsense"),
        (["--seconds", "0"], "the time must be more than 0"),
        (["--seconds", "5", "--minutes", "1"], "not allowed with"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    result = subprocess.run([*BENCH, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
