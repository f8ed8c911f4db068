"""The shell that acts: takes what is known to the ladder's machines, and carries out what they say.

For each directory, and for the broker, there is one effect at a time. Before it is begun it stands in the journal and
in the audit, fsynced; what came of it stands there after it. A cut, mask or kill is decided once more when that is
written: a disk that has answered meanwhile is left alone. What is done about replica lists is :mod:`.evicting` and
:mod:`.leading`; a state directory that does not answer holds up nothing but them, which are never begun before the
lists are safe.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from kjbod.clock import Clock
from kjbod_agent.guard import broker_steps, directory_steps, effects
from kjbod_agent.guard.book import Book, Scribe
from kjbod_agent.guard.effects import Effect
from kjbod_agent.guard.evicting import Evicting
from kjbod_agent.guard.journal import Journal
from kjbod_agent.guard.ladder import Would
from kjbod_agent.guard.leading import Leading
from kjbod_agent.guard.means import Done, Hand, Outcome, Voice
from kjbod_agent.guard.observing import Observed

ROUNDS_MAX: Final = 20
_ON_THE_WAY: Final = frozenset(
    map(
        str,
        (
            directory_steps.State.CUTTING,
            directory_steps.State.MASKING,
            directory_steps.State.EVICTING,
            directory_steps.State.RELEASING,
        ),
    )
)
DOUBT_MS: Final = 120_000
"""How long after a step the broker is watched more closely."""


Known = tuple[Mapping[str, directory_steps.Facts], broker_steps.Facts]
"""What is known of the directories, by path, and of the broker."""


class Acting:
    """A guard's deeds.

    Args:
        node: id of the broker.
        hand: acts on this host; None: it has no rights, see ``no_hand``.
        no_hand: why there is none, in words.
        voice: speaks with the controllers.
        journal: of the guard before this one.
        scribe: writes journal, log and audit.
        observed: the metadata as they are.
        clock: the time.
        spawn: runs a coroutine for as long as the guard.
        review: looks at everything again, and calls :meth:`look`.
        known: what is known at this moment; None: nobody can say.
    """

    def __init__(
        self,
        *,
        node: int,
        hand: Hand | None,
        no_hand: str = "",
        voice: Voice,
        journal: Journal,
        scribe: Scribe,
        observed: Callable[[], Observed],
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        review: Callable[[], None],
        known: Callable[[], Known | None],
    ) -> None:
        self._hand = hand
        self._no_hand = no_hand
        self._voice = voice
        self._observed = observed
        self._clock = clock
        self._spawn = spawn
        self._review = review
        self._known = known
        self._fenced_before = journal.fenced
        self._timer: asyncio.TimerHandle | None = None
        self._told: dict[str | None, tuple[str, str]] = {}
        self._at_gate: set[str] = set()
        """Paths of directories about which something was begun because a broker is about to start."""
        self._book = book = Book(journal, scribe, self._with_standings)
        self.evicting = Evicting(node, book, voice, observed, clock, spawn)
        self.leading = Leading(book, voice, observed, clock, spawn, review)
        self.directories = {path: row[0] for path, row in journal.directories.items()}
        self._ids = {path: row[1] for path, row in journal.directories.items()}
        self.broker = journal.broker
        self.dealt_ms = {path: clock.monotonic_ms() for path, one in self.directories.items() if one.means is not None}

    # ---- for others

    @property
    def journal(self) -> Journal:
        """The journal, as it is to be written."""
        return self._book.journal

    @property
    def unwritten(self) -> str:
        """Reason why the journal cannot be written, in words; empty: it can be."""
        return self._book.trouble

    async def keep(self) -> None:
        """Keep the journal written."""
        await self._book.keep()

    def standing(self, path: str) -> directory_steps.Standing:
        """Standing of a directory on the ladder."""
        return self.directories.get(path, directory_steps.Standing())

    @property
    def released(self) -> frozenset[str]:
        """Paths of directories that somebody has asked to leave alone."""
        return frozenset(path for path, one in self.directories.items() if directory_steps.is_released(one))

    def directory_id(self, path: str) -> str | None:
        """The id of a directory that nobody can read now, as a guard before us had read it."""
        return self._ids.get(path)

    @property
    def in_doubt(self) -> bool:
        """Whether something is being done, or was done a short while ago."""
        now_ms, well = self._clock.monotonic_ms(), directory_steps.State.WELL
        return self.broker.state in (broker_steps.State.CRIPPLED, broker_steps.State.FENCING) or any(
            one.state is not well and now_ms - one.since_ms < DOUBT_MS for one in self.directories.values()
        )

    # ---- what is to be done

    def look(self, directories: Mapping[str, directory_steps.Facts], broker: broker_steps.Facts) -> None:
        """Take what is known now, and begin what is due."""
        now_ms = self._clock.monotonic_ms()
        waits = [self._look_at_broker(broker, now_ms)]
        for path, facts in directories.items():
            waits.append(self._look_at(path, facts, now_ms))
        due = [one for one in waits if one is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(1, min(due)) / 1000, self._review)

    def settle(self) -> None:
        """Compare what is written down of replica lists with the metadata, which are followed."""
        self.leading.settle()
        lists = effects.Evict | effects.Restore
        if not any(isinstance(one.under_way, lists) for one in self.directories.values()):
            self.evicting.settle()

    def _look_at(self, path: str, facts: directory_steps.Facts, now_ms: int) -> int | None:
        if self.broker.state is broker_steps.State.FENCING:
            facts = replace(facts, present=False)
        self._identified(path, facts.directory_id)
        if self.leading.is_busy(path):  # the lists are being changed by ourselves
            facts = replace(facts, evict={}, restore={})
        move = directory_steps.advance(self.standing(path), facts, now_ms)
        self._stands(path, move.standing)
        if move.effect is not None:
            self._spawn(self._carry_out(path, move.effect))
        if facts.slow is None:
            return move.again_ms
        free = facts.present and move.standing.state is directory_steps.State.WELL and move.effect is None
        slow_ms = self.leading.look(replace(facts.slow, free=facts.slow.free and free), now_ms)
        return min((one for one in (move.again_ms, slow_ms) if one is not None), default=None)

    def _identified(self, path: str, now: str | None) -> None:
        """Take the id of a directory. A new disk has a new one: what was evicted from the one before goes back when the
        broker has it; two that are mounted in each other's place keep theirs."""
        before, self._ids[path] = self._ids.get(path), now
        registration = self._observed().registration
        registered = () if registration is None else map(str, registration.log_dirs)
        if None is not before != now is not None and before not in {*self._ids.values(), *registered}:
            self._book.journal = self.journal.replaced(before, now)

    def _look_at_broker(self, facts: broker_steps.Facts, now_ms: int) -> int | None:
        for _ in range(ROUNDS_MAX):
            move = broker_steps.advance(self.broker, facts, now_ms)
            self.broker = move.standing
            if move.again_ms != 0:
                break
        self._tell(None, str(self.broker.state), self.broker.reason)
        if move.effect is not None:
            if isinstance(move.effect, effects.Kill) and self.broker.epoch is not None:
                self._fenced_before = self.journal.fenced
                self._book.journal = replace(self.journal, fenced=(self.broker.epoch, now_ms))
            self._spawn(self._carry_out(None, move.effect))
        return move.again_ms

    def _stands(self, path: str, standing: directory_steps.Standing) -> None:
        if standing.state is directory_steps.State.WELL and standing.means is None:
            self.dealt_ms.pop(path, None)
        self.directories[path] = standing
        self._tell(path, str(standing.state), standing.reason)

    def _tell(self, path: str | None, state: str, reason: str) -> None:
        if state in _ON_THE_WAY:
            return  # what is done there is told, and one line less is to be fsynced before it
        before = self._told.get(path, (str(directory_steps.State.WELL), ""))
        if before != (state, reason):
            self._told[path] = (state, reason)
            self._book.scribe.stands(path, state, reason)

    def _with_standings(self, journal: Journal) -> Journal:
        """A journal with where directories and broker stand now."""
        wall_ms, now_ms = self._clock.wall_ms(), self._clock.monotonic_ms()
        rows = {
            path: (one, self._ids.get(path), wall_ms - (0 if one.offline_ms is None else now_ms - one.offline_ms))
            for path, one in self.directories.items()
        }
        return replace(journal, directories=rows, broker=self.broker)

    # ---- one effect

    async def _carry_out(self, path: str | None, effect: Effect) -> None:
        """Write an effect down, do it, and go on from what came of it."""
        noted = self.evicting.note(effect) if isinstance(effect, effects.Evict) else ()
        written = await self._book.write_down(path, effect)
        passed = self._why_passed(path, effect)
        if path is not None:
            self._at_gate.discard(path)
        if isinstance(effect, effects.Evict) and written is not None:
            self._book.journal = self.journal.without(noted)
            done = Done(outcome=Outcome.FAILED, reason=f"the replica lists cannot be written down: {written}")
        elif passed is not None:
            self._drop(path, effect, passed)
            return
        else:
            done = await self._do(effect)
        self._book.scribe.done(effect.name, path, done)
        now_ms = self._clock.monotonic_ms()
        if path is None:
            self.broker = broker_steps.came_of(self.broker, done, now_ms)
        else:
            self._stands(path, directory_steps.came_of(self.standing(path), done, now_ms))
        if isinstance(effect, effects.Cut | effects.Mask) and done.happened:
            self.dealt_ms[effect.path] = now_ms
            if path is None:  # in a fence
                cut = replace(self.standing(effect.path), state=directory_steps.State.CUT, since_ms=now_ms)
                self._stands(effect.path, cut)
        self._spawn(self._book.save())
        self._review()

    def _why_passed(self, path: str | None, effect: Effect) -> str | None:
        """Reason why something that cannot be taken back would not be begun any more, by what is known now, in words;
        None: it would."""
        known = self._known() if isinstance(effect, effects.Cut | effects.Mask | effects.Kill) else None
        if known is None:
            return None
        directories, broker = known
        now_ms = self._clock.monotonic_ms()
        if path is None:
            again = broker_steps.advance(replace(self.broker, under_way=None), broker, now_ms).effect
            reason = broker.refusal
        else:
            facts, standing = directories[path], replace(self.standing(path), under_way=None)
            if path in self._at_gate:
                again = directory_steps.before_start(standing, facts, now_ms, masks=True).effect
            else:
                again = directory_steps.advance(standing, facts, now_ms).effect
            reason = facts.decided.reason
        return None if again == effect else reason or "what spoke for it has passed"

    def _drop(self, path: str | None, effect: Effect, reason: str) -> None:
        """Leave out what was to be done; what is to be done instead is seen by the next look."""
        self._book.scribe.done(effect.name, path, Done(outcome=Outcome.REFUSED, reason=f"not any more: {reason}"))
        if path is None:
            self.broker = replace(self.broker, under_way=None)
            if isinstance(effect, effects.Kill):
                self._book.journal = replace(self.journal, fenced=self._fenced_before)
        else:
            self._stands(path, replace(self.standing(path), under_way=None))
        self._spawn(self._book.save())
        self._review()

    async def _do(self, effect: Effect) -> Done:
        match effect:
            case effects.Evict():
                return await self.evicting.leave(effect.before)
            case effects.Restore():
                return await self.evicting.restore(effect.before)
            case effects.Report():
                return await self._voice.report(effect.epoch, [effect.directory_id])
            case effects.Fence():
                return await self._voice.fence(effect.epoch)
        if self._hand is None:
            return Done(outcome=Outcome.REFUSED, reason=self._no_hand)
        match effect:
            case effects.Cut():
                return await self._hand.cut(effect.path)
            case effects.Mask():
                return await self._hand.mask(effect.path)
            case effects.Unmask():
                return await self._hand.unmask(effect.path)
            case effects.Kill():
                return await self._hand.kill()
            case effects.Reset():
                return await self._hand.reset()
            case effects.Unreset():
                return await self._hand.unreset()
            case effects.Destroy():
                return await self._hand.destroy()
        return Done(outcome=Outcome.REFUSED, reason=f"nobody does {effect.name}")

    # ---- by hand

    def before_start(self, *, masks: bool) -> Mapping[str, Would]:
        """Begin what is due because a broker is about to start: what the ladder says, by path. Nothing while one runs.

        Args:
            masks: whether it would see a mask that is put over a directory now.
        """
        known = self._known()
        if known is None:
            return {}
        now_ms = self._clock.monotonic_ms()
        for path, facts in known[0].items():
            move = directory_steps.before_start(self.standing(path), facts, now_ms, masks=masks)
            if move.effect is not None:
                self._at_gate.add(path)
                self._stands(path, move.standing)
                self._spawn(self._carry_out(path, move.effect))
        return {path: facts.gate for path, facts in known[0].items()}

    def release(self, path: str) -> str | None:
        """Take a mask away, and leave the directory alone until it is well; why not now, in words."""
        if self.broker.state is broker_steps.State.FENCING:
            return "the broker is being given up"
        move = directory_steps.release(self.standing(path), path, self._clock.monotonic_ms())
        if move is None:
            under_way = self.standing(path).under_way
            return f"{'something' if under_way is None else under_way.name} is under way there"
        self._stands(path, move.standing)
        if move.effect is not None:
            self._spawn(self._carry_out(path, move.effect))
        else:
            self._spawn(self._book.save())
        return None
