"""The core of a guard: every decision about directories, leadership and broker, and nothing else. Pure.

Seven invariants hold after each step, whatever disks, hosts and controllers do. :mod:`tests.guard.universe` checks them
with several cores on one controller's log, and :mod:`.invariants` asks for them once more at the last moment, whatever
the tables have come to:

1. **Data.** A file-system shutdown, or anything else that drops a page cache, begins only when the committed metadata,
   read after the verdict, show this replica out of the in-sync replicas and ``min.insync.replicas`` other copies that
   count (:mod:`.copies`). Without an answer of the active controller nothing of that kind begins.
2. **Availability.** No act leaves a partition without a leader, or below ``min.insync.replicas``, that Kafka alone
   would serve, or would serve again when the disk answers. Where that cannot be had the guard waits, and says why.
3. **Reversible first.** Nothing that cannot be undone begins before the disk has stood still, or answered nothing but
   errors, for ``kjbod.guard.cut.after.ms`` (:mod:`.ladder`). A disk that answers before is left unchanged.
4. **Budget.** At most ``kjbod.guard.cut.max.brokers`` brokers lose a directory within 60 s, by the order of the
   controller's log (:mod:`.suspects`).
5. **Blindness is not evidence.** A guard that does not follow the metadata, or whose picture of them is incomplete
   (:mod:`kjbod.metadata.newer`), does nothing about disk, broker or replica lists. A disk that completes requests does
   not hang, and a broker is not stuck because it is silent: a thread of it has to wait for a disk that was acted on.
6. **Proof, not lateness.** A fence needs a controller that answers, and other copies for everything that the broker has
   in sync (:func:`.budget.why_not_fence`). An unclean election keeps our copy: no eviction. A mask comes off by itself
   while Kafka has the directory online, when the disk answers or other copies have left the ISR.
7. **Doubt ends.** A directory that Kafka has offline, that was released or left, is no ground for a fence, from
   :data:`DOUBT_MS` after the act on, or after Kafka had it offline.

How a verdict comes to its effect: the shell makes a :class:`.situation.Situation` and calls :meth:`GuardCore.look`. The
core derives the cases (:mod:`.deciding`), asks the tables (:mod:`.ladder`, :mod:`.directory_steps`,
:mod:`.broker_steps`, :mod:`.slow_steps`, :mod:`.suspecting`), and returns tasks. Before a task that is to be written
down the shell writes the journal; then it calls :meth:`GuardCore.saved`, which decides once more by what is known then,
and asks the invariants.
After the effect it calls :meth:`GuardCore.came_of`. The shell decides nothing.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard import (
    broker_steps,
    directory_steps,
    effects,
    invariants,
    redundancy,
    retries,
    slow_steps,
    suspecting,
)
from kjbod_guard.actions import Done, Name, Outcome
from kjbod_guard.budget import barred, evictions, promotions, restorations
from kjbod_guard.deciding import Deciding, Known
from kjbod_guard.effects import Effect
from kjbod_guard.journal import Demoted, Evicted, Journal
from kjbod_guard.ladder import NOTHING, Case, KafkaView, Step, Would, before_start, may_be_shut_down
from kjbod_guard.observing import Key, Observed
from kjbod_guard.redundancy import Needs
from kjbod_guard.settling import UNFOLLOWED_MS, Settling, demotion_shown, eviction_shown
from kjbod_guard.situation import Disk, Site, Situation
from kjbod_host.health.state import Health

ROUNDS_MAX: Final = 20
DOUBT_MS: Final = 15_000
"""How long threads and answers of the broker may justify a fence, from the action on, or from the directory's offline
state on. Kafka's failure handler begins then, and may wait for a lock of a thread that is stuck on the disk."""
GATE_MS: Final = 5_000
"""How long the directories of a broker that is about to start stay suspected after a gate question."""
_LISTS: Final = effects.Evict | effects.Restore
_TO_BE_CUT: Final = (directory_steps.State.REPORTING, directory_steps.State.CUTTING)
_IRREVERSIBLE: Final = effects.Cut | effects.Mask | effects.Report | effects.Kill

Lists = Mapping[Key, tuple[int, ...]]
Decided = Mapping[str, tuple[Case, Would]]


class Part(StrEnum):
    """Part of the core to which a task belongs."""

    RECORD = "record"
    DIRECTORY = "directory"
    LEADING = "leading"
    BROKER = "broker"


class Task(Struct, frozen=True):
    """An effect that is to be carried out.

    Attributes:
        part: of the core.
        path: of the directory; None: the task is about the broker.
        effect: to be carried out.
        is_saved: whether journal and audit are written before the effect.
        at_gate: whether the task is for a broker that is about to start.
        before: state of the directory before the task.
        added: partitions that the task has put into the journal.
    """

    part: Part
    path: str | None
    effect: Effect
    is_saved: bool = True
    at_gate: bool = False
    before: directory_steps.Standing = field(default_factory=directory_steps.Standing)
    added: tuple[Key, ...] = ()


