"""Owner of the log directories, and whether the running broker is the broker of ``server.properties``. Pure.

A guard reads ``meta.properties`` itself, finds the process that holds ``.lock``, and follows the registration of its
node id. If one of these does not match the file, the guard only watches disks, and logs the mismatch in one line:

===============================================  =====================================================================
found                                            result
===============================================  =====================================================================
a directory of another node or cluster, without  the guard does not watch that directory, and writes nothing into it.
an id, or with the id of another directory       The guard watches the other directories
no process holds ``.lock``                       no broker runs
a process that is no Kafka broker holds it       the line names the process: a kjbod agent, or another program
a broker with another file, or with              the line names the difference
``--override`` of a key that matters here
a broker that started after the file changed     the line names the key, and asks for a restart of the guard: another
..                                               disk may have the metadata log
the registration is an agent's, or has           the line names the difference
directories that are not here
===============================================  =====================================================================
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from kjbod.ids import NO_CLUSTER_ID, Uuid, is_agent_incarnation
from kjbod.kafka_command_line import MAIN_CLASSES, after_main_class, file_argument
from kjbod.meta_properties import MetaProperties, format_command, parse_meta_properties, trouble_with
from kjbod_guard.observing import Observed
from kjbod_host.storage.api import LoadedDirectory

FORMAT: Final = format_command("server.properties", dynamic_controller=False)
DECISIVE_KEYS: Final = ("broker.id", "log.dir", "log.dirs", "metadata.log.dir", "node.id", "process.roles")
"""Keys that identify a broker, or say where its directories are."""
COMPARED_KEYS: Final = (*DECISIVE_KEYS, "inter.broker.listener.name", "listener.security.protocol.map", "listeners")
"""Keys that must not change between the guard's start and the broker's start: :data:`DECISIVE_KEYS`, and the keys of
the listener that the guard asks."""


# ------------------------------------------------------------------------------------------------------ the directories


class Owned(Struct, frozen=True):
    """A directory of this broker."""

    path: str
    directory_id: Uuid
    cluster_id: str
    loaded: LoadedDirectory


class Heads(Struct, frozen=True):
    """Directories that were read: this broker's directories, and why the others are not this broker's, by path."""

    owned: Mapping[str, Owned]
    foreign: Mapping[str, str]

    @property
    def cluster_id(self) -> str | None:
        """Cluster id of this broker; None until one of its directories was read."""
        return next((one.cluster_id for one in self.owned.values()), None)


def heads(
    node_id: int, loads: Mapping[str, LoadedDirectory], cluster_id: str | None = None, command: str = FORMAT
) -> Heads:
    """Sort the directories that were read by owner. Without a ``cluster_id``, the cluster id of most directories
    counts. ``command`` is the command that formats a directory."""
    metas: dict[str, MetaProperties] = {}
    foreign: dict[str, str] = {}
    for path, loaded in loads.items():
        found = _meta(path, loaded, command)
        if isinstance(found, MetaProperties):
            metas[path] = found
        else:
            foreign[path] = found
    foreign |= {
        path: f"{path} belongs to node {meta.node_id}, not {node_id}: it is not watched"
        for path, meta in metas.items()
        if meta.node_id != node_id
    }
    own = {path: meta for path, meta in metas.items() if path not in foreign}
    cluster_id = cluster_id or next(
        (one for one, _ in Counter(m.cluster_id for m in own.values()).most_common(1)), None
    )
    owned: dict[str, Owned] = {}
    for path, meta in own.items():
        assert meta.directory_id is not None and meta.cluster_id is not None  # _meta
        twin = next((one.path for one in owned.values() if one.directory_id == meta.directory_id), None)
        if meta.cluster_id != cluster_id:
            whose, ours = (one or NO_CLUSTER_ID for one in (meta.cluster_id, cluster_id))
            foreign[path] = f"{path} belongs to cluster {whose}, not {ours}: it is not watched"
        elif twin is not None:
            foreign[path] = f"{path} has the directory.id {meta.directory_id} of {twin}: it is not watched"
        else:
            owned[path] = Owned(path, meta.directory_id, meta.cluster_id, loads[path])
    return Heads(owned, foreign)


def _meta(path: str, loaded: LoadedDirectory, command: str) -> MetaProperties | str:
    """Return the content of ``meta.properties``, or why it cannot be used."""
    if loaded.meta_properties is None:
        return f"{path} has no meta.properties: is its disk mounted, and formatted?"
    trouble = trouble_with(loaded.meta_properties, path, command)
    return parse_meta_properties(loaded.meta_properties, f"{path}/meta.properties") if trouble is None else trouble


def moved(before: Mapping[str, Uuid], owned: Iterable[Owned]) -> list[str]:
    """Return lines for directories that had another path when they were last seen, as after a swap of two disks."""
    was = {directory_id: path for path, directory_id in before.items()}
    found = []
    for one in owned:
        last = was.get(one.directory_id)
        if last is not None and last != one.path:
            found.append(f"{one.path} has the directory.id {one.directory_id}, which was at {last} before")
    return found


# ----------------------------------------------------------------------------------------------------------- the broker


class Holder(Struct, frozen=True):
    """The process that holds ``.lock`` of a directory.

    Attributes:
        pid: as this process sees it.
        started: start time in clock ticks (proc_pid_stat(5)); with the pid it names one process.
        arguments: its command line, empty where it cannot be read.
        files: real paths of the arguments that are files, by argument.
    """

    pid: int
    started: int
    arguments: tuple[str, ...]
    files: Mapping[str, str]


def name_of(holder: Holder) -> str:
    """Return the short name of a program for people."""
    main = next((one for one in holder.arguments if one in MAIN_CLASSES), None)
    return main or holder.arguments[0].split(" ", 1)[0].rpartition("/")[2]


def why_not_ours(holders: Mapping[str, Holder | None], source: str, properties: Mapping[str, str]) -> str | None:
    """Return why no broker of this file runs here, in one line; None: the broker of this file runs.

    Args:
        holders: process that holds ``.lock``, by path of the directories that could be asked.
        source: real path of the broker's ``server.properties``.
        properties: content of that file.
    """
    found = {holder.pid: holder for holder in holders.values() if holder is not None}
    if not found:
        return "no broker runs: nobody holds .lock in its log directories"
    for holder in found.values():
        if reason := _why_not(holder, source, properties):
            return reason
    if len(found) > 1:
        return f"several processes hold .lock of its log directories: {', '.join(map(str, sorted(found)))}"
    return None


def _why_not(holder: Holder, source: str, properties: Mapping[str, str]) -> str | None:
    who = f"process {holder.pid} holds .lock of its log directories"
    if not holder.arguments:
        return f"{who}, and its command line cannot be read: run the guard as the user of the broker, or as root"
    if holder.arguments[0].startswith("kjbod-keeper"):
        return f"a kjbod agent holds .lock of its log directories (process {holder.pid}): no Kafka broker runs"
    rest = after_main_class(holder.arguments)
    if rest is None:
        return f"{who}, and is no Kafka broker but {name_of(holder)}"
    named = file_argument(rest)
    real = None if named is None else holder.files.get(named)
    if real is not None and real != source:
        return f"the broker (process {holder.pid}) runs with {real}, not with {source}"
    for key, value in overrides(rest).items():
        if key in DECISIVE_KEYS and properties.get(key, "").strip() != value.strip():
            return f"the broker (process {holder.pid}) runs with --override {key}={value}, which the file does not have"
    return None


def why_changed(source: str, read: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Return a key that has changed in the file since the guard read it, as one line; None: no compared key has
    changed.

    Args:
        source: real path of the broker's ``server.properties``.
        read: content of that file when the guard started.
        now: present content of that file.
    """
    key = next((key for key in COMPARED_KEYS if _entries(read, key) != _entries(now, key)), None)
    if key is None:
        return None
    return f"{key} in {source} has changed since the guard read it, and the broker was started since: restart the guard"


