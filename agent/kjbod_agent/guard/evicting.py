"""The shell that takes the broker out of replica lists, and puts it back.

Lists as they were stand in the journal, fsynced, before any is changed. What somebody has changed since is forgotten,
and told.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from kjbod.clock import Clock
from kjbod_agent.guard.book import Book
from kjbod_agent.guard.budget import restorations
from kjbod_agent.guard.effects import Evict
from kjbod_agent.guard.journal import Evicted
from kjbod_agent.guard.means import Done, Outcome, Voice, in_requests, summed
from kjbod_agent.guard.observing import Key, Observed
from kjbod_agent.guard.settling import UNFOLLOWED_MS, Settling, eviction_shown

Lists = Mapping[Key, tuple[int, ...]]


class Evicting:
    """Evictions.

    Args:
        node: id of the broker.
        book: has the journal.
        voice: speaks with the controllers.
        observed: the metadata as they are.
        clock: the time.
        spawn: runs a coroutine for as long as the guard.
    """

    def __init__(
        self,
        node: int,
        book: Book,
        voice: Voice,
        observed: Callable[[], Observed],
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._node = node
        self._book = book
        self._voice = voice
        self._observed = observed
        self._clock = clock
        self._spawn = spawn
        self._settling = Settling(UNFOLLOWED_MS)

    def restorable(self, directory_id: str | None) -> Lists:
        """Lists of partitions that were evicted from a directory and may be put back."""
        return restorations(self._observed(), self._book.journal.of(directory_id))

    def follow(self) -> None:
        """Follow the partitions of the journal from now on, also those that the broker has left."""
        self._observed().follow_evicted(self._book.journal.evicted)

    def note(self, effect: Evict) -> list[Key]:
        """Put lists into the journal as they are; the partitions that were not in it. The others may yet be left by an
        earlier request that nobody has answered."""
        at_ms, topics = self._clock.wall_ms(), self._observed().topics
        added = {
            key: Evicted(effect.directory_id, topics.get(key[0], str(key[0])), before, at_ms)
            for key, before in effect.before.items()
        }
        self._settling.begun(added)
        journal = self._book.journal
        self._book.journal = replace(journal, evicted={**journal.evicted, **added})
        self.follow()
        return [key for key in added if key not in journal.evicted]

    async def leave(self, before: Lists) -> Done:
        """Take the broker out of lists that are noted, as far as they are still as they were."""
        if not (same := self._as_they_are(before)):
            return Done(outcome=Outcome.FAILED, reason="the replica lists have changed meanwhile")
        return await self._reassign({key: tuple(one for one in same[key] if one != self._node) for key in same})

    async def restore(self, before: Lists) -> Done:
        """Put the broker back into lists, as they were, as far as they are still as it left them: to write it down
        takes its time, and somebody may have begun to reassign them meanwhile."""
        as_left = restorations(self._observed(), before)
        if not as_left:
            return Done(outcome=Outcome.FAILED, reason="the replica lists have changed meanwhile")
        return await self._reassign(as_left)

    async def restore_now(self) -> tuple[int, Done | None]:
        """Put the broker back into all lists that it was taken out of; how many, and what came of it."""
        found = restorations(self._observed(), {key: one.before for key, one in self._book.journal.evicted.items()})
        if not found:
            return 0, None
        await self._book.tell("restore", None, {"partitions": len(found), "asked": "kjbod guard restore"})
        done = await self.restore(found)
        self._book.scribe.done("restore", None, done)
        return len(found), done

    def settle(self) -> None:
        """Compare the evictions that are written down with the metadata, which are followed."""
        journal, observed = self._book.journal, self._observed()
        if not journal.evicted:
            return
        shown = {key: eviction_shown(key, one, observed) for key, one in journal.evicted.items()}
        over, changed = self._settling.settle(shown, self._clock.monotonic_ms())
        if over or changed:
            self._book.journal = journal.without([*over, *changed])
            self.follow()
            if changed:
                self._book.scribe.forgotten([f"{journal.evicted[key].topic}-{key[1]}" for key in changed])
            self._spawn(self._book.save())

    def _as_they_are(self, before: Lists) -> Lists:
        """Of the lists that are to be left, those that are as they were when that was decided: to write it down takes
        its time, and another guard may have taken its broker out meanwhile."""
        found = {key: self._observed().partitions.get(key) for key in before}
        same = {key: lists for key, lists in before.items() if (now := found[key]) and now.replicas == lists}
        self._book.journal = self._book.journal.without(key for key, now in found.items() if now and key not in same)
        return same

    async def _reassign(self, lists: Lists) -> Done:
        """Have the controllers give partitions of the journal these replica lists."""
        evicted = self._book.journal.evicted
        wanted = {(evicted[key].topic, key[1]): lists[key] for key in lists if key in evicted}
        return summed(
            [await self._voice.reassign({name: wanted[name] for name in piece}) for piece in in_requests(wanted)]
        )
