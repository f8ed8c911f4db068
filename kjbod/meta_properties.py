"""``meta.properties``: the owner of a log directory.

Each log directory has such a file with the cluster, the node and, since KIP-858, the directory's own id. An *ensemble*
is the content of all directories of a node. Content, rules and error texts are those of ``MetaProperties`` and
``MetaPropertiesEnsemble`` of Kafka 4.3.1 (KIP-858, section "meta.properties").

All functions take bytes: the agent gets them from the worker process of each disk, never from the disk.
"""

import enum
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.config.properties import java_timestamp, parse_properties, render_properties
from kjbod.errors import StorageError
from kjbod.ids import Uuid, is_reserved, random_directory_id

if TYPE_CHECKING:
    import random


META_PROPERTIES_NAME = "meta.properties"
KNOWN_DIRECTORIES_NAME = "known_directories.json"
"""File in ``kjbod.state.dir`` in which an agent remembers its directories."""
_JAVA_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)


class MetaPropertiesError(StorageError):
    """A meta.properties that cannot be used, or an ensemble with a contradiction."""


class MetaProperties(Struct, frozen=True):
    """Content of a file. ``version`` 1 is KRaft's and has cluster and node id; 0 is ZooKeeper's and may lack both.

    ``cluster_id`` is free text, not always an id.
    """

    version: int = 1
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: Uuid | None = None

    def to_properties(self) -> dict[str, str]:
        """Return keys and values in the order in which 4.3.1 writes them (the hash order of its table)."""
        node_key = "broker.id" if self.version == 0 else "node.id"
        directory_id = None if self.directory_id is None else str(self.directory_id)
        values = {
            node_key: None if self.node_id is None else str(self.node_id),
            "directory.id": directory_id,
            "version": str(self.version),
            "cluster.id": self.cluster_id,
        }
        return {key: value for key, value in values.items() if value is not None}

    def __str__(self) -> str:
        return "{" + ", ".join(f"{key}={value}" for key, value in sorted(self.to_properties().items())) + "}"


def parse_meta_properties(text: bytes, where: str) -> MetaProperties:
    """Parse the content of the file ``where``; unknown keys are ignored (``MetaProperties.Builder``).

    Raises:
        MetaPropertiesError: ``Error loading <where>: `` and Kafka's text.
    """
    try:
        return _from_properties(parse_properties(text))
    except ValueError as error:
        raise MetaPropertiesError(f"Error loading {where}: {error}") from None


def trouble_with(content: bytes | None, path: str, command: str, *, needs_id: bool = True) -> str | None:
    """Return the line about a directory whose ``meta.properties`` is unusable for a node, with the remedy. All commands
    share it. None: cluster, node and directory are set.

    Args:
        content: content of the file; None: no file.
        path: path of the directory.
        command: command that formats it without changing formatted directories, with ``CLUSTER_ID`` for the cluster's
            id.
        needs_id: whether a missing directory id is a problem; a starting node creates one.
    """
    file = f"{path}/{META_PROPERTIES_NAME}"
    if content is None:
        return f"{path} is not formatted: there is no {META_PROPERTIES_NAME}: mount its disk; for a new one `{command}`"
    anew = f"restore the file from a backup; or move it away, then `{command}`: the directory gets a new id"
    if not content.strip(b" \t\r\n\0"):
        return f"{file} is empty{' (NUL bytes only)' if content else ''}: {anew}"
    try:
        properties = parse_properties(content)
        version = _java_int(properties.get("version", "0").strip())
        node_key = "broker.id" if version == 0 else "node.id"
        missing = next((key for key in ("cluster.id", node_key) if key not in properties), None)
        if version == 0 and missing is not None and (node_key in properties or "cluster.id" in properties):
            return (
                f"{file} is that of a Kafka in ZooKeeper mode (version 0) and has no {missing}: migrate that broker to "
                f"KRaft with a Kafka 3.x first; for a new node move the content of {path} away, then `{command}`"
            )
        if version == 1 and missing is not None:
            value = "CLUSTER_ID" if missing == "cluster.id" else "NODE_ID"
            return f"{file} has no {missing}: add the line: `printf '\\n{missing}={value}\\n' >>{file}`"
        if version == 0 and missing is not None:
            return f"{file} is damaged (it has no node.id and no cluster.id): {anew}"
        meta = _from_properties(properties)
    except ValueError as error:
        reason = str(error).replace("`", "'")  # backquotes only around the command
        return f"{file} is damaged ({reason}): {anew}"
    if meta.directory_id is None and needs_id:
        return (
            f"{file} has no directory.id: it was formatted before Kafka 3.7: add one while the node is stopped: "
            f"`{command.replace('CLUSTER_ID', meta.cluster_id or 'CLUSTER_ID')}`; Kafka's broker, kjbod agent and "
            "kjbod controller do so when they start"
        )
    return None


