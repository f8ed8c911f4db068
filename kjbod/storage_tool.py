"""Format log directories and report their content, as ``kafka-storage`` of 4.4.0 does, below level 4.4 that of 4.3.1.

Sub-commands, flags, standard output and exit codes are the original's (``tools.StorageTool``,
``metadata.storage.Formatter``); what one formats the other accepts. Differences, all on purpose:

* ``format --ignore-formatted`` gives a ``directory.id`` to formatted directories that lack one, and says so. KIP-858
  asks for it; the original leaves it to the broker's next start.
* Every failure is one line. The original prints a stack trace for some.
* Keys of SCRAM credentials are not printed.
* Two paths that lead to the same directory are refused, and so is a controller's metadata directory whose disk an agent
  of this node knew on a mount point where nothing is mounted now: formatted there it would be another, empty cluster.
* Directories are shown as absolute paths and formatted in the order of their names.

Blocks: for a command line, not for an event loop.
"""

import contextlib
import fcntl
import os
import random
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.documents import parse_document
from kjbod.errors import KjbodError
from kjbod.files import fsync_directory, make_directories, read_file, write_atomically
from kjbod.ids import METADATA_TOPIC_NAME, Uuid, is_reserved, random_directory_id, random_uuid
from kjbod.meta_properties import (
    KNOWN_DIRECTORIES_NAME,
    META_PROPERTIES_NAME,
    Ensemble,
    MetaProperties,
    MetaPropertiesError,
    format_command,
    load_ensemble,
    parse_meta_properties,
    render_meta_properties,
    trouble_with,
    verify_ensemble,
    with_directory_ids,
)
from kjbod.metadata import versions
from kjbod.metadata.checkpoint_files import write_checkpoint
from kjbod.metadata.control_records import KRaftVoters, Voter, VoterEndpoint
from kjbod.metadata.records import FeatureLevelRecord, Record, UserScramCredentialRecord
from kjbod.scram import parse_scram

BOOTSTRAP_CHECKPOINT_NAME = "bootstrap.checkpoint"
METADATA_PARTITION_NAME = f"{METADATA_TOPIC_NAME}-0"
FIRST_SNAPSHOT_NAME = f"{0:020}-{0:010}.checkpoint"
META_PROPERTIES_BYTES_MAX = 64 * 1024
KNOWN_DIRECTORIES_BYTES_MAX = 16 * 1024 * 1024
SILENT_S = 3.0
"""Time after which a directory that is still being read is reported."""
_SCRAM_SINCE = versions.release_level("3.5-IV2")
_WRITE_ERROR = "Error while writing meta.properties file"
_WRITE_REMEDY = "make it writable for this user, then format again with --ignore-formatted"
_JAVA_INT = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)

Print = Callable[[str], None]
"""Prints one line."""


class StorageToolError(KjbodError):
    """An error that ``kafka-storage`` reports with a message and exit code 1."""


# Voters on the command line


class DynamicVoter(Struct, frozen=True):
    """A ``id@host:port:directoryId`` of ``--initial-controllers`` (``raft.DynamicVoter``)."""

    node_id: int
    host: str
    port: int
    directory_id: Uuid

    @classmethod
    def parse(cls, text: str) -> "DynamicVoter":
        """Parse a voter; an IPv6 host is in brackets.

        Raises:
            StorageToolError: with Kafka's text.
        """
        node_text, at, rest = text.strip().partition("@")
        if not at:
            raise StorageToolError("No @ found in dynamic voter string.")
        if not node_text:
            raise StorageToolError("Invalid @ at beginning of dynamic voter string.")
        node_id = _int(node_text, -(2**31), 2**31 - 1)
        if node_id is None:
            raise StorageToolError("Failed to parse node id in dynamic voter string.")
        if node_id < 0:
            raise StorageToolError(f"Invalid negative node id {node_id} in dynamic voter string.")
        if not rest:
            raise StorageToolError("No hostname found after node id.")
        host, rest = _split_host(rest)
        port_text, colon, directory_text = rest.partition(":")
        if not colon:
            raise StorageToolError("No colon following port could be found.")
        port = _int(port_text, -(2**31), 2**31 - 1)
        if port is None:
            raise StorageToolError("Failed to parse port in dynamic voter string.")
        if not 0 <= port <= 65535:
            raise StorageToolError(f"Invalid port {port} in dynamic voter string.")
        try:
            directory_id = Uuid.parse(directory_text)
        except ValueError as error:
            raise StorageToolError(f"Failed to parse directory ID in dynamic voter string. {error}") from None
        if is_reserved(directory_id):
            raise StorageToolError(f"Invalid reserved directory ID {directory_id} in dynamic voter string.")
        return cls(node_id, host, port, directory_id)


