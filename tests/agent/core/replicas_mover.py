"""Moves in the world of ``replicas_world.py``: the table of ``moves/machine.py``, joined as by ``moves/mover.py``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kjbod.ids import Uuid
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.moves import machine as moves
from kjbod_agent.moves.machine import Effect, Event, State
from kjbod_agent.replicas.inventory import Wanted
from kjbod_host.partitions import TopicIdPartition

if TYPE_CHECKING:
    from tests.agent.core.replicas_world import Agent, Disk

EIO, EEXIST = 5, 17


@dataclass(eq=False)
class Move:
    """One move."""

    key: TopicIdPartition
    topic: str
    source: Uuid | None
    destination: Uuid
    future: str
    state: State = State.MAKING
    equal: frozenset[int] | None = None
    """What was in both at the last look."""
    busy: bool = False
    """A job of it is queued."""
    is_renamed: bool = False
    """The source lies under its new name."""
    is_gone: bool = False
    """The inventory was told so."""
    cause: Event | None = None
    """What ended it."""

    @property
    def plain(self) -> str:
        return f"{self.topic}-{self.key.partition}"

    @property
    def renamed(self) -> str:
        return moves.source_name(self.future)


class Mover:
    """All moves of one process."""

    def __init__(self, agent: "Agent") -> None:
        self.agent = agent
        self.moves: dict[TopicIdPartition, Move] = {}

    # ---- what people ask for

    def alter(self, topic: str, number: int, to: Uuid) -> ErrorCode:
        """AlterReplicaLogDirs for one partition."""
        inventory, hosting = self.agent.inventory, self.agent.hosting
        key = next((k for k, h in hosting.partitions.items() if (h.topic, k.partition) == (topic, number)), None)
        here = None if key is None else inventory.locate(key)
        future = None if key is None else inventory.future(key)
        name = moves.future_name(topic, number, self.agent.unique())
        judged = moves.judge(
            moves.Situation(
                name_bytes=len(name),
                configured=to in inventory,
                online=to in inventory.online,
                cordoned=False,
                offline=here is not None and here not in inventory.online,
                hosted=key is not None and bool(inventory.copies(key)),
                known=key is not None,
                current_here=here == to,
                future=moves.Future.NONE
                if future is None
                else moves.Future.HERE
                if future[0] == to
                else moves.Future.ELSEWHERE,
                some_offline=inventory.some_offline,
            )
        )
        if judged.cancel and key in self.moves:
            self.feed(self.moves[key], Event.NEW_TARGET)
        if judged.begin and key is not None and key not in self.moves and inventory.copies(key):
            self._begin(Move(key, topic, inventory.copies(key)[0], to, name))
        return judged.code

    def cancel(self, key: TopicIdPartition) -> None:
        """End a move, where it is not too late."""
        if key in self.moves:
            self.feed(self.moves[key], Event.CANCELLED)

    # ---- what happens

    def resume(self, wanted: Wanted, directory: Uuid, future: str) -> None:
        """A future replica was found."""
        if wanted.partition in self.moves:
            return
        inventory = self.agent.inventory
        current = [d for d in inventory.copies(wanted.partition) if d in inventory.online and d != directory]
        move = Move(wanted.partition, wanted.topic, None, directory, future, State.FOUND)
        renamed = inventory.source_of((directory, future))
        if current:
            move.source = current[0]
        elif renamed is not None:
            move.source = renamed
            move.is_renamed = move.is_gone = True
        self._begin(move)
        here = wanted.assigned == directory
        self.feed(move, moves.resumed(current=bool(current), renamed=renamed is not None, assigned_here=here))

    def _begin(self, move: Move) -> None:
        self.moves[move.key] = move
        self.agent.world.moved.add(move.key)
        self.agent.inventory.begin_move(move.key, move.destination, move.future)
        self.nudge()

    def acknowledged(self, key: TopicIdPartition, directory: Uuid) -> None:
        """The controller has recorded this."""
        move = self.moves.get(key)
        if move is not None and directory == move.destination:
            self.feed(move, Event.ACKNOWLEDGED)

    def gone(self, key: TopicIdPartition) -> None:
        """The replica is no longer this broker's."""
        if key in self.moves:
            self.feed(self.moves[key], Event.GONE)

    def directory_failed(self, directory: Uuid) -> None:
        """Before the inventory forgets what was made there."""
        for move in list(self.moves.values()):
            if directory not in (move.source, move.destination):
                continue
            move.busy = False
            other = move.source if directory == move.destination else move.destination
            failed = other is None or self.agent.failures.of(other) is not None
            self.feed(
                move,
                moves.directory_failed(
                    directory, move.source, move.destination, other_failed=failed, equal=self._is_equal(move)
                ),
            )

    def _is_equal(self, move: Move) -> bool:
        """Nothing was written to the source since the last look: where nothing is known of it, nobody wrote to it."""
        if move.equal is None:
            return False
        return self.agent.world.acknowledged.get(move.key, set()) <= move.equal

    def feed(self, move: Move, event: Event) -> None:
        """One entry of the table."""
        state, effects = moves.step(move.state, event)
        move.state, move.cause = state, event
        for effect in effects:
            self._do(move, effect)
        if not state.ended:
            self.nudge()
            return
        del self.moves[move.key]
        inventory = self.agent.inventory
        if state is State.DROPPED or (state is State.LEFT and inventory.copies(move.key)):
            inventory.end_move(move.key)
        if event is not Event.GONE:
            self.agent.review(move.key)

    def _do(self, move: Move, effect: Effect) -> None:
        inventory = self.agent.inventory
        match effect:
            case Effect.ASSIGN:
                self.agent.assign(move.key, move.destination)
                if move.key in self.agent.assignments.acknowledged:
                    self.feed(move, Event.ACKNOWLEDGED)
            case Effect.REVERT:
                if move.source is not None:
                    self.agent.assign(move.key, move.source)
            case Effect.SOURCE_BACK:
                if move.source is not None and move.is_gone:
                    move.is_gone = False
                    inventory.source_back(move.key, move.source)
            case Effect.PROMOTED:
                inventory.promoted(move.key)
            case Effect.REMOVE_FUTURE:
                self._remove_future(move)
            case Effect.REMOVE_SOURCE:
                self._remove_source(move)

    def _remove_future(self, move: Move) -> None:
        if self.agent.failures.of(move.destination) is None:
            self.agent.delete(move.key, move.destination, move.future)

    def _remove_source(self, move: Move) -> None:
        """Under its new name; its plain one is the inventory's to free."""
        if move.source is None or self.agent.failures.of(move.source) is not None:
            return
        if move.is_renamed:
            self.agent.remove(move.source, move.renamed)
        elif move.is_gone:
            self.agent.delete(move.key, move.source, move.plain)

    # ---- what takes time

    def nudge(self) -> None:
        """Queue what each move has to do next."""
        for move in list(self.moves.values()):
            if not move.busy:
                self._queue(move)

    def _queue(self, move: Move) -> None:
        destination = move.destination
        match move.state:
            case State.MAKING:
                self._job(move, destination, lambda disk: self._make(move, disk), Event.FUTURE_MADE)
            case State.NONE | State.ACCEPTED:
                self._job(move, destination, lambda disk: self._copy(move, disk, move.plain), Event.CAUGHT_UP)
            case State.RENAMED:
                self._job(move, destination, lambda disk: self._copy(move, disk, move.renamed), Event.CAUGHT_UP)
            case State.RENAMING if move.source is not None:
                self._job(move, move.source, lambda disk: _rename(disk, move.plain, move.renamed), Event.SOURCE_RENAMED)
            case State.PROMOTING | State.FINISHING:
                self._job(move, destination, lambda disk: self._promote(move, disk), Event.SWAPPED)
            case State.RESTORING if move.source is not None:
                self._job(move, move.source, lambda disk: _restore(disk, move), Event.SOURCE_RESTORED)

    def _job(self, move: Move, directory: Uuid, does: "Callable[[Disk], int]", event: Event) -> None:
        from tests.agent.core.replicas_world import Job

        asked_in = move.state
        move.busy = True

        def still(disk: "Disk") -> int:
            return does(disk) if self.moves.get(move.key) is move and move.state is asked_in else EIO

        def then(error: int) -> None:
            move.busy = False
            if self.moves.get(move.key) is not move or move.state is not asked_in:
                return
            if error == EEXIST and move.state is not State.RESTORING:
                self.feed(move, Event.GIVEN_UP)
            if error:
                return
            if event is Event.SOURCE_RENAMED:
                move.is_renamed = move.is_gone = True
                self.agent.inventory.source_gone(move.key)
            if event is Event.SOURCE_RESTORED:
                move.is_renamed = False
            self.feed(move, event)

        self.agent.jobs[directory].append(Job(f"{move.state} {move.future}", still, then))

    def _make(self, move: Move, disk: "Disk") -> int:
        from tests.agent.core.replicas_world import Copy

        disk.replicas.setdefault(move.future, Copy(move.key.topic_id))
        return 0

    def _copy(self, move: Move, disk: "Disk", name: str) -> int:
        source = None if move.source is None else self.agent.world.disk_of(move.source)
        if source is None or not source.well or name not in source.replicas:
            return EIO
        disk.replicas[move.future].messages = set(source.replicas[name].messages)
        move.equal = frozenset(source.replicas[name].messages)
        return 0

    def _promote(self, move: Move, disk: "Disk") -> int:
        if move.state is State.FINISHING:
            self.agent.world.is_all_there_is(move.key, disk.replicas.get(move.future))
        return _rename(disk, move.future, move.plain)


def _rename(disk: "Disk", name: str, new_name: str) -> int:
    """Done before, without an answer, is done too."""
    if name in disk.replicas and new_name in disk.replicas:
        return EEXIST
    if name in disk.replicas:
        disk.replicas[new_name] = disk.replicas.pop(name)
    assert new_name in disk.replicas, f"neither {name} nor {new_name} is there"
    return 0


def _restore(disk: "Disk", move: Move) -> int:
    """What has the other name may be of a swap long ago."""
    return 0 if not move.is_renamed and move.plain in disk.replicas else _rename(disk, move.renamed, move.plain)
