"""Directories and the replicas in them, and what the table (:mod:`kjbod_agent.replicas.table`) says of each.

:class:`Inventory` is what is known of the disks: as read when each directory was loaded, and as changed by this process
since. It turns a replica that the metadata give to this broker into a case of the table, and the table's action into a
:class:`Decision` with a directory. No I/O.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod_agent.replicas.choice import Chooser
from kjbod_agent.replicas.strays import NO_TOPIC_ID, SUPERSEDED, WRONG_NAME
from kjbod_agent.replicas.table import Action, Assigned, Found, Hidden, Rule, look_up
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import Replica, ReplicaSuffix

NAME_BYTES_MAX: Final = 255
PREFERRED_MAX: Final = 10_000
"""Wishes for replicas that are still to come."""

_A, _F, _H = Assigned, Found, Hidden


class Wanted(Struct, frozen=True):
    """A replica of this broker, as the metadata have it."""

    partition: TopicIdPartition
    topic: str
    assigned: Uuid
    new: bool
    """The broker got the replica while this process was running: no directory can hold a copy that counts."""

    @property
    def name(self) -> str:
        """Name of the replica's directory."""
        return f"{self.topic}-{self.partition.partition}"


class Claim(Struct, frozen=True):
    """Something that has the name of a replica, or is its copy under another name, and cannot be used as a copy.

    Attributes:
        reason: why not, in words that follow its path.
        is_directory: whether the object is a directory: only a directory can be renamed.
        misnamed: whether its name alone is the matter.
        topic_id: of one that is misnamed.
    """

    reason: str
    is_directory: bool = True
    misnamed: bool = False
    topic_id: Uuid | None = None

    def remedy(self, wanted: "Wanted") -> str:
        """Remedy for a person, in words."""
        if self.misnamed:
            return f"rename it to {wanted.name}"
        if not self.is_directory and "symbolic link" in self.reason:
            return (
                "stop the agent, and put the directory that it leads to in its place, or remove the link to give it up"
            )
        if not self.is_directory:
            return "move it out of the log directory"
        return (
            f"repair it in its place (the topic id of {wanted.topic} is {wanted.partition.topic_id}); or move it out "
            "of the log directory, if its records may be lost"
        )


class StrayCopy(Struct, frozen=True):
    """A copy that does not count, and must be renamed to ``-stray``. The copy is no longer in the inventory."""

    directory_id: Uuid
    name: str
    reason: str
    claim: Claim | None = None
    """Of something that cannot be used as a copy."""


class Decision(Struct, frozen=True):
    """Decision about a replica; ``directory_id``: where to create it, what to assign, or where its future one lies."""

    wanted: Wanted
    action: Action
    why: str
    directory_id: Uuid | None = None
    assign: bool = False
    """Whether the controller has to be told ``directory_id`` (after the creation, where there is one)."""
    future: str = ""
    """For RESUME: the name of the future replica."""
    aside: tuple[StrayCopy, ...] = ()
    taken: bool = False
    """Whether the replica is not made because its name is taken. ``why`` names the other object, and the remedy."""


class Comparison(Struct, frozen=True):
    """Difference between a list of a directory and the inventory.

    Attributes:
        vanished: current replicas that are not there any more, and what is in their place; empty: nothing.
        present: the other current replicas.
        gone: names that were taken and are free.
        changed: directories of replicas that could not be used before, or were not there: to be read again.
    """

    vanished: Mapping[TopicIdPartition, str]
    present: tuple[Replica, ...]
    gone: tuple[str, ...]
    changed: tuple[Replica, ...]


class _Contents(Struct):
    """Known contents of one directory."""

    path: str
    names: dict[str, Uuid | None] = field(default_factory=dict)
    """Topic id by name of a replica directory, whatever its suffix; None: without a readable topic id."""
    replicas: int = 0
    """Current and future ones, and those being created: what "emptiest" counts."""


Future = tuple[Uuid, str]
"""Directory and full directory name of a future replica."""