def _split_host(text: str) -> tuple[str, str]:
    """Return the host, and the text after the colon that follows it."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket:
            raise StorageToolError("Hostname began with left bracket, but no right bracket was found.")
        if not rest.startswith(":"):
            raise StorageToolError("Port section must start with a colon.")
        return host, rest[1:]
    host, colon, rest = text.partition(":")
    if not colon:
        raise StorageToolError("No colon following hostname could be found.")
    return host, rest


def _int(text: str, least: int, most: int) -> int | None:
    return int(text) if _JAVA_INT.fullmatch(text) and least <= int(text) <= most else None


def parse_voters(text: str) -> dict[int, DynamicVoter]:
    """Parse the voters of ``--initial-controllers``, by node id (``raft.DynamicVoters``).

    Raises:
        StorageToolError: with Kafka's text.
    """
    voters: dict[int, DynamicVoter] = {}
    for entry in filter(None, text.strip().split(",")):
        voter = DynamicVoter.parse(entry)
        if voter.node_id in voters:
            raise StorageToolError(f"Node id {voter.node_id} was specified more than once.")
        voters[voter.node_id] = voter
    if not voters:
        raise StorageToolError("No voters given.")
    return dict(sorted(voters.items()))


def _standalone_voters(config: Config, rng: random.Random) -> dict[int, DynamicVoter]:
    if "controller" not in config.process_roles:
        raise StorageToolError("You can only use --standalone on a controller.")
    listener = config.advertised_controller_listeners[0]
    host = listener.host if listener.host_given else "localhost"
    return {config.node_id: DynamicVoter(config.node_id, host, listener.port, random_uuid(rng))}


# Features


def parse_release(text: str) -> int:
    """Return the level of a release as typed; of ``3.8.1`` only ``3.8`` counts (``MetadataVersion.fromVersionString``).

    Raises:
        StorageToolError: no such release.
    """
    segments = text.split(".")
    try:
        return versions.release_level(".".join(segments[:2]) if len(segments) > 2 else text)
    except versions.UnknownReleaseError:
        known = [name for level, name in sorted(versions.RELEASES.items()) if level >= versions.MINIMUM]
        raise StorageToolError(
            f"Unknown metadata.version '{text}'. Supported metadata.version are: {', '.join(known)}"
        ) from None


def parse_feature_levels(texts: Sequence[str]) -> dict[str, int]:
    """Parse texts ``NAME=LEVEL``; of a repeated name the last one counts.

    Raises:
        StorageToolError: with Kafka's text.
    """
    levels: dict[str, int] = {}
    for text in texts:
        name, equals, level_text = text.partition("=")
        if not equals:
            raise StorageToolError(f"Can't parse feature=level string {text}: equals sign not found.")
        level = _int(level_text.strip(), -(2**15), 2**15 - 1)
        if level is None:
            raise StorageToolError(
                f"Can't parse feature=level string {text}: unable to parse {level_text.strip()} as a short."
            )
        levels[name.strip()] = level
    return levels


def _effective_release(release: int | None, asked: dict[str, int]) -> int:
    level = asked.get(versions.METADATA_VERSION)
    if level is None:
        return versions.LATEST if release is None else release
    if release is not None:
        raise StorageToolError("Use --release-version instead of --feature metadata.version=X to avoid ambiguity.")
    if not versions.MINIMUM <= level <= versions.UNDERSTOOD:
        raise StorageToolError(
            f"No MetadataVersion with feature level {level}. "
            f"Valid feature levels are from {versions.MINIMUM} to {versions.UNDERSTOOD}."
        )
    return level


def _effective_features(release: int, asked: dict[str, int], dynamic_quorum: bool) -> dict[str, int]:
    """Return the levels of the features by name, including metadata.version and kraft.version
    (``Formatter.calculateEffectiveFeatureLevels``)."""
    known = sorted(set(versions.UNDERSTOOD_FEATURES) - {versions.METADATA_VERSION})
    for name in asked:
        if name != versions.METADATA_VERSION and name not in known:
            raise StorageToolError(f"Unsupported feature: {name}. Supported features are: {', '.join(known)}")
    _check_kraft_version(asked.get(versions.KRAFT_VERSION), dynamic_quorum)
    defaults = versions.version_mapping(release) | {versions.KRAFT_VERSION: int(dynamic_quorum)}
    levels = defaults | asked | {versions.METADATA_VERSION: release}
    for name in known:
        least, most = versions.UNDERSTOOD_FEATURES[name]
        if not least <= levels[name] <= most:
            raise StorageToolError(f"No feature:{name} with feature level {levels[name]}")
        for dependency, needed in versions.dependencies(name, levels[name]).items():
            if levels[dependency] < needed:
                raise StorageToolError(
                    f"{name} could not be set to {levels[name]} because it depends on {dependency} level {needed}"
                )
    return levels


def _check_kraft_version(asked: int | None, dynamic_quorum: bool) -> None:
    if asked == 0 and dynamic_quorum:
        raise StorageToolError(
            "Cannot set kraft.version to 0 if controller.quorum.voters is empty and one of the flags --standalone, "
            "--initial-controllers, or --no-initial-controllers is used. For dynamic controllers support, "
            "try removing the --feature flag for kraft.version."
        )
    if asked and not dynamic_quorum:
        raise StorageToolError(
            f"Cannot set kraft.version to {asked} unless controller.quorum.voters is empty and one of the flags "
            "--standalone, --initial-controllers, or --no-initial-controllers is used. For dynamic controllers "
            "support, try using one of --standalone, --initial-controllers, or --no-initial-controllers and removing "
            "controller.quorum.voters."
        )


def _bootstrap_records(levels: dict[str, int], scram: Sequence[UserScramCredentialRecord]) -> tuple[Record, ...]:
    special = (versions.METADATA_VERSION, versions.KRAFT_VERSION)
    names = sorted(name for name, level in levels.items() if name not in special and level > 0)
    features = [
        FeatureLevelRecord(name=name, feature_level=levels[name]) for name in (versions.METADATA_VERSION, *names)
    ]
    return (*features, *scram)


def _java_text(record: Record) -> str:
    if isinstance(record, FeatureLevelRecord):
        return f"FeatureLevelRecord(name='{record.name}', featureLevel={record.feature_level})"
    assert isinstance(record, UserScramCredentialRecord)
    return f"UserScramCredentialRecord(name='{record.name}', mechanism={record.mechanism}, [hidden])"


# format


class FormatOptions(Struct, frozen=True, kw_only=True):
    """The flags of ``format``, as given."""

    cluster_id: str
    ignore_formatted: bool = False
    release_version: str | None = None
    features: Sequence[str] = ()
    scram: Sequence[str] = ()
    standalone: bool = False
    no_initial_controllers: bool = False
    initial_controllers: str | None = None


class FormatPlan(Struct, frozen=True, kw_only=True):
    """Work of :func:`format_directories`, after all options were found valid."""

    meta: MetaProperties
    release: int
    kraft_version: int
    records: tuple[Record, ...]
    voters: dict[int, DynamicVoter]
    metadata_log_dir: str
    controller_listener: str
    is_controller: bool = True
    bootstrap: bool = True
    """Whether ``records`` are written. A broker starts without them, but not with a level that it does not know.
    Without a requested release, the broker may be any version since 3.7."""

    def kind(self, directory: str) -> str:
        """Return the word of the output for a directory (``Formatter.DirectoryType``)."""
        if directory != self.metadata_log_dir:
            return "data directory"
        if not self.voters:
            return "metadata directory"
        return "dynamic metadata voter directory" if self.meta.node_id in self.voters else "dynamic metadata directory"

    @property
    def in_snapshot(self) -> bool:
        """Whether the first records go only into the 0-0 snapshot of a controller. Controllers at such a level read
        them there; brokers need none."""
        return self.release >= versions.BOOTSTRAP_IN_SNAPSHOT

    def named_directory_id(self, directory: str) -> Uuid | None:
        """Return the id that the voters give to this directory; None for all but a voter's metadata directory."""
        if directory != self.metadata_log_dir or self.meta.node_id not in self.voters:
            return None
        return self.voters[self.meta.node_id].directory_id

    def voter_set(self) -> KRaftVoters | None:
        """Return the voters as the control record of the first snapshot; None if no flag lists any."""
        if not self.voters:
            return None
        return KRaftVoters(
            voters=tuple(
                Voter(
                    voter_id=voter.node_id,
                    voter_directory_id=voter.directory_id,
                    endpoints=(VoterEndpoint(name=self.controller_listener, host=voter.host, port=voter.port),),
                )
                for voter in self.voters.values()
            )
        )


