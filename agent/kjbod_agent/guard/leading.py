"""The shell that moves leadership off slow directories, and back: carries out what :mod:`.slow_steps` says.

Lists as they were stand in the journal, fsynced, before any is put in another order. What somebody has changed since is
forgotten, and told.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from kjbod.clock import Clock
from kjbod_agent.guard import slow_steps
from kjbod_agent.guard.book import Book
from kjbod_agent.guard.budget import promotions
from kjbod_agent.guard.effects import Demote, Effect, Promote
from kjbod_agent.guard.journal import Demoted
from kjbod_agent.guard.means import Done, Name, Outcome, Voice, in_requests, summed
from kjbod_agent.guard.observing import Key, Observed
from kjbod_agent.guard.settling import UNFOLLOWED_MS, Settling, demotion_shown

Lists = Mapping[Key, tuple[int, ...]]


class Leading:
    """Leadership of the directories.

    Args:
        book: has the journal.
        voice: speaks with the controllers.
        observed: the metadata as they are.
        clock: the time.
        spawn: runs a coroutine for as long as the guard.
        review: looks at everything again.
    """

    def __init__(
        self,
        book: Book,
        voice: Voice,
        observed: Callable[[], Observed],
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        review: Callable[[], None],
    ) -> None:
        self._book = book
        self._voice = voice
        self._observed = observed
        self._clock = clock
        self._spawn = spawn
        self._review = review
        self._settling = Settling(UNFOLLOWED_MS)
        self.standings: dict[str, slow_steps.Standing] = {}

    def standing(self, path: str) -> slow_steps.Standing:
        """Standing of a directory."""
        return self.standings.get(path, slow_steps.Standing())

    def is_busy(self, path: str) -> bool:
        """Whether lists of what lies there are being put in another order."""
        return self.standing(path).under_way is not None

    def promotable(self, directory_id: str | None) -> Lists:
        """Lists as they were of what was demoted in a directory and may be put back."""
        return promotions(self._observed(), self._book.journal.demoted_of(directory_id))

    def look(self, facts: slow_steps.Facts, now_ms: int) -> int | None:
        """Take what is known now, and begin what is due; when to look again, if not before."""
        before = self.standing(facts.path)
        move = slow_steps.advance(before, facts, now_ms)
        self.standings[facts.path] = move.standing
        if move.standing.state is slow_steps.State.LEADING is not before.state:
            self._book.scribe.stands(facts.path, str(move.standing.state), "")
        if move.effect is not None:
            self._spawn(self._carry_out(facts.path, move.effect))
        return move.again_ms

    async def _carry_out(self, path: str, effect: Effect) -> None:
        added = self._note(effect) if isinstance(effect, Demote) else ()
        written = await self._book.write_down(path, effect)
        if isinstance(effect, Demote) and written is not None:
            self._book.journal = self._book.journal.not_demoted(added)
            done = Done(outcome=Outcome.FAILED, reason=f"the replica lists cannot be written down: {written}")
        elif isinstance(effect, Demote):
            done = await self._order(effect.before, effect.after)
        else:
            assert isinstance(effect, Promote)
            as_left = self.promotable(effect.directory_id)
            known = {key: lists for key, lists in effect.before.items() if as_left.get(key) == lists}
            partitions = self._observed().partitions
            done = await self._order({key: partitions[key].replicas for key in known}, known)
        standing = slow_steps.came_of(self.standing(path), done, self._clock.monotonic_ms())
        self.standings[path] = standing
        self._book.scribe.done(effect.name, path, done)
        self._book.scribe.stands(path, str(standing.state), standing.reason)
        self._spawn(self._book.save())
        self._review()

    def _note(self, effect: Demote) -> list[Key]:
        """Write lists down as they were; of one that we have left in another order before that is what counts."""
        journal, topics, added = self._book.journal, self._observed().topics, {}
        for key, after in effect.after.items():
            before, known = effect.before[key], journal.demoted.get(key)
            if known is not None and known.after == before:
                before = known.before
            if before != after:
                added[key] = Demoted(effect.directory_id, topics.get(key[0], str(key[0])), before, after)
        self._settling.begun(added)
        self._book.journal = replace(journal, demoted={**journal.demoted, **added})
        return [key for key in added if key not in journal.demoted]

    async def _order(self, now: Lists, wanted: Lists) -> Done:
        """Put lists that are still as they were in another order, and have the first of each lead."""
        observed = self._observed()
        names = {
            (observed.topics[key[0]], key[1]): key
            for key, lists in now.items()
            if key[0] in observed.topics and (there := observed.partitions.get(key)) and there.replicas == lists
        }
        if not names:
            return Done(outcome=Outcome.FAILED, reason="the replica lists have changed meanwhile")
        answers: list[Mapping[Name, Done]] = []
        for piece in in_requests(names):
            moved = {name: wanted[names[name]] for name in piece if wanted[names[name]] != now[names[name]]}
            reassigned = await self._voice.reassign(moved) if moved else {}
            answers.append(reassigned)
            if ready := [name for name in piece if name not in reassigned or reassigned[name].happened]:
                answers.append(await self._voice.elect(ready))
        return summed(answers)

    def settle(self) -> None:
        """Compare the lists that are written down with the metadata, which are followed."""
        journal, observed = self._book.journal, self._observed()
        if not journal.demoted or any(one.under_way is not None for one in self.standings.values()):
            return
        shown = {
            key: demotion_shown(key, one, observed)
            for key, one in journal.demoted.items()
            if key not in journal.evicted  # that comes back in the order in which it left
        }
        over, changed = self._settling.settle(shown, self._clock.monotonic_ms())
        if over or changed:
            named = [f"{journal.demoted[key].topic}-{key[1]}" for key in changed]
            self._book.journal = journal.not_demoted([*over, *changed])
            if named:
                self._book.scribe.forgotten(named)
            self._spawn(self._book.save())