class Inventory:
    """Directories and the replicas in them, as read at the start and changed by this process since. No I/O.

    Args:
        online: id and path of the directories that were read, or are being read, in the order of ``log.dirs``.
        unread: ids of the configured directories that could not be read, None for an id that nobody remembers.
        loading: those of ``online`` whose contents are not known yet: :meth:`add_directory` or :meth:`fail` follows.
        chooser: where new replicas go.
    """

    def __init__(
        self,
        online: Iterable[tuple[Uuid, str]],
        unread: Iterable[Uuid | None] = (),
        loading: Iterable[Uuid] = (),
        chooser: Chooser | None = None,
    ) -> None:
        self._contents = {directory: _Contents(path) for directory, path in online}
        self._alone = {directory: (directory,) for directory in self._contents}
        """One tuple for all replicas that lie in one directory only."""
        self._failed: set[Uuid] = set()
        self._unread = list(unread)
        self._loading = set(loading)
        self.chooser = Chooser() if chooser is None else chooser
        self._copies: dict[TopicIdPartition, tuple[Uuid, ...]] = {}
        self._futures: dict[TopicIdPartition, tuple[Future, ...]] = {}
        self._moving: set[TopicIdPartition] = set()
        self._creating: dict[TopicIdPartition, tuple[Uuid, str]] = {}
        self._made: dict[TopicIdPartition, Uuid] = {}
        """Where this process made a replica, of which an older copy may still turn up, or knew one when it did."""
        self._leaving: dict[TopicIdPartition, set[Uuid]] = {}
        """Where copies lie that this broker no longer has, and that have not been renamed yet."""
        self._departing: dict[str, set[Uuid]] = {}
        """Names of replicas, and the directories in which something that has such a name is to be renamed."""
        self._claims: dict[str, dict[tuple[Uuid, str], Claim]] = {}
        """Claims by the name that they take, then by directory and own name."""
        self._claimed: dict[tuple[Uuid, str], str] = {}
        """The name that each of these takes."""
        self._added: set[Uuid] = set()
        """Directories that came when decisions had been made without them."""
        self._avoid: dict[TopicIdPartition, set[Uuid]] = {}
        self._preferred: dict[tuple[str, int], Uuid] = {}

    # ---- reading

    @property
    def online(self) -> tuple[Uuid, ...]:
        """Directories that take replicas, in the order of ``log.dirs``."""
        return tuple(d for d in self._contents if d not in self._failed and d not in self._loading)

    @property
    def loading(self) -> Collection[Uuid]:
        """Directories whose contents are not known yet."""
        return self._loading

    @property
    def some_offline(self) -> bool:
        """Whether a configured directory is offline (AlterReplicaLogDirs makes no future replica then)."""
        return bool(self._failed or self._unread)

    def is_offline(self, directory_id: Uuid) -> bool:
        """Whether it is a directory of this broker that failed, or that could not be read."""
        return directory_id in self._failed or directory_id in self._unread

    @property
    def creating(self) -> Collection[TopicIdPartition]:
        """Creations under way."""
        return self._creating

    @property
    def moving(self) -> Collection[TopicIdPartition]:
        """Moves in progress: between :meth:`begin_move` and :meth:`end_move` or :meth:`promoted`."""
        return self._moving

    def __contains__(self, directory_id: Uuid) -> bool:
        """Whether it is one of the directories that were read or are being read, failed ones included."""
        return directory_id in self._contents

    def path(self, directory_id: Uuid) -> str:
        """The path of a directory that was read, or is being read."""
        return self._contents[directory_id].path

    def replica_count(self, directory_id: Uuid) -> int:
        """Current and future replicas in a directory, those being created included."""
        contents = self._contents.get(directory_id)
        return 0 if contents is None else contents.replicas

    def locate(self, partition: TopicIdPartition) -> Uuid | None:
        """The directory, online or failed, where a replica lies, is being created, or is being promoted; None when
        nowhere known."""
        copies = self._copies.get(partition)
        if copies:
            return copies[0]
        creating = self._creating.get(partition)
        if creating is not None:
            return creating[0]
        futures = self._futures.get(partition) if partition in self._moving else None
        return futures[0][0] if futures else None

    def copies(self, partition: TopicIdPartition) -> tuple[Uuid, ...]:
        """The directories, online or failed, in which current copies lie."""
        return self._copies.get(partition, ())

    def future(self, partition: TopicIdPartition) -> Future | None:
        """Directory and full directory name of its future replica, in a directory that is online."""
        return next(iter(self._usable_futures(partition)), None)

    def futures(self) -> Iterator[tuple[TopicIdPartition, Future]]:
        """All future replicas in directories that are online."""
        for partition in list(self._futures):
            future = self.future(partition)
            if future is not None:
                yield partition, future

    def may_lie_elsewhere(self, partition: TopicIdPartition) -> bool:
        """Whether a copy of it is known, current or future, or on its way, or may lie where nobody can look."""
        known = partition in self._copies or partition in self._futures
        on_its_way = partition in self._creating or partition in self._moving
        return known or on_its_way or bool(self._loading) or self.some_offline

    def left_behind(self, partition: TopicIdPartition) -> tuple[tuple[Uuid, str], ...]:
        """Directory and name of what lies as ``-delete`` or ``-stray`` in a directory that is online and has the topic
        id and the number of this partition: a move that was interrupted may need what it copied from."""
        end = f"-{partition.partition}."
        return tuple(
            (directory, name)
            for directory in self.online
            for name, topic_id in self._contents[directory].names.items()
            if topic_id == partition.topic_id and name.endswith(("-delete", "-stray")) and end in name
        )

    def source_of(self, future: Future) -> Uuid | None:
        """Directory of the replica that a future one was copied from, renamed by a promotion that was interrupted:
        ``-delete`` with the same 32 digits, in another directory that is online; None: nowhere."""
        directory, name = future
        topic_id = self._contents[directory].names.get(name)
        stem, _, tail = name.rpartition(".")
        topic, _, number = stem.rpartition("-")
        source = delete_name(topic, int(number), tail.removesuffix("-future"))
        found = (d for d in self.online if self._contents[d].names.get(source) == topic_id)
        return None if topic_id is None else next((d for d in found if d != directory), None)

    def claims(self, name: str) -> Mapping[tuple[Uuid, str], Claim]:
        """Claims on the name of a replica, by directory and own name."""
        return self._claims.get(name, {})

    def claim_of(self, directory_id: Uuid, name: str) -> tuple[str, Claim] | None:
        """The name of a replica that something takes, and why it cannot be used as a copy; None: it does not."""
        taken = self._claimed.get((directory_id, name))
        return None if taken is None else (taken, self._claims[taken][directory_id, name])

    def compare(self, directory_id: Uuid, listed: Mapping[str, Replica], missed: Collection[str]) -> Comparison:
        """Hold what was listed in a directory against what is known of it; ``missed`` are names of replicas that are
        not made because their names are taken. Nothing is changed."""
        names = self._contents[directory_id].names
        vanished, present = {}, []
        here = [name for directory, name in self._claimed if directory == directory_id]
        for name in names:
            if (key := self.current(directory_id, name)) is None:
                if name not in listed and self._is_anothers(directory_id, name):
                    here.append(name)
            elif name not in listed:
                vanished[key] = ""
            elif listed[name].is_directory:
                present.append(listed[name])
            else:
                vanished[key] = listed[name].trouble
        changed = [
            listed[name]
            for name in here
            if name in listed and listed[name].is_directory and not self._claims_of(directory_id, name).misnamed
        ]
        changed += [listed[name] for name in missed if name in listed and name not in names]
        gone = tuple(name for name in here if name not in listed)
        return Comparison(vanished, tuple(present), gone, tuple(changed))

    def current(self, directory_id: Uuid, name: str) -> TopicIdPartition | None:
        """The current replica that has this name there, and is neither being made nor moved; None: there is none."""
        topic_id = self._contents[directory_id].names.get(name)
        if topic_id is None or name.endswith(("-delete", "-stray", "-future")):
            return None
        key = TopicIdPartition(topic_id, int(name.rpartition("-")[2]))
        busy = key in self._creating or key in self._moving
        return key if not busy and directory_id in self._copies.get(key, ()) else None

    def _is_anothers(self, directory_id: Uuid, name: str) -> bool:
        """Whether what has the name of a replica is of a topic that is not here any more, and could not be renamed."""
        if (directory_id, name) in self._claimed or name.endswith(("-delete", "-stray", "-future")):
            return False
        return not self.is_replica(directory_id, name, int(name.rpartition("-")[2]))

    def _claims_of(self, directory_id: Uuid, name: str) -> Claim:
        return self._claims[self._claimed[directory_id, name]][directory_id, name]

    def names(self, directory_id: Uuid) -> dict[str, Uuid | None]:
        """Topic id by name of all replica directories in a directory, whatever their suffix; not to be changed."""
        return self._contents[directory_id].names

    # ---- changing

    def add(
        self,
        directory_id: Uuid,
        name: str,
        partition: int,
        topic_id: Uuid | None,
        suffix: ReplicaSuffix,
        claim: Claim | None = None,
    ) -> None:
        """A replica directory was found when a directory was loaded; ``claim`` where it cannot be used as a copy."""
        contents = self._contents[directory_id]
        contents.names[name] = topic_id
        if suffix in ("", "future"):
            contents.replicas += claim is None or claim.is_directory
        if topic_id is None:
            return
        key = TopicIdPartition(topic_id, partition)
        if suffix == "":
            others = self._copies.get(key)
            if others and directory_id in others:
                return  # under two names
            self._copies[key] = (*others, directory_id) if others else self._alone[directory_id]
            if others and directory_id in self._added:
                self._made.setdefault(key, others[0])
        elif suffix == "future":
            self._futures[key] = (*self._futures.get(key, ()), (directory_id, name))

    def claim(self, directory_id: Uuid, name: str, claim: Claim, taken: str) -> None:
        """Note something that takes the name of a replica and cannot be used as a copy."""
        self._contents[directory_id].names[name] = None
        self._claims.setdefault(taken, {})[directory_id, name] = claim
        self._claimed[directory_id, name] = taken

    def misname(self, directory_id: Uuid, name: str, partition: TopicIdPartition, wanted: str) -> None:
        """Note a copy, current or future, with another name than Kafka's: it takes the name, and is no copy."""
        self._set_futures(partition, tuple(f for f in self._futures.get(partition, ()) if f != (directory_id, name)))
        if self._contents[directory_id].names.get(wanted) != partition.topic_id:
            copies = self._copies.get(partition, ())
            self._set_copies(partition, tuple(d for d in copies if d != directory_id))
        reason = f"it is a copy of {wanted} under another name"
        self.claim(directory_id, name, Claim(reason, misnamed=True, topic_id=partition.topic_id), wanted)

    def _unclaim(self, directory_id: Uuid, name: str) -> None:
        taken = self._claimed.pop((directory_id, name), None)
        if taken is not None:
            del self._claims[taken][directory_id, name]
            if not self._claims[taken]:
                del self._claims[taken]

    def add_directory(self, directory_id: Uuid, path: str, replicas: Iterable[Replica]) -> None:
        """A directory was added while running, or is loaded now: what lies in it. From here on it is online."""
        self.begin_directory(directory_id, path)
        for replica in replicas:
            self.put(directory_id, replica)
        self._loading.discard(directory_id)

    def put(self, directory_id: Uuid, replica: Replica) -> None:
        """:meth:`add` what a storage agent has found."""
        claim = Claim(replica.trouble, replica.is_directory) if replica.trouble else None
        self.add(directory_id, replica.name, replica.partition, replica.topic_id, replica.suffix, claim)
        if claim is not None and replica.suffix in ("", "future"):
            self.claim(directory_id, replica.name, claim, f"{replica.topic}-{replica.partition}")

    def begin_directory(self, directory_id: Uuid, path: str) -> None:
        """A directory is being loaded. It takes nothing, and may hold anything, until :meth:`loaded`."""
        if directory_id in self._failed:
            self.forget_directory(directory_id)  # it is read anew
        if directory_id in self._unread:
            self._unread.remove(directory_id)
        if directory_id not in self._loading:
            self._added.add(directory_id)
        self._contents.setdefault(directory_id, _Contents(path))
        self._alone.setdefault(directory_id, (directory_id,))
        self._loading.add(directory_id)

    def loaded(self, directory_id: Uuid) -> None:
        """All that lies in a directory was told with :meth:`add`."""
        self._loading.discard(directory_id)

    def forget_directory(self, directory_id: Uuid | None) -> None:
        """Its disk was replaced: what was known of it no longer counts, and it hides nothing. None: one of those that
        could not be read, and whose id nobody remembers."""
        if directory_id in self._unread:
            self._unread.remove(directory_id)
        if directory_id is None or directory_id not in self._contents:
            return
        self.fail(directory_id)
        if directory_id in self._unread:  # it had not been loaded
            self._unread.remove(directory_id)
        self._failed.discard(directory_id)
        self._added.discard(directory_id)
        self._preferred = {key: wanted for key, wanted in self._preferred.items() if wanted != directory_id}
        del self._contents[directory_id], self._alone[directory_id]
        for each in [each for each in self._claimed if each[0] == directory_id]:
            self._unclaim(*each)
        for partition, copies in [(p, c) for p, c in self._copies.items() if directory_id in c]:
            self._set_copies(partition, tuple(d for d in copies if d != directory_id))
        for partition, futures in list(self._futures.items()):
            self._set_futures(partition, tuple(f for f in futures if f[0] != directory_id))
        self._made = {p: d for p, d in self._made.items() if d != directory_id}

    def fail(self, directory_id: Uuid) -> None:
        """A directory failed. What lies in it is remembered; what was being created in it is not there. Before it was
        loaded: it may hold anything."""
        if directory_id in self._loading:
            self._loading.discard(directory_id)
            self._unread.append(directory_id)
        self._failed.add(directory_id)
        for partition in [p for p, (d, _) in self._creating.items() if d == directory_id]:
            self._uncreate(partition)
        for partition in [p for p, leaving in self._leaving.items() if directory_id in leaving]:
            self.renamed_away(partition, directory_id)
        for name in [name for name, leaving in self._departing.items() if directory_id in leaving]:
            self.departed(directory_id, name)

    def created(self, partition: TopicIdPartition) -> Uuid | None:
        """A creation is complete: where; None when the directory failed in the meantime."""
        creating = self._creating.pop(partition, None)
        if creating is None:
            return None
        directory = creating[0]
        others = self._copies.get(partition)
        self._copies[partition] = (directory, *others) if others else self._alone[directory]
        if self._unread or self._loading:
            self._made[partition] = directory
        self._avoid.pop(partition, None)
        return directory

    def give_up_offline(self, partition: TopicIdPartition) -> None:
        """A person takes another copy than those in directories that failed: when one of them is back, its copy is one
        too many."""
        copies = tuple(d for d in self._copies.get(partition, ()) if d not in self._failed)
        self._set_copies(partition, copies)

    def not_created(self, partition: TopicIdPartition) -> None:
        """A creation failed: the next decision avoids that directory if it may choose. When it failed in all of them
        they get their turn again."""
        creating = self._creating.get(partition)
        if creating is not None:
            self._uncreate(partition)
            avoid = self._avoid.setdefault(partition, set())
            avoid.add(creating[0])
            if avoid.issuperset(self.online):
                self._avoid[partition] = {creating[0]}

    def prefer(self, topic: str, partition: int, directory_id: Uuid) -> None:
        """A person wants this replica there (``LogManager.preferredLogDirs``): wins when it is created, and is cleared
        then. Of more than :data:`PREFERRED_MAX` the oldest is forgotten: clients may name topics that never come.
        """
        self._preferred.pop((topic, partition), None)
        self._preferred[topic, partition] = directory_id  # the last in line now
        if len(self._preferred) > PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]

    def remove(self, partition: TopicIdPartition, name: str) -> tuple[tuple[Uuid, str], ...]:
        """A replica is no longer this broker's: directory and name of what is to be renamed, in directories that are
        online. Forgotten here. A future replica that is being moved is the mover's to remove."""
        reachable = self.forget(partition, name)
        if reachable:
            self._leaving.setdefault(partition, set()).update(directory for directory, _ in reachable)
        return reachable

    def forget(self, partition: TopicIdPartition, name: str) -> tuple[tuple[Uuid, str], ...]:
        """As :meth:`remove`, for what is kept under another name: nobody need wait for it."""
        self._avoid.pop(partition, None)
        self._made.pop(partition, None)
        copies = tuple((directory, name) for directory in self._copies.get(partition, ()))
        futures = () if partition in self._moving else self._futures.get(partition, ())
        self._copies.pop(partition, None)
        if partition not in self._moving:
            self._futures.pop(partition, None)
        for directory, each in (*copies, *futures):
            self._release(directory, each)
        return tuple(each for each in (*copies, *futures) if each[0] not in self._failed)

    def renamed_away(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """Note that the replica that :meth:`remove` named was renamed, or could not be. Review the partition: it may be
        this broker's again, and waits then."""
        left = self._leaving.get(partition, set())
        left.discard(directory_id)
        if not left:
            self._leaving.pop(partition, None)

    def departs(self, directory_id: Uuid, name: str) -> None:
        """Note that something there is to be renamed, so that this name of a replica is free. The rename may be
        refused, and the name is taken then: no replica has it in another directory before :meth:`departed`."""
        self._departing.setdefault(name, set()).add(directory_id)

    def departed(self, directory_id: Uuid, name: str) -> None:
        """Note that it was renamed, or could not be. Review what has the name, which may have waited."""
        left = self._departing.get(name, set())
        left.discard(directory_id)
        if not left:
            self._departing.pop(name, None)

    def release(self, directory_id: Uuid, name: str) -> None:
        """A name is free that was taken by something that is no current or future replica."""
        claimed = self.claim_of(directory_id, name)
        self._release(directory_id, name, counted=claimed is not None and claimed[1].is_directory)

    def is_replica(self, directory_id: Uuid, name: str, partition: int) -> bool:
        """Whether what has this name there is a current or future replica, or is being made."""
        topic_id = self._contents[directory_id].names.get(name)
        if topic_id is None:
            return False
        key = TopicIdPartition(topic_id, partition)
        if name.endswith("-future"):
            return (directory_id, name) in self._futures.get(key, ())
        if name.endswith(("-delete", "-stray")):
            return False
        return directory_id in self._copies.get(key, ()) or self._creating.get(key) == (directory_id, name)

    def take_out(self, directory_id: Uuid, name: str, partition: int) -> None:
        """Take a replica, current or future, out of the inventory: it gets another name."""
        topic_id = self._contents[directory_id].names.get(name)
        self._release(directory_id, name)
        if topic_id is None:
            return
        key = TopicIdPartition(topic_id, partition)
        if name.endswith("-future"):
            self._set_futures(key, tuple(f for f in self._futures.get(key, ()) if f != (directory_id, name)))
        else:
            self._set_copies(key, tuple(d for d in self._copies.get(key, ()) if d != directory_id))

    def _release(self, directory_id: Uuid, name: str, *, counted: bool = True) -> None:
        contents = self._contents.get(directory_id)
        if contents is not None and name in contents.names:
            del contents.names[name]
            contents.replicas -= counted
        self._unclaim(directory_id, name)

    def reserve(self, wanted: Wanted, directory_id: Uuid) -> None:
        """A replica is being made there by other means than a decision: as after a decision to create it."""
        contents = self._contents[directory_id]
        contents.replicas += 1
        contents.names[wanted.name] = wanted.partition.topic_id
        self._creating[wanted.partition] = (directory_id, wanted.name)

    def unreserve(self, partition: TopicIdPartition) -> None:
        """:meth:`reserve` was for nothing."""
        if partition in self._creating:
            self._uncreate(partition)

    def occupy(self, directory_id: Uuid, name: str, topic_id: Uuid | None) -> None:
        """A name is taken by something that is no current or future replica."""
        contents = self._contents.get(directory_id)
        if contents is not None:
            contents.names[name] = topic_id

    def _uncreate(self, partition: TopicIdPartition) -> None:
        directory, name = self._creating.pop(partition)
        contents = self._contents[directory]
        contents.replicas -= 1
        if contents.names.get(name) == partition.topic_id:  # else it was found to be taken
            del contents.names[name]

    def _set_copies(self, partition: TopicIdPartition, copies: tuple[Uuid, ...]) -> None:
        if copies:
            self._copies[partition] = self._alone[copies[0]] if len(copies) == 1 else copies
        else:
            self._copies.pop(partition, None)

    def _set_futures(self, partition: TopicIdPartition, futures: tuple[Future, ...]) -> None:
        if futures:
            self._futures[partition] = futures
        else:
            self._futures.pop(partition, None)

    # ---- moves

    def begin_move(self, partition: TopicIdPartition, directory_id: Uuid, future_name: str) -> None:
        """A future replica is being made, was made, or was found: it counts as a replica there, and nothing is assigned
        or created for this partition until the move has ended. Where it was known already only that."""
        self._moving.add(partition)
        future = (directory_id, future_name)
        if future not in self._futures.get(partition, ()):
            contents = self._contents[directory_id]
            contents.names[future_name] = partition.topic_id
            contents.replicas += 1
        self._futures[partition] = (future,)

    def end_move(self, partition: TopicIdPartition) -> None:
        """The future replica is gone or was abandoned. Review the partition then."""
        self._moving.discard(partition)
        if copies := self._copies.get(partition):
            self._made[partition] = copies[0]  # it was known before, whatever else has its name
        for directory, name in self._futures.pop(partition, ()):
            self._release(directory, name)

    def source_gone(self, partition: TopicIdPartition) -> None:
        """The current copy was renamed to ``-delete`` by a promotion, its future one has not the plain name yet."""
        for directory in self._copies.pop(partition, ()):
            self._release(directory, self._plain_name(partition))

    def source_back(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """:meth:`source_gone` was undone: the copy in this directory has its plain name again."""
        contents = self._contents[directory_id]
        contents.names[self._plain_name(partition)] = partition.topic_id
        contents.replicas += 1
        self._copies[partition] = self._alone[directory_id]

    def promoted(self, partition: TopicIdPartition) -> None:
        """The future replica became *the* current copy in its directory. The move has ended: review the partition."""
        self._moving.discard(partition)
        plain = self._plain_name(partition)
        directory, name = self._futures.pop(partition)[0]
        for source in self._copies.get(partition, ()):
            self._release(source, plain)
        self.release(directory, name)
        self._contents[directory].names[plain] = partition.topic_id
        self._copies[partition] = self._alone[directory]

    def _plain_name(self, partition: TopicIdPartition) -> str:
        """A future replica has the whole name of its topic, never cut."""
        return self._futures[partition][0][1].rpartition(".")[0]

    # ---- deciding

    def decide(self, wanted: Wanted) -> Decision:
        """Decide what to do about a replica. A decision to create reserves the directory: :meth:`created` or
        :meth:`not_created` must follow. What is to be set aside is forgotten here."""
        partition = wanted.partition
        if partition in self._creating:
            return Decision(wanted, Action.LEAVE, "it is being created")
        if partition in self._moving:
            return Decision(wanted, Action.LEAVE, "it is being moved")
        found = self._found(wanted)
        rule = look_up(self._assigned(wanted.assigned), found, self._hidden(wanted))
        if rule.action is Action.CREATE_AND_ASSIGN and partition in self._leaving:
            # Made elsewhere before that, it would lie in two directories after a crash, and nothing say which counts.
            return Decision(wanted, Action.WAIT, "its copy of before has not been renamed yet")
        match rule.action:
            case Action.CREATE | Action.CREATE_AND_ASSIGN:
                return self._create(wanted, rule)
            case Action.ASSIGN:
                where = self._copies[partition][0]
                return Decision(wanted, rule.action, rule.why, where, assign=True, aside=self._beside(wanted))
            case Action.ASSIGN_LOST:
                why = self._why_taken(wanted) if found is Found.TAKEN else rule.why
                return Decision(wanted, rule.action, why, LOST, assign=True, taken=found is Found.TAKEN)
            case Action.RESUME:
                directory, name = self._chosen_future(wanted)
                return Decision(wanted, rule.action, rule.why, directory, future=name, aside=self._extra(wanted))
            case Action.SET_ASIDE:
                return Decision(wanted, rule.action, rule.why, aside=self._superseded(wanted))
            case Action.REFUSE:
                why = (
                    f"{rule.why}: {self._paths(wanted)}, and the metadata name neither: move the one that is not to "
                    "be kept out of its log directory"
                )
                return Decision(wanted, rule.action, why)
            case Action.LEAVE:
                if found is Found.TAKEN:
                    return Decision(wanted, rule.action, self._why_taken(wanted), taken=True)
                if found is Found.TWICE_DECIDED:  # the first one is said to be where it lies
                    copies = self._copies[partition]
                    self._copies[partition] = (wanted.assigned, *(d for d in copies if d != wanted.assigned))
                return Decision(wanted, rule.action, rule.why, aside=self._beside(wanted))
            case _:
                return Decision(wanted, rule.action, rule.why)

    def _paths(self, wanted: Wanted) -> str:
        copies = self._copies[wanted.partition]
        return " and ".join(f"{self.path(d)}/{wanted.name}" for d in self._contents if d in copies)

    def _create(self, wanted: Wanted, rule: Rule) -> Decision:
        given = wanted.assigned if rule.action is Action.CREATE else None
        if given in self._avoid.get(wanted.partition, ()):
            given = None  # full, as a rule: the metadata are told where it went
        preferred = self._preferred.get((wanted.topic, wanted.partition.partition))
        online = self.online
        directory = next((d for d in (preferred, given) if d in online), None)
        if directory is None:
            directory = self._choose(wanted)
        if directory is None:
            return Decision(wanted, Action.LEAVE, "no directory is online")
        if self._departing.get(wanted.name, {directory}) - {directory}:
            return Decision(wanted, Action.WAIT, "what has its name in another directory has not been renamed yet")
        self._preferred.pop((wanted.topic, wanted.partition.partition), None)
        aside = self._extra(wanted, all_of_them=True)
        self.reserve(wanted, directory)
        self.chooser.placed(directory)
        return Decision(wanted, rule.action, rule.why, directory, assign=directory != wanted.assigned, aside=aside)

    def _choose(self, wanted: Wanted) -> Uuid | None:
        """The best directory; one where the creation failed before only when there is no other."""
        avoid = self._avoid.get(wanted.partition, ())
        online = self.online
        fresh = [d for d in online if d not in avoid]
        counts = {d: self._contents[d].replicas for d in fresh or online}
        return self.chooser.choose(counts)

    # ---- names that are taken

    def _is_taken(self, wanted: Wanted, found: Found) -> bool:
        """Whether something that cannot be used as a copy has its name, in whichever directory."""
        nowhere = found in (_F.NOWHERE, _F.FUTURE_ELSEWHERE)
        claims = self._claims.get(wanted.name, {})
        if wanted.new:  # what lies in a failed directory is older
            claims = {place: claim for place, claim in claims.items() if place[0] not in self._failed}
        if claims and (nowhere or not wanted.new):
            # Of copies elsewhere only those count that this process made, or knew before.
            return self._made.get(wanted.partition) not in self._copies.get(wanted.partition, ())
        return nowhere and bool(self._taken_by_others(wanted))

    def _taken_by_others(self, wanted: Wanted) -> list[Uuid]:
        """Directories in which another topic's replica has its name, which could not be renamed."""
        own = wanted.partition.topic_id
        return [d for d in self.online if self._contents[d].names.get(wanted.name, own) != own]

    def why_taken(self, wanted: Wanted) -> str | None:
        """Claims on the name of a replica in words, with the remedies; None: there are none."""
        return self._why_taken(wanted) if wanted.name in self._claims or self._taken_by_others(wanted) else None

    def _why_taken(self, wanted: Wanted) -> str:
        claims = self._claims.get(wanted.name, {})
        told = [
            f"{self.path(directory)}/{name}: {claim.reason}: {claim.remedy(wanted)}"
            for (directory, name), claim in claims.items()
        ]
        told += [
            f"{self.path(directory)}/{wanted.name}: it belongs to another topic and could not be renamed: move it out "
            "of the log directory"
            for directory in self._taken_by_others(wanted)
            if (directory, wanted.name) not in claims
        ]
        return "; ".join(told)

    # ---- what does not count

    def _chosen_future(self, wanted: Wanted) -> Future:
        """Of several the one where the metadata say, else the first."""
        futures = self._usable_futures(wanted.partition)
        return next((f for f in futures if f[0] == wanted.assigned), futures[0])

    def _usable_futures(self, partition: TopicIdPartition) -> tuple[Future, ...]:
        """Future replicas in directories that are online; not those beside their own current one, which no move
        makes."""
        futures = self._futures.get(partition, ())
        if not futures:
            return ()
        copies = self._copies.get(partition, ())
        return tuple(f for f in futures if f[0] not in self._failed and f[0] not in copies)

    def _extra(self, wanted: Wanted, *, all_of_them: bool = False) -> tuple[StrayCopy, ...]:
        """Future replicas beside the one that counts; forgotten here."""
        futures = [f for f in self._futures.get(wanted.partition, ()) if f[0] not in self._failed]
        kept = () if all_of_them else (self._chosen_future(wanted),)
        extra = [f for f in futures if f not in kept]
        for directory, name in extra:
            self._release(directory, name)
        if extra:
            self._set_futures(wanted.partition, kept)
        reason = "a move that was abandoned: what it was copied from is gone" if all_of_them else "a second future copy"
        return tuple(StrayCopy(directory, name, reason) for directory, name in extra)

    def _beside(self, wanted: Wanted) -> tuple[StrayCopy, ...]:
        """Future replicas beside their own current one, in one directory, which no move makes, and directories that
        have the name of a replica which lies where the metadata say; forgotten here."""
        copies = self._copies.get(wanted.partition, ())
        futures = self._futures.get(wanted.partition, ())
        beside = [f for f in futures if f[0] in copies and f[0] not in self._failed]
        for directory, name in beside:
            self.take_out(directory, name, wanted.partition.partition)
        futures_beside = [
            StrayCopy(directory, name, "a future copy beside its current one") for directory, name in beside
        ]
        return (*futures_beside, *self._claims_beside(wanted))

    def _claims_beside(self, wanted: Wanted) -> Iterator[StrayCopy]:
        if wanted.assigned in self._failed or wanted.assigned not in self._copies.get(wanted.partition, ()):
            return
        for (directory, name), claim in list(self.claims(wanted.name).items()):
            if claim.is_directory and directory not in self._failed:
                self._release(directory, name)
                yield StrayCopy(directory, name, WRONG_NAME if claim.misnamed else NO_TOPIC_ID, claim)

    def _superseded(self, wanted: Wanted) -> tuple[StrayCopy, ...]:
        """The copies that do not count, where they can be renamed; forgotten here."""
        copies = self._copies[wanted.partition]
        counts = self._counting(wanted, copies)
        others = [d for d in copies if d != counts]
        self._copies[wanted.partition] = (counts,) if counts is not None else copies
        reachable = [d for d in others if d not in self._failed]
        for directory in reachable:
            self._release(directory, wanted.name)
        return tuple(StrayCopy(d, wanted.name, SUPERSEDED) for d in reachable)

    def _counting(self, wanted: Wanted, copies: tuple[Uuid, ...]) -> Uuid | None:
        """The copy that counts of several; None when nothing says."""
        if wanted.assigned in copies:
            return wanted.assigned
        made = self._made.get(wanted.partition)
        return made if made in copies else None

    # ---- the three axes

    def _assigned(self, directory: Uuid) -> Assigned:
        named = _NAMED.get(directory)
        if named is not None:
            return named
        if directory in self._unread:
            return _A.UNREAD
        if directory in self._failed:
            return _A.OFFLINE
        if directory not in self._contents:
            # Where nobody remembers the id of an offline directory, it may be that one's.
            return _A.UNREAD if None in self._unread else _A.FOREIGN
        if directory in self._loading:
            return _A.LOADING
        return _A.CORDONED if self.chooser.is_cordoned(directory) else _A.ONLINE

    def _found(self, wanted: Wanted) -> Found:
        found = self._lies(wanted)
        settled = found in (_F.IN_PLACE, _F.IN_PLACE_MOVING, _F.TWICE, _F.TWICE_DECIDED)
        return _F.TAKEN if not settled and self._is_taken(wanted, found) else found

    def _lies(self, wanted: Wanted) -> Found:
        copies = self._copies.get(wanted.partition, ())
        if len(copies) > 1:
            return _F.TWICE if self._counting(wanted, copies) is None else _F.TWICE_DECIDED
        futures = self._usable_futures(wanted.partition)
        if not futures:
            return _F.NOWHERE if not copies else _F.IN_PLACE if copies[0] == wanted.assigned else _F.ELSEWHERE
        here = any(directory == wanted.assigned for directory, _ in futures)
        if not copies:
            if any(self.source_of(future) is not None for future in futures):
                return _F.FUTURE_AND_SOURCE
            return _F.FUTURE_IN_PLACE if here else _F.FUTURE_ELSEWHERE
        if copies[0] == wanted.assigned:
            return _F.IN_PLACE_MOVING
        return _F.ELSEWHERE_MOVING_HERE if here else _F.ELSEWHERE_MOVING

    def _hidden(self, wanted: Wanted) -> Hidden:
        if not wanted.new:
            if self._loading:
                return _H.LOADING
            if self._unread and wanted.partition not in self._made:
                return _H.POSSIBLE
        return _H.RULED_OUT if self._unread or self._failed or self._loading else _H.NONE_OFFLINE


_NAMED: Final[Mapping[Uuid, Assigned]] = {UNASSIGNED: _A.UNASSIGNED, MIGRATING: _A.MIGRATING, LOST: _A.LOST}


def delete_name(topic: str, partition: int, unique: str) -> str:
    """The name of a replica directory that is to be removed: ``topic-0.<32 hex>-delete``, the topic cut so that it has
    255 bytes at most (``UnifiedLog.logDeleteDirName``). ``unique`` are the 32 hex digits."""
    return _suffixed_name(topic, partition, unique, "delete")


def stray_name(topic: str, partition: int, unique: str) -> str:
    """Name of a stray replica, ``topic-0.<32 hex>-stray`` (``UnifiedLog.logStrayDirName``)."""
    return _suffixed_name(topic, partition, unique, "stray")


def _suffixed_name(topic: str, partition: int, unique: str, suffix: str) -> str:
    end = f"-{partition}.{unique}-{suffix}"
    # Topics are ASCII; of a foreign name whole characters are cut, and bytes that are none stay as they are.
    room = NAME_BYTES_MAX - len(end)
    kept = topic[:room]
    while len(kept.encode("utf-8", "surrogateescape")) > room:
        kept = kept[:-1]
    return kept + end