def plan_format(config: Config, options: FormatOptions, rng: random.Random) -> FormatPlan:
    """Check the flags against each other and the configuration; touches no disk.

    Raises:
        StorageToolError: in Kafka's words.
        ScramArgumentError: likewise.
    """
    release = None if options.release_version is None else parse_release(options.release_version)
    asked = parse_feature_levels(options.features)
    static_quorum = bool(config.controller_quorum_voters)
    if static_quorum and (options.standalone or options.initial_controllers is not None):
        raise StorageToolError(
            "You cannot specify controller.quorum.voters and format the node with --initial-controllers or "
            "--standalone. If you want to use dynamic quorum, please remove controller.quorum.voters and specify "
            "controller.quorum.bootstrap.servers instead."
        )
    voters: dict[int, DynamicVoter] = {}
    if options.initial_controllers is not None:
        voters = parse_voters(options.initial_controllers)
    if options.standalone:
        voters = _standalone_voters(config, rng)
    is_controller = "controller" in config.process_roles
    if is_controller and not static_quorum and not voters and not options.no_initial_controllers:
        raise StorageToolError(
            "Because controller.quorum.voters is not set on this controller, you must specify one of the following: "
            "--standalone, --initial-controllers, or --no-initial-controllers."
        )
    release = _effective_release(release, asked)
    levels = _effective_features(release, asked, dynamic_quorum=not static_quorum)
    if options.scram and release < _SCRAM_SINCE:
        raise StorageToolError("SCRAM is only supported in metadata.version 3.5-IV2 or later.")
    return FormatPlan(
        meta=MetaProperties(cluster_id=options.cluster_id, node_id=config.node_id),
        release=release,
        kraft_version=levels[versions.KRAFT_VERSION],
        records=_bootstrap_records(levels, [parse_scram(argument, rng) for argument in options.scram]),
        voters=voters,
        metadata_log_dir=config.metadata_log_dir,
        controller_listener=config.controller_listener_names[0],
        is_controller=is_controller,
        bootstrap=is_controller or bool(options.release_version or options.features or options.scram),
    )