class Look(Struct, frozen=True):
    """Outcome of a look at everything.

    Attributes:
        decided: case and step of directories that have failed, or that Kafka has offline, by path.
        tasks: to be carried out.
        again_ms: time until the next look, at the latest; None: only when something changes.
        forgotten: names of partitions whose lists somebody has changed since the guard changed them.
        changed: whether the journal is to be written.
    """

    decided: Decided
    tasks: tuple[Task, ...] = ()
    again_ms: int | None = None
    forgotten: tuple[str, ...] = ()
    changed: bool = False


class GuardCore:
    """Decisions of one guard.

    Args:
        site: configuration.
        journal: of the previous guard.
        run: unique name of this run of the guard.

    Attributes:
        acts: whether the shell carries out the decisions (mode act), or only logs them (mode observe).
    """

    def __init__(self, site: Site, journal: Journal, run: str) -> None:
        self.site = site
        self.acts = False
        self.journal = journal
        self.directories = {path: row[0] for path, row in journal.directories.items()}
        self.ids = {path: row[1] for path, row in journal.directories.items()}
        self.broker = journal.broker
        self.leading: dict[str, slow_steps.Standing] = {}
        self.record = suspecting.Standing(run=run)
        self.refused: retries.Retries = {}
        self._heard_ms: int | None = None
        """When a controller had answered last, at the last look at which it had just done so."""
        self._unheard = False
        """Whether it had not at the last look."""
        self._deciding = Deciding(site)
        self._evictions, self._demotions = Settling(UNFOLLOWED_MS), Settling(UNFOLLOWED_MS)
        self._fenced_before = journal.fenced
        self._counted: tuple[Observed, int, object, Needs] | None = None
        """Metadata, their revision and the evictions of the last count of partitions that lack replicas; the count."""
        self._asked_ms: dict[str, int] = {}
        """Time of the last gate question for a broker that is about to start, by path."""

    # ---- state for other parts

    def standing(self, path: str) -> directory_steps.Standing:
        """Return the state of a directory."""
        return self.directories.get(path, directory_steps.Standing())

    def leadership(self, path: str) -> slow_steps.Standing:
        """Return the state of the leadership of a directory."""
        return self.leading.get(path, slow_steps.Standing())

    @property
    def known(self) -> Known:
        """The state that decisions depend on."""
        return Known(self.directories, self.ids, self.record, self.refused, self.journal.fenced)

    def view(self, path: str, now: Situation) -> KafkaView:
        """Return the state of a directory as Kafka has it."""
        return self._deciding.view(path, self.known, now)

    def decide(self, now: Situation) -> Decided:
        """Return case and step of the directories that have failed, or that Kafka has offline, by path."""
        return self._deciding.decide_all(self.known, now)

    @property
    def released(self) -> frozenset[str]:
        """Paths of directories that an operator has released."""
        return frozenset(path for path, one in self.directories.items() if directory_steps.is_released(one))

    def acted(self, now_ms: int) -> dict[str, int]:
        """Return the times of actions on directories, by path, as far as these are a reason to doubt the broker."""
        found = {}
        for path, one in self.directories.items():
            lately = one.acted_ms is not None and now_ms - max(one.acted_ms, one.offline_ms or 0) < DOUBT_MS
            left = one.state is directory_steps.State.LEFT
            if one.acted_ms is not None and not left and (lately or not directory_steps.is_settled(one)):
                found[path] = one.acted_ms
        return found

    def in_doubt(self, now_ms: int) -> bool:
        """Whether threads and answers of the broker may speak for a fence."""
        fencing = self.broker.state in (broker_steps.State.CRIPPLED, broker_steps.State.FENCING)
        return fencing or bool(self.acted(now_ms))

    def needs(self, observed: Observed) -> Needs:
        """Return how many partitions lack replicas, by the metadata, which are followed. The result is kept until the
        metadata change: a broker may have thousands of partitions."""
        evicted, last = self.journal.evicted, self._counted
        if last is not None and last[0] is observed and last[1] == observed.revision and last[2] is evicted:
            return last[3]
        found = redundancy.needs(self.journal, observed, self.site.min_isr)
        self._counted = (observed, observed.revision, evicted, found)
        return found

    def lacks(self, observed: Observed) -> list[tuple[bool, str]]:
        """Return lines about partitions that lack replicas, each with whether it is critical."""
        return redundancy.lines(self.journal, observed, self.needs(observed))

    # ---- a look at everything

    def look(self, now: Situation) -> Look:
        """Return the decisions and tasks for the present situation."""
        self._hear(now)
        forgotten, changed = self._settle(now) if now.unsure is None else ([], False)
        self._take_over(now)
        decided = self.decide(now)
        if not self.acts:
            for path in now.disks:
                facts = self._facts(path, decided, now)
                self.directories[path] = directory_steps.noted(self.standing(path), facts, now.now_ms)
            return Look(decided, again_ms=self._patience_ms(now), forgotten=tuple(forgotten), changed=changed)
        tasks: list[Task] = []
        states = {path: self.standing(path).state for path in now.disks}
        broker = self._broker_facts(decided, now)
        waits = [self._patience_ms(now), retries.next_ms(self.refused, now.now_ms)]
        waits.append(self._look_at_record(decided, broker, now, tasks))
        waits.append(self._look_at_broker(broker, now.now_ms, tasks))
        for path in now.disks:
            waits += self._look_at(path, self._facts(path, decided, now), now, tasks)
        again_ms = min((one for one in waits if one is not None), default=None)
        # The journal also gets a state that was entered without an effect: the next guard continues from that state.
        begun = {task.path for task in tasks}
        changed = changed or any(self.standing(path).state is not states[path] for path in states if path not in begun)
        return Look(decided, tuple(tasks), again_ms, tuple(forgotten), changed)

    def _hear(self, now: Situation) -> None:
        """Retry failed requests at once when a controller answers again: the time for an eviction
        (:data:`.budget.EVICT_WITHIN_MS`) and for doubt (:data:`DOUBT_MS`) is short."""
        unheard = self._deciding.unheard(now) is not None
        if self._unheard and not unheard:
            since_ms = self._heard_ms or 0
            self.record = suspecting.at_once(self.record, since_ms)
            self.refused = retries.at_once(self.refused, since_ms, now.now_ms)
        self._heard_ms = self._heard_ms if unheard else now.answered_ms
        self._unheard = unheard

    def _take_over(self, now: Situation) -> None:
        """Continue the work of an earlier guard whose state directory is lost. That guard reported the directories in
        its record, or was about to. Only the disk shows whether it also shut a file system down
        (:meth:`.Deciding.is_open`)."""
        registration = now.observed.registration
        if now.unsure is not None or now.unbound is not None or registration is None:
            return
        self._take_over_masks(now)
        named = self._deciding.left_behind(self.known, now)
        left = named.difference(registration.log_dirs)
        for path, its in self._identities(left, now).items():
            before = self.standing(path)
            if its in left and not before.has_seen_online(registration.epoch):
                self.ids[path] = str(its)
                self.directories[path] = replace(
                    before,
                    plan=Step.REPORT,
                    epoch=registration.epoch,
                    seen_online=True,
                    offline_ms=now.now_ms,
                    acted_ms=now.now_ms,
                )
            elif its in named and before.plan is None and before.state is directory_steps.State.WELL:
                # The report may be on its way, and may still be recorded.
                self.directories[path] = replace(before, plan=Step.REPORT, since_ms=now.now_ms)

    def _take_over_masks(self, now: Situation) -> None:
        for path, disk in now.disks.items():
            one = self.standing(path)
            if disk.masked and one.means is None and one.under_way is None and not directory_steps.is_released(one):
                self.directories[path] = replace(
                    one, state=directory_steps.State.MASKED, since_ms=now.now_ms, means=Step.MASK, acted_ms=now.now_ms
                )

    def _identities(self, left: frozenset[Uuid], now: Situation) -> dict[str, Uuid | None]:
        """Return the ids of the directories, by path. An unreadable directory gets an id of ``left`` that no other
        directory has. The order of several does not matter if all of them are offline, or all answer errors: one may
        have failed before the broker started."""
        found = {path: self._deciding.directory_id(path, self.known, now) for path in now.disks}
        unread = [path for path, its in found.items() if its is None]
        nobodys = sorted(left.difference(found.values()), key=str)
        dead = len(unread) > len(nobodys) and all(now.disks[path].errors for path in unread)
        if len(unread) == len(nobodys) or dead:
            found |= zip(unread, nobodys, strict=False)
        return found

    def _patience_ms(self, now: Situation) -> int | None:
        waits = [self._deciding.wait_ms(path, now) for path in now.disks]
        return min((one for one in waits if one is not None), default=None)

    def _look_at_record(
        self, decided: Decided, broker: broker_steps.Facts, now: Situation, tasks: list[Task]
    ) -> int | None:
        if now.unsure is not None or not (now.unbound is None or (now.looked and now.pid is None)):
            return None
        wanted = self._record_wanted(decided, broker, now)
        move = suspecting.advance(self.record, wanted, self._deciding.shown(now), now.now_ms)
        self.record = move.standing
        if move.effect is not None:
            tasks.append(Task(Part.RECORD, None, move.effect, is_saved=False))
        return move.again_ms

    def _record_wanted(self, decided: Decided, broker: broker_steps.Facts, now: Situation) -> suspecting.Wanted:
        """Return this guard's record as it should be."""
        registration = now.observed.registration
        if registration is None:
            return suspecting.NOTHING_WANTED
        directories: set[Uuid] = set()
        renew = False
        for path, (case, step) in decided.items():
            at_gate = now.now_ms - self._asked_ms.get(path, -GATE_MS) < GATE_MS
            if now.unbound is not None and not at_gate:
                continue
            failed = case.health is Health.FAILED and (at_gate or case.kafka is KafkaView.ONLINE)
            failed = failed and case.outlived is None and not case.unidentified
            if failed or step.step is Step.EVICT:
                directories |= self._deciding.lost_with(path, self.known, now)
                gate = before_start(case).step if at_gate else Step.NOTHING
                renew = renew or self._is_due(path, step.step, gate)
        for path, one in self.directories.items():
            if path not in now.disks:
                continue
            leaves = self._is_unread(path, decided, now) and self._deciding.evictions(path, self.known, now).before
            # A broker that has ended starts without this directory.
            lost = now.unbound is not None and one.means is not None and self.view(path, now) is KafkaView.ONLINE
            if one.state in directory_steps.ON_THE_WAY or leaves or lost:
                directories |= self._deciding.lost_with(path, self.known, now)
                renew = renew or bool(leaves)
        killing = self._is_killing(registration.epoch, registration.fenced)
        whole = killing or (broker.wanted is not None and broker.refusal is None)
        renew = renew or (whole and not killing)
        return suspecting.Wanted(epoch=registration.epoch, directories=frozenset(directories), whole=whole, renew=renew)

    def _is_due(self, path: str, *steps: Step) -> bool:
        """Whether an action that needs this guard's record is about to begin. An action that has begun continues
        without a new record, which would be last in order."""
        begun = self.standing(path).means is not None
        return Step.EVICT in steps or (not begun and bool({Step.CUT, Step.MASK, Step.REPORT}.intersection(steps)))

    def _is_killing(self, epoch: int, fenced: bool) -> bool:
        """Whether this guard is about to kill the broker, or has killed it, and the metadata do not show its fence."""
        broker = self.broker
        if broker.state is broker_steps.State.FENCING and any(
            isinstance(one, effects.Kill | effects.Cut) for one in broker.left
        ):
            return True
        return broker_steps.is_killed(broker) and broker.epoch == epoch and not fenced

    def _look_at(self, path: str, facts: directory_steps.Facts, now: Situation, tasks: list[Task]) -> list[int | None]:
        if self.broker.state is broker_steps.State.FENCING:
            facts = replace(facts, present=False)
        self._identified(path, facts.directory_id, now)
        busy = self.leadership(path).under_way is not None
        if busy:  # this guard is changing the lists itself
            facts = replace(facts, evict={}, restore={})
        before = self.standing(path)
        move = directory_steps.advance(before, facts, now.now_ms)
        self.directories[path] = move.standing
        if move.effect is not None:
            # The journal already has the report together with the cut: nothing may come between them.
            follows = isinstance(move.effect, effects.Cut)
            added = self._note_evictions(move.effect, now) if isinstance(move.effect, effects.Evict) else ()
            task = Task(Part.DIRECTORY, path, move.effect, is_saved=not follows, before=before, added=added)
            tasks.append(task)
        if facts.slow is None:
            return [move.again_ms]
        free = facts.present and move.standing.state is directory_steps.State.WELL and move.effect is None
        slow = replace(facts.slow, free=facts.slow.free and free)
        led = slow_steps.advance(self.leadership(path), slow, now.now_ms)
        self.leading[path] = led.standing
        if led.effect is not None:
            added = self._note_demotions(led.effect, now) if isinstance(led.effect, effects.Demote) else ()
            tasks.append(Task(Part.LEADING, path, led.effect, added=added))
        return [move.again_ms, led.again_ms]

    def _identified(self, path: str, now_id: str | None, now: Situation) -> None:
        """Note the id of the directory at a path. For a new disk, the evictions of the old id move to the new id, so
        that the guard restores them there. Two swapped disks keep their ids."""
        before, self.ids[path] = self.ids.get(path), now_id
        registration = now.observed.registration
        registered = () if registration is None else map(str, registration.log_dirs)
        if None is not before != now_id is not None and before not in {*self.ids.values(), *registered}:
            self.journal = self.journal.replaced(before, now_id)

    def _look_at_broker(self, facts: broker_steps.Facts, now_ms: int, tasks: list[Task]) -> int | None:
        move = broker_steps.advance(self.broker, facts, now_ms)
        for _ in range(ROUNDS_MAX):
            if move.again_ms != 0:
                break
            move = broker_steps.advance(move.standing, facts, now_ms)
        self.broker = move.standing
        if move.effect is not None:
            if isinstance(move.effect, effects.Kill) and self.broker.epoch is not None:
                self._fenced_before = self.journal.fenced
                self.journal = replace(self.journal, fenced=(self.broker.epoch, now_ms))
            saved = not isinstance(move.effect, effects.Cut)
            tasks.append(Task(Part.BROKER, None, move.effect, is_saved=saved))
        return move.again_ms

    # ---- facts

    def _facts(self, path: str, decided: Decided, now: Situation) -> directory_steps.Facts:
        """Return what the steps about a directory depend on."""
        deciding, known, disk = self._deciding, self.known, now.disks[path]
        directory_id = deciding.directory_id(path, known, now)
        registration = now.observed.registration
        case, step = decided.get(path, (None, NOTHING))
        gate = NOTHING
        if case is not None and now.looked and now.pid is None:
            gate = before_start(case)
        evicts = step.step is Step.EVICT or self._is_unread(path, decided, now)
        lost = deciding.lost_with(path, known, now)
        text = None if directory_id is None else str(directory_id)
        restorable = self.restorable(text, now.observed) if now.unsure is None else {}
        leaves = deciding.evictions(path, known, now).before if evicts else {}
        standing = self.standing(path)
        state = standing.state
        evicting = step.step is Step.EVICT or state in directory_steps.GONE
        return directory_steps.Facts(
            path=path,
            directory_id=text,
            beside=tuple(sorted(map(str, lost))),
            decided=step,
            gate=gate,
            view=deciding.view(path, known, now),
            epoch=None if registration is None else registration.epoch,
            well=disk.is_well,
            unjudged=not disk.is_well and disk.health is not Health.FAILED,
            unseen=disk.masked,
            answers=disk.over is not None,
            heard=deciding.unheard(now) is None,
            present=now.unbound is None,
            may=self.acts and self._may(path, now, evicting=evicting),
            not_cut=deciding.why_not_cut(path, known, now) if state in _TO_BE_CUT else None,
            needed=deciding.need(path, known, now).refusal if standing.means is Step.MASK else None,
            open=deciding.is_open(path, known, now),
            evict={key: leaves[key] for key in self._due("evict", leaves, now)},
            restore={key: restorable[key] for key in self._due("restore", restorable, now)},
            slow=self._slow_facts(path, text, step, now),
        )

    @staticmethod
    def _is_unread(path: str, decided: Decided, now: Situation) -> bool:
        """Whether a directory cannot be read any more, and an earlier guard saw the directory go offline."""
        return now.disks[path].directory_id is None and path not in decided

    def _due(self, means: str, lists: Mapping[Key, object], now: Situation) -> list[Key]:
        return retries.due(self.refused, means, lists, now.now_ms)

    def _may(self, path: str, now: Situation, *, evicting: bool) -> bool:
        """Whether this guard's record is in the metadata, and no other broker comes first. An eviction costs no broker
        a directory: only the order of the records counts, because each guard sends whole replica lists."""
        lost = self._deciding.lost_with(path, self.known, now)
        offset = self._deciding.offset(self.known, now, lost)
        if offset is None:
            return False
        if not evicting:
            return not self._deciding.why_behind(path, self.known, now)
        return not self._deciding.is_after(offset, now)

    def _slow_facts(self, path: str, directory_id: str | None, step: Would, now: Situation) -> slow_steps.Facts | None:
        """Return what the steps about the leadership of a directory depend on; None: demotion is off, and no demotion
        is to be undone."""
        demotes, disk = self.site.demote, now.disks[path]
        if not demotes and not self.journal.demoted:
            return None
        left = promotions(now.observed, self.journal.demoted_of(directory_id))
        back = self._due("promote", left, now)
        found = self._deciding.demotions(path, self.known, now) if step.step is Step.DEMOTE else {}
        return slow_steps.Facts(
            path=path,
            directory_id=directory_id,
            slow=demotes and disk.health is Health.SLOW,
            well=disk.health is Health.ONLINE or (disk.health is Health.SLOW and not demotes),
            free=now.unsure is None and self.view(path, now) is KafkaView.ONLINE,
            demote={key: found[key] for key in self._due("demote", found, now)},
            promote={key: left[key] for key in back},
            later=len(left) - len(back),
        )

    def _broker_facts(self, decided: Decided, now: Situation) -> broker_steps.Facts:
        """Return what the steps about the broker depend on."""
        registration = now.observed.registration
        fences = {
            path: pair for path, pair in decided.items() if pair[1].step is Step.FENCE and path not in self.released
        }
        stuck = None
        if self.in_doubt(now.now_ms) and now.unsure is None and not self._deciding.waits_for_host(decided, now):
            acted = self.acted(now.now_ms)
            # A broker that waits for another disk is silent as well. That proves nothing about the disk that was acted
            # on.
            other = any(disk.is_late for path, disk in now.disks.items() if path not in acted)
            stuck = now.stuck or (now.silent if now.waits and not other else None)
        if registration is not None and now.stuck is None:
            stuck = broker_steps.silence(stuck, registration.fenced, registration.in_controlled_shutdown)
        wanted = stuck or next((f"{path}: {pair[1].reason}" for path, pair in fences.items()), None)
        asked = wanted is not None or self.broker.state is broker_steps.State.FENCING
        cuts = {path: None for path, (case, _) in fences.items() if may_be_shut_down(case)}
        cuts |= {
            one.path: None
            for one in self.broker.left
            if isinstance(one, effects.Cut) and one.path in now.disks and not _answers(now.disks[one.path])
        }
        holder = now.pid if now.unbound is None else None
        return broker_steps.Facts(
            pid=holder,
            ended=now.ended_pid,
            epoch=None if registration is None else registration.epoch,
            fenced=None if registration is None or now.unsure else registration.fenced,
            incomplete=now.observed.incomplete is not None,
            stopping=registration is not None and registration.in_controlled_shutdown,
            wanted=wanted,
            refusal=self._deciding.why_not_fence(self.known, now) if asked else None,
            may=self._deciding.offset(self.known, now, None) is not None,
            cuts=tuple(cuts),
            not_cut={
                path: reason
                for path in cuts
                if (reason := self._deciding.why_not_shut_down(path, self.known, now)) is not None
            },
            looked=now.looked and (holder is None or now.told),
        )

    # ---- one effect

    def saved(self, task: Task, trouble: str | None, now: Situation) -> Effect | Done:
        """Return the effect of a saved task, checked against the present situation; or why it is not carried out.

        Args:
            task: the task, saved in the journal if it must be.
            trouble: why saving failed, in words; None: it did not fail.
            now: what is known.
        """
        lists = isinstance(task.effect, effects.Evict | effects.Demote)
        if lists and trouble is not None:
            self._drop(task)
            done = Done(outcome=Outcome.FAILED, reason=f"the replica lists cannot be written down: {trouble}")
            self._count_refused(task.effect, done, now)
            return done
        passed, broken = self._why_passed(task, now), self._why_broken(task, now)
        if passed is None and broken is None:
            return task.effect
        self._drop(task)
        if passed is None:
            return Done(outcome=Outcome.REFUSED, reason=broken or "")
        disk = None if task.path is None else now.disks.get(task.path)
        answers = disk is not None and (disk.is_well or disk.over is not None)
        return Done(outcome=Outcome.REFUSED, reason=f"{'recovered' if answers else 'not due any more'}: {passed}")

    def _why_passed(self, task: Task, now: Situation) -> str | None:
        """Return why an irreversible effect would not begin in the present situation, in words; None: it would
        begin."""
        if not isinstance(task.effect, _IRREVERSIBLE):
            return None
        decided = self.decide(now)
        if task.part is Part.BROKER:
            broker = self._broker_facts(decided, now)
            move = broker_steps.advance(replace(self.broker, under_way=None), broker, now.now_ms)
            again, reason = move.effect, broker.refusal
        else:
            assert task.path is not None
            facts = self._facts(task.path, decided, now)
            if task.at_gate:
                again = directory_steps.before_start(task.before, facts, now.now_ms, masks=True).effect
            else:
                again = directory_steps.advance(task.before, facts, now.now_ms).effect
            reason = (facts.gate if task.at_gate else facts.decided).reason or facts.not_cut
        return None if again == task.effect else reason or "the reason for it has passed"

    def _why_broken(self, task: Task, now: Situation) -> str | None:
        """Return which invariant a task would break, in words; None: none."""
        path = getattr(task.effect, "path", None)
        known, there = self.known, path is not None and path in now.disks
        return invariants.why_not(
            task.effect,
            now,
            lost=self._deciding.lost_with(path, known, now) if path is not None and there else None,
            min_isr=self.site.min_isr,
            begins=task.part is Part.DIRECTORY and task.before.plan is None,
            starting=task.at_gate,
        )

    def _drop(self, task: Task) -> None:
        """Undo the state changes of a task that is not carried out. The next look decides again."""
        self.journal = self.journal.without(task.added) if isinstance(task.effect, effects.Evict) else self.journal
        self.journal = self.journal.not_demoted(task.added) if task.part is Part.LEADING else self.journal
        match task.part:
            case Part.BROKER:
                self.broker = replace(self.broker, under_way=None)
                if isinstance(task.effect, effects.Kill):
                    self.journal = replace(self.journal, fenced=self._fenced_before)
            case Part.DIRECTORY if task.path is not None:
                self.directories[task.path] = task.before
            case Part.LEADING if task.path is not None:
                self.leading[task.path] = replace(self.leadership(task.path), under_way=None)

    def came_of(self, task: Task, done: Done, now: Situation) -> None:
        """Apply the outcome of a task to the state."""
        effect, now_ms = task.effect, now.now_ms
        match task.part:
            case Part.RECORD:
                self.record = suspecting.came_of(self.record, done, now_ms)
            case Part.BROKER:
                self.broker = broker_steps.came_of(self.broker, done, now_ms)
                if isinstance(effect, effects.Cut) and done.happened:
                    cut = replace(
                        self.standing(effect.path),
                        state=directory_steps.State.CUT,
                        since_ms=now_ms,
                        means=Step.CUT,
                        acted_ms=now_ms,
                    )
                    self.directories[effect.path] = cut
            case Part.DIRECTORY if task.path is not None:
                self._count_refused(effect, done, now)
                self.directories[task.path] = directory_steps.came_of(self.standing(task.path), done, now_ms)
            case Part.LEADING if task.path is not None:
                refused = self._count_refused(effect, done, now)
                self.leading[task.path] = slow_steps.came_of(self.leadership(task.path), done, now_ms, refused)

    def _count_refused(self, effect: Effect, done: Done, now: Situation) -> list[Key]:
        """Note which partitions the controllers refused; returns them."""
        if not isinstance(effect, effects.Evict | effects.Restore | effects.Demote | effects.Promote):
            return []
        names = self._names(effect.before, now.observed)
        refused = {key: done.refused[name] for name, key in names.items() if name in done.refused}
        if not done.happened and not refused:
            refused = dict.fromkeys(effect.before, done.reason)
        self.refused = retries.after(
            self.refused, effect.name, effect.before, refused, now.now_ms, partial(barred, now.observed)
        )
        return list(refused)

    # ---- replica lists

    def _names(self, keys: Iterable[Key], observed: Observed) -> dict[Name, Key]:
        """Return partitions by topic name and number."""
        found: dict[Name, Key] = {}
        for key in keys:
            known = self.journal.evicted.get(key) or self.journal.demoted.get(key)
            topic = observed.topics.get(key[0]) or (None if known is None else known.topic)
            if topic is not None:
                found[topic, key[1]] = key
        return found

    def restorable(self, directory_id: str | None, observed: Observed) -> Lists:
        """Return the original replica lists of partitions that were evicted from a directory and may be restored."""
        return restorations(observed, self.journal.of(directory_id))

    def to_send(self, task: Task, now: Situation) -> Mapping[Name, tuple[int, ...]]:
        """Return the replica lists that an effect requests, checked against the present metadata. While the journal was
        written, others may have changed a list, or other copies may have left the ISR."""
        observed, node = now.observed, self.site.node_id
        if now.unsure is not None:
            return {}
        match effect := task.effect:
            case effects.Evict():
                may = evictions(observed, Uuid.parse(effect.directory_id), self.site.min_isr).before
                same = {key: lists for key, lists in effect.before.items() if may.get(key) == lists}
                gone = [key for key in task.added if key in observed.partitions and key not in same]
                self.journal = self.journal.without(gone)
                wanted: Lists = {key: tuple(one for one in lists if one != node) for key, lists in same.items()}
            case effects.Restore():
                wanted = restorations(observed, effect.before)
            case _:
                wanted = {}
        names = self._names(wanted, observed)
        return {name: wanted[key] for name, key in names.items()}

    def to_order(self, effect: Effect, now: Situation) -> Mapping[Name, tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the replica lists that get another order, before and after, checked against the present metadata."""
        observed = now.observed
        if now.unsure is not None:
            return {}
        if isinstance(effect, effects.Demote):
            lists = {key: (before, effect.after[key]) for key, before in effect.before.items()}
        elif isinstance(effect, effects.Promote):
            left = promotions(observed, self.journal.demoted_of(effect.directory_id))
            lists = {
                key: (observed.partitions[key].replicas, before)
                for key, before in effect.before.items()
                if left.get(key) == before
            }
        else:
            lists = {}
        same = {
            key: pair
            for key, pair in lists.items()
            if (there := observed.partitions.get(key)) is not None and there.replicas == pair[0]
        }
        return {name: same[key] for name, key in self._names(same, observed).items()}

    def _note_evictions(self, effect: effects.Evict, now: Situation) -> tuple[Key, ...]:
        """Put the present lists into the journal, before they are changed; return the partitions that are new there."""
        topics = now.observed.topics
        added = {
            key: Evicted(effect.directory_id, topics.get(key[0], str(key[0])), before, now.wall_ms)
            for key, before in effect.before.items()
        }
        self._evictions.begun(added)
        new = tuple(key for key in added if key not in self.journal.evicted)
        self.journal = replace(self.journal, evicted={**self.journal.evicted, **added})
        now.observed.follow_evicted(self.journal.evicted)
        return new

    def _note_demotions(self, effect: effects.Demote, now: Situation) -> tuple[Key, ...]:
        """Put the original lists into the journal before they are reordered; return the partitions that are new there.
        A list that was reordered before keeps its first original."""
        topics, added = now.observed.topics, {}
        for key, after in effect.after.items():
            before, known = effect.before[key], self.journal.demoted.get(key)
            if known is not None and known.after == before:
                before = known.before
            if before != after:
                added[key] = Demoted(effect.directory_id, topics.get(key[0], str(key[0])), before, after)
        self._demotions.begun(added)
        new = tuple(key for key in added if key not in self.journal.demoted)
        self.journal = replace(self.journal, demoted={**self.journal.demoted, **added})
        return new

    def _settle(self, now: Situation) -> tuple[list[str], bool]:
        """Compare the replica lists in the journal with the metadata, which are followed. Return the names of the
        partitions that others have changed, and whether the journal is to be written."""
        forgotten: list[str] = []
        journal, observed = self.journal, now.observed
        if journal.demoted and not any(one.under_way is not None for one in self.leading.values()):
            shown = {
                key: demotion_shown(key, one, observed)
                for key, one in journal.demoted.items()
                if key not in journal.evicted  # an evicted partition comes back in the order in which it left
            }
            over, changed = self._demotions.settle(shown, now.now_ms)
            forgotten += [f"{journal.demoted[key].topic}-{key[1]}" for key in changed]
            self.journal = self.journal.not_demoted([*over, *changed])
        if journal.evicted and not any(isinstance(one.under_way, _LISTS) for one in self.directories.values()):
            found = {key: eviction_shown(key, one, observed) for key, one in journal.evicted.items()}
            over, changed = self._evictions.settle(found, now.now_ms)
            forgotten += [f"{journal.evicted[key].topic}-{key[1]}" for key in changed]
            self.journal = self.journal.without([*over, *changed])
        if self.refused:
            there = observed.partitions
            wanted = {"evict": there, "demote": there, "restore": self.journal.evicted, "promote": self.journal.demoted}
            self.refused = retries.kept(self.refused, wanted, now.now_ms, partial(barred, observed))
        if self.journal is journal or self.journal == journal:
            return forgotten, False
        observed.follow_evicted(self.journal.evicted)
        return forgotten, True

    # ---- requests of an operator, and the journal

    def to_write(self, now_ms: int, wall_ms: int) -> Journal:
        """Return the journal with the states of directories and broker; the times are of the same moment."""
        rows = {
            path: (one, self.ids.get(path), wall_ms - (0 if one.offline_ms is None else now_ms - one.offline_ms))
            for path, one in self.directories.items()
        }
        return replace(self.journal, directories=rows, broker=self.broker)

    def to_restore(self, now: Situation) -> Mapping[Name, tuple[int, ...]]:
        """Return the original replica lists of all evicted partitions that may be restored."""
        if now.unsure is not None:
            return {}
        found = restorations(now.observed, {key: one.before for key, one in self.journal.evicted.items()})
        return {name: found[key] for name, key in self._names(found, now.observed).items()}

    def before_start(self, now: Situation, *, masks: bool) -> tuple[Mapping[str, Would], tuple[Task, ...]]:
        """Return the step for each directory of a broker that is about to start, by path, and the tasks that are due
        for it. No step while a broker runs.

        Args:
            now: what is known.
            masks: whether the broker would see a mask that is put over a directory now.
        """
        decided, tasks = self.decide(now), []
        for path in now.disks:
            self._asked_ms[path] = now.now_ms
        gates = {}
        for path in now.disks:
            facts = self._facts(path, decided, now)
            gates[path] = facts.gate
            before = self.standing(path)
            move = directory_steps.before_start(before, facts, now.now_ms, masks=masks)
            if move.effect is not None:
                self.directories[path] = move.standing
                tasks.append(Task(Part.DIRECTORY, path, move.effect, at_gate=True, before=before))
        return gates, tuple(tasks)

    def release(self, path: str, now_ms: int) -> str | tuple[Task, ...]:
        """Release a directory until it is healthy, and return the tasks for that; or why this is not possible now, in
        words."""
        if self.broker.state is broker_steps.State.FENCING:
            return "the broker is being fenced"
        move = directory_steps.release(self.standing(path), path, now_ms)
        if move is None:
            under_way = self.standing(path).under_way
            return f"{'something' if under_way is None else under_way.name} is under way there"
        before, self.directories[path] = self.standing(path), move.standing
        return () if move.effect is None else (Task(Part.DIRECTORY, path, move.effect, before=before),)


def _answers(disk: Disk) -> bool:
    return disk.is_well or disk.over is not None
