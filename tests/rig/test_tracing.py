"""The tracer of system calls: it names them whole, wherever a path lies in memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.rig.tracing import require_tracing

ROOT = Path(__file__).parents[2]
RENAMES = """
import ctypes, mmap, os, sys
from pathlib import Path

from scripts.rig.tracing import run_traced

directory, before_the_end = Path(sys.argv[1]), int(sys.argv[2])

def work():
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    path = os.fsencode(directory / "old") + b"\\0"
    at = mmap.PAGESIZE - min(before_the_end, len(path))
    memory[at : at + len(path)] = path
    where = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + at
    assert ctypes.CDLL(None).rename(ctypes.c_void_p(where), os.fsencode(directory / "new")) == 0

print(run_traced(work, directory, kill_at=None))
"""
"""In a process of its own: the tracer waits for all children of its process."""


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("before_the_end", [1, 9, 10_000], ids=["all-but-a-byte", "within-the-name", "in-one-page"])
def test_a_path_that_lies_across_two_pages_is_named_whole(tmp_path: Path, before_the_end: int) -> None:
    """``before_the_end``: so many bytes of the path lie in the first page."""
    require_tracing()
    (tmp_path / "old").write_bytes(b"x")
    command = [sys.executable, "-c", RENAMES, str(tmp_path), str(before_the_end)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("['rename old']\n", "", 0)
    assert (tmp_path / "new").exists()