def format_directories(
    config: Config, options: FormatOptions, *, rng: random.Random, clock: Clock, out: Print, warn: Print
) -> None:
    """``kafka-storage format``: make the directories of ``config`` ready for a node of this cluster.

    Directories that do not exist are made. ``out`` gets the lines of standard output, ``warn`` the reasons why a
    directory is left out.

    Raises:
        KjbodError: one line; nothing was changed unless the failure was in writing.
    """
    plan = plan_format(config, options, rng)
    _require_distinct(config.directories)
    with _alone(config.directories):
        _format(plan, config, options, rng=rng, clock=clock, out=out, warn=warn)


@contextlib.contextmanager
def _alone(directories: Sequence[str]) -> Iterator[None]:
    """While no other run formats a directory beside one of these: it waits until that is over, and finds what it left.

    Locked is what the directories lie in (``flock(2)``), since they may not be there yet and nothing may be left in
    them; what cannot be opened, or cannot be locked, as on some network file systems, is not.
    """
    with contextlib.ExitStack() as held:
        for place in sorted({_existing(Path(directory).absolute().parent) for directory in directories}):
            with contextlib.suppress(OSError):
                descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _existing(path: Path) -> Path:
    """The path, or the first above it that there is."""
    return next((each for each in (path, *path.parents) if each.is_dir()), Path("/"))


def _below_a_mount_point(log_dirs: Sequence[str], new: Collection[str]) -> list[str]:
    """New directories of ``log_dirs`` that lie on the root file system, where others have disks of their own. An agent
    that knew a disk there refuses them; kafka-storage, and a first start, cannot know."""
    devices: dict[str, int] = {}
    for path in (*log_dirs, "/"):
        with contextlib.suppress(OSError):
            devices[path] = _existing(Path(path).absolute()).stat().st_dev
    root = devices.pop("/", None)
    apart = any(device != root for device in devices.values())
    return [path for path in log_dirs if apart and path in new and devices.get(path) == root]