def _entries(properties: Mapping[str, str], key: str) -> list[str]:
    """Return the entries of a list in their order; a single value is a list of one."""
    return [one.strip() for one in properties.get(key, "").split(",")]


def overrides(arguments: Sequence[str]) -> dict[str, str]:
    """Return keys and values of ``--override`` on Kafka's command line."""
    found: dict[str, str] = {}
    for number, one in enumerate(arguments):
        text = None
        if one == "--override" and number + 1 < len(arguments):
            text = arguments[number + 1]
        elif one.startswith("--override="):
            text = one.removeprefix("--override=")
        if text is not None and "=" in text:
            key, _, value = text.partition("=")
            found[key.strip()] = value
    return found


def why_not_registered(observed: Observed, owned: Iterable[Uuid], unread: int) -> str | None:
    """Return why the registration is not of the broker on this host, in one line; None: nothing shows that, or the
    metadata are not known.

    Args:
        observed: the metadata.
        owned: directory ids that were read here.
        unread: how many configured directories could not be read.
    """
    if not observed.complete:
        return None
    node, now = observed.broker_id, observed.registration
    if now is None:
        return f"broker {node} is not registered in the cluster"
    if is_agent_incarnation(now.incarnation_id):
        return f"broker {node} is registered by a kjbod agent, not by Kafka"
    here = frozenset(owned)
    elsewhere = [one for one in now.log_dirs if one not in here]
    if len(elsewhere) > unread:
        return f"broker {node} has registered the directory {elsewhere[0]}, which is not here"
    return None


def outdated(observed: Observed, unread: Mapping[str, Uuid], read: Iterable[Uuid], unwatched: int) -> list[str]:
    """Return the paths where the guard remembers a directory that was replaced: the broker has registered another one,
    formatted while no guard ran.

    Args:
        observed: the metadata.
        unread: directory ids that are known from memory alone, by path.
        read: directory ids that were read here.
        unwatched: number of configured directories that are neither remembered nor read.
    """
    if not observed.complete or observed.registration is None:
        return []
    registered = observed.registration.log_dirs
    here = {*unread.values(), *read}
    if sum(one not in here for one in registered) <= unwatched:
        return []  # the unwatched directories may be the registered ones, and the remembered ones offline
    return [path for path, directory_id in unread.items() if directory_id not in registered]
