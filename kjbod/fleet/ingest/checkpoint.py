"""Files of an inbox that were taken: the checkpoint of its streaming query, and how it and the lake stay together.

An inbox has one *run* after another; each has a checkpoint of its own, below the lake, and numbers its batches from 0.
The lake's state remembers the run of each inbox, and which of its batches it holds. Of a batch the state is written
first, Spark's checkpoint after it, so that the checkpoint is never ahead; where it is, or is not there, or is somebody
else's, files would be passed over or batches mistaken for those that were taken, and nothing is done. A new run
(``--rescan``) reads the whole inbox again and takes what the lake does not have.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.files import uuid_text
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHECKPOINTS = "_checkpoints"
OWNER = "kjbod-run.json"
"""File in a checkpoint that says whose it is."""
NOTE = "ingest "
"""What an inbox's note in the state begins with; its URI follows."""
LOG_COMPACT_INTERVAL = 100
"""Batches after which Spark writes the list of all files that were ever taken as one file."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of an inbox."""

    inbox: str
    """URI."""
    id: str
    files: int
    """That were taken in it."""

    @property
    def checkpoint(self) -> str:
        """Below the lake."""
        return f"{CHECKPOINTS}/{hashlib.sha256(self.inbox.encode()).hexdigest()[:16]}/run={self.id}"


def noted(state: State, inbox: str) -> Run | None:
    """The run that an inbox has."""
    text = state.notes.get(NOTE + inbox)
    if text is None:
        return None
    run, _, files = text.partition(" ")
    return Run(inbox, run, int(files or 0))


def with_note(state: State, run: Run) -> State:
    """The state that remembers it."""
    return state.with_notes({NOTE + run.inbox: f"{run.id} {run.files}"})


def open_run(lake: Lake, inbox: str, *, rescan: bool) -> Run:
    """The run of an inbox: that of before, or a new one where there is none or with ``rescan``.

    Raises:
        FleetError: its checkpoint is not the one that the lake knows.
    """
    state = lake.state()
    run = None if rescan else noted(state, inbox)
    if run is not None:
        _check(lake, state, run)
        return run
    made = Run(inbox, uuid_text()[:13], 0)
    owner = {"lake": lake.lake_id, "inbox": inbox, "run": made.id}
    lake.files.create(f"{made.checkpoint}/{OWNER}", json.dumps(owner, sort_keys=True) + "\n")
    lake.commit(lambda before: with_note(before, made), "ingest")
    return made


def _check(lake: Lake, state: State, run: Run) -> None:
    where = f"{lake.uri}/{run.checkpoint}"
    cure = "run it with --rescan: the inbox is read anew, and nothing is taken twice"
    text = lake.files.read(f"{run.checkpoint}/{OWNER}")
    if text is None:
        raise FleetError(f"{where}: the checkpoint of {run.inbox} is not there: {cure}")
    try:
        owner = json.loads(text)
        whose = (owner["lake"], owner["inbox"], owner["run"])
    except (ValueError, KeyError, TypeError):
        whose = ("", "", "")
    if whose != (lake.lake_id, run.inbox, run.id):
        raise FleetError(f"{where}: the checkpoint of another lake or inbox: {cure}")
    taken = state.batches.get(run.id, -1)
    done, begun = (_newest(lake, f"{run.checkpoint}/{name}") for name in ("commits", "offsets"))
    if done > taken:
        raise FleetError(f"{where}: it has batch {done}, the lake only {taken}: the lake is of an older time: {cure}")
    if taken > begun:
        raise FleetError(f"{where}: the lake has batch {taken}, it only {begun}: it is of an older time: {cure}")


def _newest(lake: Lake, folder: str) -> int:
    return max((int(entry.name) for entry in lake.files.list(folder) if entry.name.isdigit()), default=-1)


def files_of_batch(lake: Lake, checkpoint: str, batch: int) -> "DataFrame":
    """``_uri``: the files that Spark has in a batch, also those of which it read nothing."""
    from pyspark.sql import functions as F  # noqa: N812

    from kjbod.fleet.ingest.lines import plain

    first, last = (_log_offset(lake, checkpoint, number) for number in (batch - 1, batch))
    numbers = range(first + 1, last + 1)
    paths = [_log_file(lake, f"{checkpoint}/sources/0/{number}") for number in numbers]
    log = lake.spark.read.schema("path STRING, batchId BIGINT").json([lake.full(path) for path in paths])
    taken = log.where(F.col("path").isNotNull() & F.col("batchId").isin(list(numbers)))
    return taken.select(plain(F.col("path")).alias("_uri")).distinct()


def _log_file(lake: Lake, path: str) -> str:
    folder, _, name = path.rpartition("/")
    names = {entry.name for entry in lake.files.list(folder)}
    return path if name in names else f"{path}.compact"


def _log_offset(lake: Lake, checkpoint: str, batch: int) -> int:
    if batch < 0:
        return -1
    text = lake.files.read(f"{checkpoint}/offsets/{batch}")
    try:
        return int(json.loads((text or "").strip().splitlines()[-1])["logOffset"])
    except (ValueError, KeyError, TypeError, IndexError):
        raise FleetError(f"{lake.uri}/{checkpoint}/offsets/{batch} cannot be read: run it with --rescan") from None