def _require_distinct(directories: Sequence[str]) -> None:
    """Neither a broker nor an agent starts on two paths of the same directory."""
    seen: dict[str, str] = {}
    for path in sorted(directories):
        other = seen.setdefault(os.path.realpath(path), path)
        if other != path:
            raise StorageToolError(
                f"{other} and {path} are the same directory {os.path.realpath(path)}: name it by one path in log.dirs "
                "and metadata.log.dir; nothing was formatted"
            )


def _require_metadata_disk(config: Config) -> None:
    """Nothing is formatted in the place of the metadata directory while its disk is not mounted."""
    memory = Path(config.kjbod_state_dir) / KNOWN_DIRECTORIES_NAME
    try:
        known = parse_document(read_file(memory, bytes_max=KNOWN_DIRECTORIES_BYTES_MAX))
        one = known["directories"][config.metadata_log_dir] if known["node_id"] == config.node_id else {}
        mount_point = one["mount_point"]
        if not isinstance(mount_point, str) or os.path.ismount(mount_point):
            return
        directory_id = str(one["directory_id"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # it is only a memory
    raise StorageToolError(
        f"{config.metadata_log_dir} was the metadata directory {directory_id} at the last start, on the disk of "
        f"{mount_point}, where nothing is mounted now: mount its disk on {mount_point} first; to begin a new cluster "
        f"without it, take it out of {memory}. Nothing was formatted"
    )


def _format(
    plan: FormatPlan,
    config: Config,
    options: FormatOptions,
    *,
    rng: random.Random,
    clock: Clock,
    out: Print,
    warn: Print,
) -> None:
    ensemble = read_ensemble(config.directories)
    verify_ensemble(ensemble, cluster_id=options.cluster_id, node_id=config.node_id)
    if ensemble.properties and not options.ignore_formatted:
        raise StorageToolError(
            f"Log directory {min(ensemble.properties)} is already formatted. "
            "Use --ignore-formatted to ignore this directory and format the others."
        )
    for directory, reason in sorted(ensemble.errors.items()):
        warn(reason)
        out(f"I/O error trying to read log directory {directory}. Ignoring...")
    if not ensemble.empty and not ensemble.properties:
        raise StorageToolError("No available log directories to format.")
    if config.metadata_log_dir in ensemble.empty and "controller" in config.process_roles:
        _require_metadata_disk(config)
    for directory in sorted(ensemble.empty):
        _require_way(directory)
    _add_missing_ids(plan, ensemble, rng, clock, out)
    for path in _below_a_mount_point(config.log_dirs, ensemble.empty):
        warn(f"{path} lies on the file system of /, and not all of log.dirs do: is its disk mounted?")
    if ensemble.empty:
        _format_empty(plan, ensemble, rng, clock, out)
    else:
        out("All of the log directories are already formatted.")


def _require_way(directory: str) -> None:
    """Require that no link on the way to the directory leads nowhere: it would be made where its disk is not.

    Raises:
        StorageToolError: names the link. Nothing was formatted.
    """
    path = Path(directory).absolute()
    for place in (*reversed(path.parents), path):
        try:
            if place.is_symlink() and not place.exists():
                raise StorageToolError(
                    f"{place} is a link to {place.readlink()}, which leads nowhere: mount the disk that it leads to, "
                    f"or remove the link, then format {directory} again. Nothing was formatted"
                )
        except OSError:
            return  # whether it may be used is found when it is written


def _add_missing_ids(plan: FormatPlan, ensemble: Ensemble, rng: random.Random, clock: Clock, out: Print) -> None:
    """KIP-858: formatted directories from before directory ids get one."""
    for directory, meta in with_directory_ids(ensemble, rng).items():
        named = plan.named_directory_id(directory)
        meta = meta if named is None else replace(meta, directory_id=named)
        out(f"Adding directory.id {meta.directory_id} to {directory}/{META_PROPERTIES_NAME}.")
        _write_meta(directory, meta, clock)


def _format_empty(plan: FormatPlan, ensemble: Ensemble, rng: random.Random, clock: Clock, out: Print) -> None:
    release = ""
    if plan.bootstrap:
        records = ", ".join(f"ApiMessageAndVersion({_java_text(record)} at version 0)" for record in plan.records)
        out(
            f"Bootstrap metadata: BootstrapMetadata(records=[{records}], "
            f"metadataVersionLevel={plan.release}, source=format command)"
        )
        release = f" with metadata.version {versions.release_name(plan.release)}"
    used = {meta.directory_id for meta in ensemble.properties.values() if meta.directory_id is not None}
    used |= {voter.directory_id for voter in plan.voters.values()}
    for directory in sorted(ensemble.empty):
        out(f"Formatting {plan.kind(directory)} {directory}{release}.")
        directory_id = plan.named_directory_id(directory) or random_directory_id(rng, used)
        used.add(directory_id)
        _format_one(plan, directory, directory_id, clock)


def _format_one(plan: FormatPlan, directory: str, directory_id: Uuid, clock: Clock) -> None:
    root = Path(directory)
    now_ms = clock.wall_ms()
    try:
        make_directories(root)
        if plan.bootstrap and not plan.in_snapshot:
            bootstrap = root / BOOTSTRAP_CHECKPOINT_NAME
            write_checkpoint(bootstrap, header_timestamp_ms=0, kraft=None, records=plan.records, timestamp_ms=now_ms)
        if directory == plan.metadata_log_dir and (plan.voters or (plan.is_controller and plan.in_snapshot)):
            partition = root / METADATA_PARTITION_NAME
            partition.mkdir(exist_ok=True)
            fsync_directory(root)
            kraft = (plan.kraft_version, plan.voter_set()) if plan.kraft_version else None
            records = plan.records if plan.in_snapshot else ()
            path = partition / FIRST_SNAPSHOT_NAME
            write_checkpoint(path, header_timestamp_ms=now_ms, kraft=kraft, records=records, timestamp_ms=now_ms)
    except OSError as error:
        raise _write_error(directory, error) from None
    except KjbodError as error:
        raise StorageToolError(f"{_WRITE_ERROR} {directory}: {error}: {_WRITE_REMEDY}") from None
    # Last, so that a directory counts as formatted only when all of it is there.
    _write_meta(directory, replace(plan.meta, directory_id=directory_id), clock)


def _write_meta(directory: str, meta: MetaProperties, clock: Clock) -> None:
    moment = datetime.fromtimestamp(clock.wall_ms() / 1000).astimezone()
    try:
        write_atomically(Path(directory) / META_PROPERTIES_NAME, render_meta_properties(meta, moment), mode=0o666)
    except OSError as error:
        raise _write_error(directory, error) from None


def _write_error(directory: str, error: OSError) -> StorageToolError:
    where = f" ({error.filename})" if error.filename else ""
    return StorageToolError(f"{_WRITE_ERROR} {directory}: {error.strerror}{where}: {_WRITE_REMEDY}")


# Reading


def read_ensemble(directories: Sequence[str], metadata_log_dir: str | None = None) -> Ensemble:
    """Read the ``meta.properties`` of each directory.

    Raises:
        MetaPropertiesError: no directories.
    """
    contents = {directory: _read_meta(directory) for directory in directories}
    return load_ensemble(contents, metadata_log_dir=metadata_log_dir)


def _read_meta(directory: str) -> bytes | OSError | None:
    try:
        with open(f"{directory}/{META_PROPERTIES_NAME}", "rb") as file:
            return file.read(META_PROPERTIES_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error


# info


@contextlib.contextmanager
def _waiting_for(directory: str, warn: Print) -> Iterator[None]:
    """Say so when a directory takes long: the thread that reads may be stuck in the kernel, for good."""
    said = f"{directory} does not answer: its disk may hang (kjbod status and log-dirs ask the agent, and no disk)"
    timer = threading.Timer(SILENT_S, warn, (said,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def describe_directories(config: Config, out: Print, warn: Print) -> int:
    """``kafka-storage info``: print what is in the directories and what is wrong with them. ``warn`` gets the one that
    is waited for, and those without a directory.id.

    Returns the exit code: 1 when there are problems.
    """
    problems: list[str] = []
    found: list[str] = []
    first: MetaProperties | None = None
    command = format_command(config.source, dynamic_controller=config.is_dynamic_controller)
    for directory in config.directories:
        with _waiting_for(directory, warn):
            if (problem := _directory_problem(directory)) is not None:
                problems.append(problem)
                continue
            found.append(directory)
            meta = _load_meta(directory, command, problems, warn)
        if meta is not None and first is not None:
            if meta.cluster_id != first.cluster_id:
                problems.append("Mismatched cluster IDs between storage directories.")
            elif meta.node_id != first.node_id:
                problems.append("Mismatched node IDs between storage directories.")
        first = first or meta
    if first is not None and first.version == 0:
        problems.append(
            "The kafka configuration file appears to be for a cluster in KRaft mode, but the directories are "
            "formatted for legacy mode."
        )
    _print_block(out, ("Found log directory:", "Found log directories:"), found)
    if first is not None:
        out(f"Found metadata: {first}")
        out("")
    _print_block(out, ("Found problem:", "Found problems:"), problems)
    return 1 if problems else 0


def _directory_problem(directory: str) -> str | None:
    try:
        if not Path(directory).is_dir():
            return f"{directory} is not a directory" if Path(directory).exists() else f"{directory} does not exist"
    except OSError as error:
        return f"Error loading {directory}/{META_PROPERTIES_NAME}: {error.strerror}"
    return None


def _load_meta(directory: str, command: str, problems: list[str], warn: Print) -> MetaProperties | None:
    content = _read_meta(directory)
    where = f"{directory}/{META_PROPERTIES_NAME}"
    if content is None:
        problems.append(f"{directory} is not formatted.")
    elif isinstance(content, OSError):
        problems.append(f"Error loading {where}: {content.strerror}")
    else:
        trouble = trouble_with(content, directory, command)
        try:
            meta = parse_meta_properties(content, where)
        except MetaPropertiesError as error:
            problems.append(trouble or str(error))
            return None
        if trouble is not None and meta.node_id is not None and meta.cluster_id is not None:
            warn(trouble)  # without a directory.id, which is as good for a broker
        elif trouble is not None:
            problems.append(trouble)
        return meta
    return None


def _print_block(out: Print, headings: tuple[str, str], lines: Sequence[str]) -> None:
    if not lines:
        return
    out(headings[0] if len(lines) == 1 else headings[1])
    for line in lines:
        out(f"  {line}")
    out("")


# version-mapping, feature-dependencies


def print_version_mapping(release_version: str | None, out: Print) -> None:
    """``kafka-storage version-mapping``.

    Raises:
        StorageToolError: no such release.
    """
    text = versions.release_name(versions.LATEST) if release_version is None else release_version
    level = parse_release(text)
    for name, feature_level in versions.version_mapping(level).items():
        out(f"{name}={feature_level}" + (f" ({text})" if name == versions.METADATA_VERSION else ""))


def print_feature_dependencies(features: Sequence[str], out: Print) -> None:
    """``kafka-storage feature-dependencies``.

    Raises:
        StorageToolError: an unknown feature or level.
    """
    for text in features:
        name, equals, level_text = (part.strip() for part in text.partition("="))
        if not equals:
            raise StorageToolError(
                f"Invalid feature format: {text}. Expected format: 'feature=version' (e.g. 'group.version=1')"
            )
        level = _int(level_text, -(2**15), 2**15 - 1)
        if level is None:
            raise StorageToolError(f"Invalid version format: {level_text} for feature {name}")
        if name not in versions.UNDERSTOOD_FEATURES:
            raise StorageToolError(f"Unknown feature: {name}")
        least, most = versions.UNDERSTOOD_FEATURES[name]
        if name == versions.METADATA_VERSION:
            if not least <= level <= most:
                raise StorageToolError(f"Unknown metadata.version {level}")
            out(f"{name}={level} ({versions.release_name(level)}) has no dependencies.")
            continue
        if not least <= level <= most:
            raise StorageToolError(f"Feature level {level} is not supported for feature {name}")
        _print_dependencies(name, level, out)


def _print_dependencies(name: str, level: int, out: Print) -> None:
    dependencies = versions.dependencies(name, level)
    out(f"{name}={level} requires:" if dependencies else f"{name}={level} has no dependencies.")
    for dependency, needed in dependencies.items():
        release = f" ({versions.release_name(needed)})" if dependency == versions.METADATA_VERSION else ""
        out(f"    {dependency}={needed}{release}")
