"""A look at a lake and at inboxes of this machine before Spark is started: how much there is to take, and whether any.

How Java and Spark are set up for a job depends on its size, and nothing can be changed later. Where there is nothing to
do, Spark is not started at all. The look decides nothing else: it believes only a lake and a checkpoint that agree in
every point, and whatever it cannot read, or does not know, counts as new. Then Spark looks, and tells.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.ingest.checkpoint import OWNER, Run, noted
from kjbod.fleet.lake.lake import IDENTITY, LIVE, is_state
from kjbod.fleet.lake.state import State, from_json
from kjbod.fleet.publishing import is_local, local_path
from kjbod.fleet.schema import STREAMS
from kjbod.fleet.session import LARGE_INPUT_BYTES, MEDIUM_INPUT_BYTES

_FINISHED = (".jsonl", ".jsonl.gz", ".jsonl.zst")


@dataclass(frozen=True, slots=True)
class Ahead:
    """Work that waits."""

    files: int
    """Finished report files that were not taken yet."""
    new_bytes: int
    """Of these, compressed."""
    is_settled: bool
    """Whether each batch that was begun is in the lake."""
    touched: int
    """Hours that wait for a rollup."""


def session_bytes(ahead: Ahead | None) -> int:
    """The input that a session is to be set up for: what waits, as far as that is little. To compile plans, and all of
    Java's code twice, pays for itself in an hour of a thousand hosts, and in a service that follows."""
    if ahead is None or ahead.new_bytes > MEDIUM_INPUT_BYTES:
        return LARGE_INPUT_BYTES + 1
    return ahead.new_bytes


class _UnknownError(Exception):
    """Something that only Spark can tell."""


def look_ahead(lake: str, reports: Sequence[str]) -> Ahead | None:
    """Look at a lake and at inboxes. None where they are not all of this machine, or something cannot be read."""
    try:
        if not all(is_local(uri) for uri in (lake, *reports)):
            return None
        root = local_path("--lake", lake).absolute()
        state = _state(root)
        files = size = 0
        settled = True
        for inbox in {local_path("--reports", given).absolute() for given in reports}:
            taken = _taken(root, state, inbox) if state else None
            settled = settled and taken is not None
            for path, count in _finished(inbox):
                if path not in (taken or ()):
                    files, size = files + 1, size + count
        return Ahead(files, size, settled, len(state.touched) if state else 0)
    except (OSError, ValueError, LookupError, TypeError, FleetError, _UnknownError):
        return None


def _state(root: Path) -> State | None:
    """The newest state; None where there is none."""
    live = root / LIVE
    newest = max((path.name for path in live.iterdir() if is_state(path.name)), default="") if live.is_dir() else ""
    if not newest:
        return None
    state = from_json((live / newest).read_text(encoding="utf-8"), str(live / newest))
    if json.loads((root / IDENTITY).read_text(encoding="utf-8"))["id"] != state.lake_id:
        raise _UnknownError
    return state


def _taken(root: Path, state: State, inbox: Path) -> set[str] | None:
    """Paths of the files of an inbox that the lake has taken; None where a batch was begun and is not in the lake."""
    run = noted(state, f"file:{inbox}")
    if run is None:
        return None
    checkpoint = root / run.checkpoint
    owner = json.loads((checkpoint / OWNER).read_text(encoding="utf-8"))
    if owner != {"lake": state.lake_id, "inbox": run.inbox, "run": run.id}:
        raise _UnknownError
    begun, done = (_newest(checkpoint / name) for name in ("offsets", "commits"))
    log = _newest(checkpoint / "sources/0")
    if not begun == done == state.batches.get(run.id, -1) or log != _log_offset(checkpoint, begun):
        return None
    return set(_logged(checkpoint / "sources/0", log, run))


def _newest(folder: Path) -> int:
    names = (path.name.removesuffix(".compact") for path in folder.iterdir()) if folder.is_dir() else ()
    return max((int(name) for name in names if name.isdigit()), default=-1)


def _log_offset(checkpoint: Path, batch: int) -> int:
    if batch < 0:
        return -1
    lines = (checkpoint / f"offsets/{batch}").read_text(encoding="utf-8").strip().splitlines()
    return int(json.loads(lines[-1])["logOffset"])


def _logged(folder: Path, newest: int, run: Run) -> Iterator[str]:
    """Paths in Spark's log of the files of a run, of which every hundredth file has all that were before it."""
    for number in range(newest, -1, -1):
        compact = folder / f"{number}.compact"
        path = compact if compact.exists() else folder / str(number)
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            parts = urlsplit(json.loads(line)["path"])
            if parts.scheme != "file" or parts.netloc or parts.query or parts.fragment:
                raise _UnknownError
            yield unquote(parts.path, errors="surrogateescape")
        if path is compact:
            return


def _finished(inbox: Path) -> Iterator[tuple[str, int]]:
    """Paths and sizes of the finished files of an inbox."""
    for stream in STREAMS:
        if (inbox / stream).exists():
            yield from _below(str(inbox / stream))


def _below(folder: str) -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                raise _UnknownError
            if entry.is_dir():
                yield from _below(entry.path)
            elif not entry.name.startswith(".") and entry.name.endswith(_FINISHED):
                yield entry.path, entry.stat().st_size
