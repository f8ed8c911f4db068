"""The holder of a lock, from the kernel's table."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kjbod.runtime.locks import holder_in, holder_of

TABLE = """\
1: POSIX  ADVISORY  READ  10 08:01:131 0 EOF
2: FLOCK  ADVISORY  WRITE 20 08:01:132 0 EOF
2: -> FLOCK  ADVISORY  WRITE 21 08:01:132 0 EOF
3: POSIX  ADVISORY  WRITE 0 08:01:133 0 EOF
3: -> POSIX  ADVISORY  WRITE 31 08:01:133 0 EOF
4: OFDLCK ADVISORY  WRITE -1 08:01:134 0 EOF
5: POSIX  ADVISORY  WRITE 50 fd:10:131 0 EOF
"""


@pytest.mark.parametrize(
    ("file", "holder"),
    [
        ("08:01:131", None),  # to read
        ("08:01:132", 20),
        ("08:01:133", None),  # of another container
        ("08:01:134", None),
        ("fd:10:131", 50),
        ("08:01:1", None),
    ],
)
def test_the_holder_of_a_write_lock_is_known_and_nobody_else_is_named(file: str, holder: int | None) -> None:
    assert holder_in(TABLE, file) == holder


@pytest.mark.usefixtures("world")
def test_a_process_with_a_lock_is_named_for_as_long_as_it_has_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    assert holder_of(path) is None and holder_of(tmp_path / "none") is None
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('up', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert holder_of(path) == process.pid
        process.communicate(b"\n")
    with path.open("w") as own:
        fcntl.flock(own, fcntl.LOCK_EX)
        assert holder_of(path) == os.getpid()
    assert holder_of(path) is None
