"""Ingest runs once at a time, and so does rollup: whoever runs a command on a lake claims it.

Nothing depends on it for what is right: a commit is one step, whoever makes it, and one that replaces something checks
that this is what its maker saw (:mod:`kjbod.fleet.lake.state`). It keeps two from doing the same work, and tells the
second one who the first is. A claim is a file that its holder renews; it is void when its holder is a process that is
no more, which only those can tell who see its number (the same machine, and the same pid namespace: a container has
one of its own), or else when nobody renewed it for :data:`LEASE_MS`, by the clock of the file system.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kjbod.fleet.fleet_error import ClaimedError, FleetError
from kjbod.fleet.lake.files import uuid_text
from kjbod.fleet.lake.lake import Lake

LEASE_MS = 120_000
RENEW_S = 30
PUT_BACK_MS = 5_000
"""So long we wait for a claim of ours that somebody has aside; it has ended if he does not put it back."""
PUT_BACK_LOOK_MS = 50
CLAIMS = "_claims"


@contextlib.contextmanager
def claimed(lake: Lake, command: str) -> Iterator[None]:
    """Run as the only ``command`` on a lake.

    Raises:
        FleetError: somebody else runs it.
    """
    path = f"{CLAIMS}/{command}.json"
    mine = _myself()
    text = json.dumps(mine, sort_keys=True) + "\n"
    _take(lake, command, path, text)
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(lake, path, text, ended), daemon=True, name="kjbod-claim")
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join(RENEW_S)
        with contextlib.suppress(Exception):  # it is void a moment from now in any case
            _give_back(lake, command, path, text)


def _take(lake: Lake, command: str, path: str, text: str) -> None:
    for _ in range(3):
        if lake.files.create(path, text):
            return
        found = lake.files.read(path)
        if found is None:
            continue
        holder = _parsed(found)
        if not _is_void(lake, path, holder):
            raise ClaimedError(
                f"{lake.uri}: {command} runs already, {_named(holder)}: wait for its end"
                f" (its claim is void {LEASE_MS // 1000} s after its last sign of life)"
            )
        aside = f"{CLAIMS}/.{command}.{uuid_text()}"
        if lake.files.rename(path, aside):
            if lake.files.read(aside) != found:  # another has taken the place of the void one meanwhile
                lake.files.rename(aside, path)
            lake.files.delete(aside)
    raise FleetError(f"{lake.uri}: others want to run kjbod fleet {command} as well: try again")


def _give_back(lake: Lake, command: str, path: str, text: str) -> None:
    """Delete our claim. One who took it for the void one that was there before has it aside for a moment."""
    for _ in range(PUT_BACK_MS // PUT_BACK_LOOK_MS):
        if lake.files.read(path) == text:
            lake.files.delete(path)
            return
        asides = [entry.name for entry in lake.files.list(CLAIMS) if entry.name.startswith(f".{command}.")]
        if not any(lake.files.read(f"{CLAIMS}/{name}") == text for name in asides) and lake.files.read(path) != text:
            return
        time.sleep(PUT_BACK_LOOK_MS / 1000)


def _renew(lake: Lake, path: str, text: str, ended: threading.Event) -> None:
    while not ended.wait(RENEW_S):
        with contextlib.suppress(Exception):  # the next one may succeed; and a commit is right without
            lake.files.replace(path, text)


def _myself() -> dict[str, Any]:
    return {
        **_where(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "token": uuid_text(),
    }


def _where() -> dict[str, str]:
    """Equal for those who see the same processes by the same numbers."""
    return {"host": socket.gethostname(), "boot": _boot_id(), "pid_ns": _pid_namespace()}


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pid_namespace() -> str:
    """Name of the namespace in which numbers mean the same processes as here; empty where there is no such thing."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Clock ticks from the machine's start to the process's; None when there is none, or only what is left of it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', 'unknown')} on {holder.get('host', 'an unknown host')}"


def _is_void(lake: Lake, path: str, holder: dict[str, Any]) -> bool:
    if _pid_namespace() and all(holder.get(name) == here for name, here in _where().items()):
        try:
            return bool(_started(int(holder["pid"])) != holder["started"])
        except (KeyError, ValueError, TypeError):
            return False
    return _age_ms(lake, path) > LEASE_MS


def _age_ms(lake: Lake, path: str) -> int:
    """Time since a claim was renewed, by the clock of the file system alone."""
    now = f"{CLAIMS}/.now.{uuid_text()}"
    lake.files.replace(now, "")
    try:
        times = {entry.name: entry.modified_ms for entry in lake.files.list(CLAIMS)}
    finally:
        lake.files.delete(now)
    name = path.rpartition("/")[2]
    return times[now.rpartition("/")[2]] - times[name] if name in times else 0
