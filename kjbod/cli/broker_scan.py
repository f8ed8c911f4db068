"""Find the Kafka brokers and guards of this host, with their files, in a separate process.

A reader of ``/proc/PID/cmdline`` may block: a thread of that process that is stuck on a disk can hold the lock of its
memory (``mmap_lock``). So :mod:`kjbod.cli.broker_files` starts this process, and continues without its answer after a
time limit.

A broker has its own root directory and its own working directory: a path on its command line is not always the same
file for this process. :func:`scan` follows the path in the broker's root, and gives the path that leads to the same
file (device and inode) here.
"""

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from kjbod.kafka_command_line import after_main_class, file_argument

LINKS_MAX: Final = 40
"""Maximum symbolic links in one path (path_resolution(7))."""

FOUND: Final = "found"
NO_FILE: Final = "no-file"
DENIED: Final = "denied"
GONE: Final = "gone"
ELSEWHERE: Final = "elsewhere"
"""Results for one broker: see the table of lines in :mod:`kjbod.cli.broker_files`."""


def scan(proc: Path) -> dict[str, Any]:
    """Return the Kafka brokers below a proc file system.

    Returns:
        ``hidden``: why other processes cannot be seen, else None; ``brokers``: for each ``pid``, ``result``, ``file``
        (as this process can open the file, else as the command line has it); ``guards``: likewise, and ``own``, the
        file with kjbod's own keys, else None. Guards whose files cannot be found here are not there.
    """
    try:
        pids = sorted(int(one.name) for one in proc.iterdir() if one.name.isdecimal())
    except OSError as error:
        return {"hidden": f"{proc}: {error.strerror}", "brokers": [], "guards": []}
    lines = [(pid, line) for pid in pids if (line := _command_line(proc / str(pid)))]
    brokers = [row for pid, line in lines if (row := _broker(proc / str(pid), pid, line)) is not None]
    guards = [row for pid, line in lines if (row := _guard(proc / str(pid), pid, line)) is not None]
    try:
        (proc / "1" / "cmdline").read_bytes()
    except OSError:  # without hidepid every user may read the command lines of all processes
        hidden = f"{proc} shows only processes of this user (hidepid)"
        return {"hidden": hidden, "brokers": brokers, "guards": guards}
    return {"hidden": None, "brokers": brokers, "guards": guards}


def _command_line(process: Path) -> list[str]:
    try:
        content = (process / "cmdline").read_bytes()
    except OSError:  # the process has ended, or the file is closed to this user (hidepid=1)
        return []
    return [os.fsdecode(one) for one in content.split(b"\0")]


def _guard(process: Path, pid: int, arguments: list[str]) -> dict[str, Any] | None:
    """Return a guard, ``kjbod guard run -c FILE --guard-config FILE``, with or without its interpreter; None: not a
    guard."""
    run = next((at for at, one in enumerate(arguments[:2]) if os.path.basename(one) == "kjbod"), None)  # noqa: PTH119
    if run is None or arguments[run + 1 : run + 3] != ["guard", "run"]:
        return None
    rest = arguments[run + 3 :]
    broker, own = _option(rest, "-c", "--config"), _option(rest, "--guard-config")
    found = [None if path is None else _here(process, path) for path in (broker, own)]
    if found[0] is None or any(one is not None and one[0] != FOUND for one in found):
        return None
    return {"pid": pid, "file": found[0][1], "own": None if found[1] is None else found[1][1]}


def _option(arguments: list[str], *names: str) -> str | None:
    """Return the value of an option, from the next argument or after ``=``."""
    for at, one in enumerate(arguments):
        name, equals, value = one.partition("=")
        if name in names:
            return value if equals else (*arguments, None)[at + 1]
    return None


def _broker(process: Path, pid: int, arguments: list[str]) -> dict[str, Any] | None:
    rest = after_main_class(arguments)
    if rest is None or os.path.basename(arguments[0]) != "java":  # noqa: PTH119  not sudo, not grep
        return None
    named = file_argument([one for one in rest if one])
    if named is None:
        return {"pid": pid, "result": NO_FILE, "file": None}
    result, path = _here(process, named)
    return {"pid": pid, "result": result, "file": path}


def _here(process: Path, named: str) -> tuple[str, str]:
    """Return the result for a path of that process, and the path of the same file for this process."""
    try:
        root = str((process / "root").readlink())
        cwd = "/" if named.startswith("/") else str((process / "cwd").readlink())
    except FileNotFoundError:
        return GONE, named
    except OSError:
        return DENIED, named
    inside_cwd = f"/{os.path.relpath(cwd, root)}" if cwd == root or cwd.startswith(f"{root.rstrip('/')}/") else cwd
    written = f"{inside_cwd.rstrip('/')}/{named}" if not named.startswith("/") else named
    try:
        resolved = _resolve(process / "root", written)
        known = Path(f"{process}/root{resolved}").stat()
    except FileNotFoundError:
        return GONE, written
    except OSError:
        return DENIED, written
    for path in (os.path.normpath(written), resolved):
        here = root.rstrip("/") + path
        with contextlib.suppress(OSError):
            if os.path.samestat(known, Path(here).stat()):
                return FOUND, here
    return ELSEWHERE, written


def _resolve(root: Path, path: str) -> str:
    """Return the path without links, as a process with that root directory resolves it.

    Raises:
        OSError: a part cannot be read, or there are too many links.
    """
    left, done, links = path.split("/"), "", 0
    while left:
        part = left.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        below = f"{done}/{part}"
        link = Path(f"{root}{below}")
        if not link.is_symlink():
            done = below
            continue
        links += 1
        if links > LINKS_MAX:
            raise OSError(f"{path}: too many symbolic links")
        target = str(link.readlink())
        done = "" if target.startswith("/") else done
        left = [*target.split("/"), *left]
    return done or "/"


def main() -> None:
    """Print the result for ``/proc`` as JSON."""
    sys.stdout.write(json.dumps(scan(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