def format_command(source: str, *, dynamic_controller: bool) -> str:
    """Return the command that formats unformatted directories, and gives a missing id to others.

    Args:
        source: configuration file.
        dynamic_controller: whether the node is a controller without ``controller.quorum.voters``.
    """
    flag = " --no-initial-controllers" if dynamic_controller else ""
    return f"kjbod format -c {source} -t CLUSTER_ID --ignore-formatted{flag}"


def _from_properties(properties: Mapping[str, str]) -> MetaProperties:
    text = properties.get("version", "0")
    version = _java_int(text.strip())
    if version is None:
        raise ValueError(f"Invalid meta.properties version string '{text}'")
    if version not in (0, 1):
        raise ValueError(f"Unknown meta.properties version number {version}")
    node_id = None
    if version == 1 or "broker.id" in properties:
        node_id = _required_int(properties, "broker.id" if version == 0 else "node.id")
    directory_id = None
    if "directory.id" in properties:
        try:
            directory_id = Uuid.parse(properties["directory.id"])
        except ValueError as error:
            raise ValueError(f"Unable to read directory.id as a Uuid: {error}") from None
    cluster_id = properties.get("cluster.id")
    if version == 1 and cluster_id is None:
        raise ValueError("cluster.id was not found.")
    return MetaProperties(version, cluster_id, node_id, directory_id)


def _java_int(text: str) -> int | None:
    """Return ``Integer.parseInt``; None if it throws."""
    if not _JAVA_INT.fullmatch(text) or len(text) > 64:
        return None
    value = int(text)
    return value if -(2**31) <= value < 2**31 else None


def _required_int(properties: Mapping[str, str], key: str) -> int:
    if key not in properties:
        raise ValueError(f"Failed to find {key}")
    value = _java_int(properties[key])
    if value is None:
        raise ValueError(f"Unable to read {key} as a base-10 number.")
    return value


def render_meta_properties(meta: MetaProperties, moment: datetime) -> bytes:
    """Return the file's bytes as 4.3.1 writes them; ``moment``, with a time zone, is the date in its second line."""
    return render_properties(meta.to_properties(), comments=("", java_timestamp(moment)))


class Requirement(enum.Flag):
    """Additional requirement of :func:`verify_ensemble` (``VerificationFlag``)."""

    NOTHING = 0
    V0 = enum.auto()
    METADATA_LOG_DIR = enum.auto()
    AT_LEAST_ONE_VALID = enum.auto()


class Ensemble(Struct, frozen=True):
    """Directories of one node by configured path, in three classes.

    ``properties``: readable. ``empty``: no file, or no directory. ``errors``: any other problem, including a malformed
        file, with the reason.
    """

    properties: Mapping[str, MetaProperties]
    empty: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)
    metadata_log_dir: str | None = None


def load_ensemble(contents: Mapping[str, bytes | OSError | None], *, metadata_log_dir: str | None = None) -> Ensemble:
    """Sort directories into classes. ``contents`` has, per directory, the file's bytes, None if file or directory is
    missing, or the error of the read (``MetaPropertiesEnsemble.Loader``).

    Raises:
        MetaPropertiesError: no directories at all.
    """
    if not contents:
        raise MetaPropertiesError("You must specify at least one log directory.")
    properties: dict[str, MetaProperties] = {}
    errors: dict[str, str] = {}
    for directory in sorted(contents):
        content = contents[directory]
        if isinstance(content, OSError):
            errors[directory] = f"{directory}/{META_PROPERTIES_NAME}: {content.strerror or content}"
        elif content is not None:
            try:
                properties[directory] = parse_meta_properties(content, f"{directory}/{META_PROPERTIES_NAME}")
            except MetaPropertiesError as error:
                errors[directory] = str(error)
    empty = frozenset(directory for directory, content in contents.items() if content is None)
    return Ensemble(properties, empty, errors, metadata_log_dir)


