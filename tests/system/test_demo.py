"""The demonstration is a promise of the README: it ends with exit 0, leaves the report and nothing else."""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.rig.namespaces import INSIDE_VARIABLE
from scripts.rig.processes import wait_until
from scripts.story.disks import KillableDisk
from tests.depth import only_deep

# One at a time: each sees what all demonstrations of this machine leave.
pytestmark = [
    pytest.mark.usefixtures("as_root", "with_spark"),
    pytest.mark.xdist_group("demo"),
    pytest.mark.timeout(600),
]
_TIMEOUT_S = 540


def _environment() -> dict[str, str]:
    # It is to make namespaces of its own, as it does for a user.
    return {name: value for name, value in os.environ.items() if name != INSIDE_VARIABLE}


def _command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "scripts.story", "--out", str(out), *options]


def _run(out: Path, *options: str) -> str:
    result = subprocess.run(
        _command(out, *options), capture_output=True, text=True, timeout=_TIMEOUT_S, env=_environment(), check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


def _left() -> list[str]:
    """Work directories of demonstrations, and their mounts and loop devices, that are there now."""
    left = {str(path) for path in Path(tempfile.gettempdir()).glob("kjbod-demo-*")}
    left |= {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # it was detached while we looked
            left.add(backing.read_text().strip())
    return sorted(name for name in left if "kjbod-demo-" in name)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No work directory of a demonstration, no mount and no loop device that was not there before."""
    before = _left()
    yield
    assert set(_left()) <= set(before)


def _milliseconds(story: str, what: str) -> float:
    """When, after the fault, the first line with ``what`` says that it happened."""
    found = re.search(rf"\+ *(\d+) ms .*{what}", story)
    assert found, f"no line {what!r} in:\n{story}"
    return float(found.group(1))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A demonstration under a real controller whose cluster goes on; ``story`` in its directory is what it told."""
    out = tmp_path_factory.mktemp("kept")
    (out / "before").write_text(str(_left()))
    (out / "story").write_text(_run(out, "--keep", "--controller", "kafka"))
    yield out
    _run(out, "--stop")  # also where a test has done so


VARIANTS = [
    pytest.param("stub", ["--controller", "stub"], "EIO", id="stub"),
    pytest.param("kafka", ["--controller", "kafka"], "EIO", marks=pytest.mark.kafka, id="kafka"),
    pytest.param("plain", ["--plain-directories"], "ENOENT", id="plain-directories"),
]


@pytest.mark.parametrize(("variant", "options", "errno"), VARIANTS)
@only_deep("a demonstration for each kind of cluster")
@pytest.mark.usefixtures("nothing_left")
def test_demo_ends_with_nothing_left_but_its_report(
    tmp_path: Path, variant: str, options: list[str], errno: str
) -> None:
    assert_whole(_run(tmp_path, *options), tmp_path, variant, errno)


@pytest.mark.every_run
@pytest.mark.usefixtures("kafka_kit")
def test_demo_tells_the_whole_story(kept: Path) -> None:
    assert_whole((kept / "story").read_text(), kept, "kafka", "EIO")


def assert_whole(story: str, out: Path, variant: str, errno: str) -> None:
    """What the page of the README shows, in what was told and left."""
    assert errno in story
    assert ("No real disks" in story) == (variant == "plain")
    verdict, sent = _milliseconds(story, "verdict: failed"), _milliseconds(story, "OfflineLogDirs sent")
    assert verdict <= sent <= _milliseconds(story, "acknowledged")
    assert "exit code 74" in story
    page = (out / "fleet" / "index.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert all(f"broker-{broker}" in page for broker in (1, 2, 3))
    assert len(list((out / "fleet" / "hosts").glob("*.html"))) == 4, "a page for each, and the list"


@pytest.mark.usefixtures("nothing_left")
def test_demo_that_is_interrupted_takes_everything_away(tmp_path: Path) -> None:
    with subprocess.Popen(
        _command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
    ) as process:
        wait_until(lambda: (tmp_path / "logs" / "broker1.log").exists(), 60, "the first agent to start")
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output.decode()
    assert b"Traceback" not in output


_STAGE = """
import subprocess, sys
from pathlib import Path
from scripts.rig.processes import wait_until
from scripts.story.__main__ import _stage
from scripts.terminal import interrupt

# In a session of its own, and its parent has ended: it writes into the work directory for as long as it lives.
WRITER = "echo $$ >$2; while mkdir -p $1/broker2-state; do echo $$ >$1/broker2-state/.lock; done"
out = Path(sys.argv[1])
try:
    with _stage(out, real=False) as (layout, _, processes):
        setsid = ["setsid", "--fork", "sh", "-c", WRITER, "writer"]
        processes.start([*setsid, str(layout.work), str(out / "of an agent")], name="agent")
        # As when the interruption comes before ``processes`` has it.
        lost = [*setsid[2:], str(layout.work), str(out / "just being started")]
        subprocess.Popen(lost, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("of an agent", "just being started"):
            wait_until(lambda: (out / name).exists() and (out / name).read_text(), 10, name)
        interrupt(0, None)
except KeyboardInterrupt:
    print(layout.work)
"""


@pytest.mark.usefixtures("nothing_left")
def test_no_process_of_an_interrupted_demo_outlives_its_work_directory(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _STAGE, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert not Path(told.stdout.strip()).exists()
    for name in ("of an agent", "just being started"):
        assert not Path(f"/proc/{int((tmp_path / name).read_text())}").exists(), name


@pytest.mark.usefixtures("kafka_kit")
def test_demo_keeps_the_cluster_until_it_is_told_to_stop(kept: Path) -> None:
    assert "--stop" in (kept / "story").read_text()
    again = subprocess.run(
        _command(kept, "--keep"), capture_output=True, text=True, timeout=60, env=_environment(), check=False
    )
    assert again.returncode == 1
    assert "still kept" in again.stderr
    assert "broken" in _run(kept, "--break", "3/1")
    log = kept / "logs" / "broker3.log"
    wait_until(lambda: "directory.failed" in log.read_text(), 15, "broker 3 to notice")
    assert "stopped" in _run(kept, "--stop")
    assert str(_left()) == (kept / "before").read_text()
    assert "nothing to stop" in _run(kept, "--stop")


def test_a_disk_that_hangs_is_pulled_and_replaced_by_an_empty_one(tmp_path: Path) -> None:
    disk = KillableDisk(tmp_path / "mnt", tmp_path / "control")
    try:
        (disk.log_dir / "old").touch()
        disk.hang()
        disk.pull()
        disk.replace()
        assert os.path.ismount(disk.log_dir) and not list(disk.log_dir.iterdir())
        (disk.log_dir / "new").write_bytes(b"new")
    finally:
        disk.close()
    assert not disk.log_dir.exists()


@only_deep("three real brokers for two minutes")
@pytest.mark.usefixtures("nothing_left", "kafka_kit")
def test_demo_of_the_guard_tells_both_hangs_side_by_side_and_replaces_the_disk(tmp_path: Path) -> None:
    story = _run(tmp_path, "--guard")
    verdict, recorded = _milliseconds(story, "verdict: failed"), _milliseconds(story, "have the directory offline")
    assert verdict <= _milliseconds(story, "cut: (?:done|pending)") and verdict <= recorded
    # A thread that the cut does not free costs the broker now and then, before or after the eviction.
    assert "was given up" in story or recorded <= _milliseconds(story, "evict: done")
    _check_table(story)


@only_deep("three real brokers for two minutes")
@pytest.mark.usefixtures("nothing_left", "kafka_kit")
def test_demo_of_the_guard_goes_on_where_the_broker_is_given_up(tmp_path: Path) -> None:
    story = _run(tmp_path, "--guard", "--ladder", "fence")
    assert _milliseconds(story, "verdict: failed") <= _milliseconds(story, "fence: done")
    assert "broker 1 was given up" in story and "other brokers lead what it led" in story
    assert _check_table(story)["the broker"].endswith("lost")


def _check_table(story: str) -> dict[str, str]:
    """The rows of the table at the end, by what they are about."""
    rows = {line[4:31].strip(): line[31:].strip() for line in story.splitlines()}
    assert re.fullmatch(r"no end in \d+\.\d s +\d+ ms", rows["led on the bad disk"]), story
    assert re.fullmatch(r"not in \d+ s +after \d+\.\d s", rows["Kafka knows of the disk"]), story
    assert "none is lost" in story and "three replicas in sync again" in story
    return rows


@pytest.mark.usefixtures("nothing_left", "kafka_kit")
def test_demo_of_the_guard_that_is_interrupted_while_the_disk_hangs_takes_everything_away(tmp_path: Path) -> None:
    with subprocess.Popen(
        _command(tmp_path, "--guard"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        told = "".join(itertools.takewhile(lambda line: not re.search(r"STANDS \d", line), process.stdout))
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, told + output
    assert "fault" in told and "Traceback" not in output and "left behind" not in output


def test_demo_of_the_guard_goes_with_no_other_kind_of_cluster(tmp_path: Path) -> None:
    result = subprocess.run(
        _command(tmp_path, "--guard", "--keep"), capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2 and "--guard goes with --out and --ladder" in result.stderr


def test_demo_says_whose_a_ladder_is(tmp_path: Path) -> None:
    result = subprocess.run(
        _command(tmp_path, "--ladder", "fence"), capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 2 and "--ladder is the guard's" in result.stderr
