"""The demonstration is a promise of the README: it ends with exit 0, leaves the report and nothing else."""

import contextlib
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

# One at a time: each sees what all demonstrations of this machine leave.
pytestmark = [
    pytest.mark.usefixtures("as_root", "with_spark"),
    pytest.mark.xdist_group("demo"),
    pytest.mark.timeout(300),
]
_TIMEOUT_S = 240


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


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No work directory of a demonstration, no mount and no loop device that was not there before."""

    def seen() -> set[str]:
        left = {str(path) for path in Path(tempfile.gettempdir()).glob("kjbod-demo-*")}
        left |= {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):  # it was detached while we looked
                left.add(backing.read_text().strip())
        return {name for name in left if "kjbod-demo-" in name}

    before = seen()
    yield
    assert seen() <= before


def _milliseconds(story: str, what: str) -> float:
    """When, after the fault, the first line with ``what`` says that it happened."""
    found = re.search(rf"\+ *(\d+) ms .*{what}", story)
    assert found, f"no line {what!r} in:\n{story}"
    return float(found.group(1))


@pytest.mark.parametrize("controller", ["stub", pytest.param("kafka", marks=pytest.mark.kafka)])
@pytest.mark.usefixtures("nothing_left")
def test_demo_tells_the_whole_story_on_real_disks(tmp_path: Path, controller: str) -> None:
    story = _run(tmp_path, "--controller", controller)
    assert "EIO" in story
    verdict, sent = _milliseconds(story, "verdict: failed"), _milliseconds(story, "OfflineLogDirs sent")
    assert verdict <= sent <= _milliseconds(story, "acknowledged")
    assert "exit code 74" in story
    page = (tmp_path / "fleet" / "index.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert all(f"broker-{broker}" in page for broker in (1, 2, 3))
    assert any((tmp_path / "fleet" / "tables").rglob("*.parquet"))


@pytest.mark.usefixtures("nothing_left")
def test_demo_without_real_disks_says_what_changes_and_still_tells_the_story(tmp_path: Path) -> None:
    story = _run(tmp_path, "--plain-directories")
    assert "No real disks" in story
    assert "ENOENT" in story
    assert "exit code 74" in story


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


@pytest.mark.usefixtures("nothing_left")
def test_demo_keeps_the_cluster_until_it_is_told_to_stop(tmp_path: Path) -> None:
    story = _run(tmp_path, "--keep")
    assert "--stop" in story
    try:
        again = subprocess.run(
            _command(tmp_path, "--keep"), capture_output=True, text=True, timeout=60, env=_environment(), check=False
        )
        assert again.returncode == 1
        assert "still kept" in again.stderr
        assert "broken" in _run(tmp_path, "--break", "3/1")
        log = tmp_path / "logs" / "broker3.log"
        wait_until(lambda: "directory.failed" in log.read_text(), 15, "broker 3 to notice")
    finally:
        assert "stopped" in _run(tmp_path, "--stop")
    assert "nothing to stop" in _run(tmp_path, "--stop")
