"""``quorum-state``: the leader and epoch that a node knows, and its vote (``FileQuorumStateStore``)."""

import json
from pathlib import Path

from msgspec import Struct

from kjbod.documents import INT32_MAX, int_of, parse_document
from kjbod.errors import StorageError
from kjbod.files import read_file, write_atomically
from kjbod.ids import ZERO, Uuid

FILE_NAME = "quorum-state"
BYTES_MAX = 1024 * 1024
"""Maximum size; the file usually has some hundred bytes."""


class QuorumState(Struct, frozen=True, kw_only=True):
    """Content of the file; -1 and zero mean unknown or none."""

    leader_id: int = -1
    leader_epoch: int = 0
    voted_id: int = -1
    voted_directory_id: Uuid = ZERO


def write_quorum_state(directory: Path, state: QuorumState, *, kraft_version: int = 1, voter: int = -1) -> None:
    """Write the file into a ``__cluster_metadata-0``, in the version for the kraft.version
    (``KRaftVersion.quorumStateVersion``). Version 0 lists ``voter`` as the only voter. Blocks.

    Raises:
        StorageError: the file cannot be written; the old file is unchanged.
    """
    data: dict[str, object] = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
    }
    if kraft_version:
        data |= {"votedDirectoryId": str(state.voted_directory_id), "data_version": 1}
    else:
        voters = [{"voterId": voter}] if voter >= 0 else []
        data = {"clusterId": "", **data, "appliedOffset": 0, "currentVoters": voters, "data_version": 0}
    path = directory / FILE_NAME
    try:
        write_atomically(path, json.dumps(data, separators=(",", ":")).encode())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def read_quorum_state(directory: Path) -> QuorumState | None:
    """Return the file's content, version 0 or 1; None if there is no file. Blocks.

    Raises:
        StorageError: the file cannot be read or is malformed.
    """
    path = directory / FILE_NAME
    try:
        data = parse_document(read_file(path, bytes_max=BYTES_MAX))
        if int_of(data["data_version"], 0, INT32_MAX) not in (0, 1):
            raise StorageError(f"{path} has data_version {data['data_version']}, only 0 and 1 are known")
        return QuorumState(
            leader_id=int_of(data["leaderId"], -1, INT32_MAX),
            leader_epoch=int_of(data["leaderEpoch"], 0, INT32_MAX),
            voted_id=int_of(data["votedId"], -1, INT32_MAX),
            voted_directory_id=Uuid.parse(data.get("votedDirectoryId", str(ZERO))),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StorageError(f"{path} is not a quorum-state file; restore it or remove it") from None