def verify_ensemble(
    ensemble: Ensemble,
    *,
    cluster_id: str | None = None,
    node_id: int | None = None,
    require: Requirement = Requirement.NOTHING,
) -> None:
    """Require that all files agree with each other and with ``cluster_id`` and ``node_id`` if given, and that directory
    ids differ and are not reserved (``MetaPropertiesEnsemble.verify``). Empty and failed directories are allowed,
    except the metadata directory.

    Raises:
        MetaPropertiesError: the first contradiction, in Kafka's words.
    """
    if Requirement.AT_LEAST_ONE_VALID in require and not ensemble.properties:
        raise MetaPropertiesError("No readable meta.properties files found.")
    owners: dict[Uuid, str] = {}
    for directory, meta in sorted(ensemble.properties.items()):
        path = f"{directory}/{META_PROPERTIES_NAME}"
        if Requirement.V0 in require and meta.version != 0:
            raise MetaPropertiesError(
                f"Found unexpected version in {path}. ZK-based brokers that are not migrating only support version 0 "
                "(which is implicit when the `version` field is missing)."
            )
        _verify_owner(meta, path, cluster_id, node_id)
        cluster_id = meta.cluster_id if cluster_id is None else cluster_id
        node_id = meta.node_id if node_id is None else node_id
        _verify_directory_id(meta, directory, owners)
    metadata_log_dir = ensemble.metadata_log_dir
    if Requirement.METADATA_LOG_DIR in require and metadata_log_dir is None:
        raise MetaPropertiesError("No metadata log directory was specified.")
    if metadata_log_dir in ensemble.errors:
        raise MetaPropertiesError(
            f"Encountered I/O error in metadata log directory {metadata_log_dir}. Cannot continue."
        )


def _verify_owner(meta: MetaProperties, path: str, cluster_id: str | None, node_id: int | None) -> None:
    if meta.version == 1 and meta.cluster_id is None:
        raise MetaPropertiesError(f"cluster.id was not specified in the v1 file: {path}")
    if None not in (meta.cluster_id, cluster_id) and meta.cluster_id != cluster_id:
        raise MetaPropertiesError(f"Invalid cluster.id in: {path}. Expected {cluster_id}, but read {meta.cluster_id}")
    if meta.version == 1 and meta.node_id is None:
        raise MetaPropertiesError(f"node.id was not specified in {path}")
    if None not in (meta.node_id, node_id) and meta.node_id != node_id:
        raise MetaPropertiesError(
            f"Stored node id {meta.node_id} doesn't match previous node id {node_id} in {path}. "
            "If you moved your data, make sure your configured node id matches. "
            "If you intend to create a new node, you should remove all data in your data directories."
        )


def _verify_directory_id(meta: MetaProperties, directory: str, owners: dict[Uuid, str]) -> None:
    """Check the directory's id against ``owners``, the directories of earlier ids, and add it."""
    if meta.directory_id is None:
        return
    if is_reserved(meta.directory_id):
        raise MetaPropertiesError(f"Invalid reserved directory ID {meta.directory_id} found in {directory}")
    if meta.directory_id in owners:
        raise MetaPropertiesError(
            f"Duplicate directory ID {meta.directory_id} found. "
            f"It was the ID of {owners[meta.directory_id]}, but also of {directory}: "
            "mount each disk once, and take a copy of a disk out of log.dirs"
        )
    owners[meta.directory_id] = directory


def with_directory_ids(ensemble: Ensemble, rng: "random.Random") -> dict[str, MetaProperties]:
    """Return the properties with a new directory id, to be written, of each readable directory without one (KIP-858;
    ``KafkaRaftServer.initializeLogDirs``)."""
    used = {meta.directory_id for meta in ensemble.properties.values() if meta.directory_id is not None}
    changed: dict[str, MetaProperties] = {}
    for directory, meta in sorted(ensemble.properties.items()):
        if meta.directory_id is None:
            directory_id = random_directory_id(rng, used)
            used.add(directory_id)
            changed[directory] = replace(meta, directory_id=directory_id)
    return changed
