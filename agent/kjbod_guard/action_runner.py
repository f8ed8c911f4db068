"""The shell that acts: carries out the tasks of the core (:mod:`.core`), and tells the core their outcomes.

Each directory, its leadership, the record of suspected directories and the broker have at most one effect in progress.
A task with ``is_saved`` is in the journal and in the audit, fsynced, before it begins; then the core decides again. A
state directory that does not answer delays only changes of replica lists: they begin when the journal has the old
lists.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from kjbod.clock import Clock
from kjbod_guard import effects, lists
from kjbod_guard.actions import Controllers, Done, Helper, Outcome
from kjbod_guard.core import GuardCore, Look, Part, Task
from kjbod_guard.directory_steps import State
from kjbod_guard.journal_writer import JournalWriter, Scribe
from kjbod_guard.ladder import Would
from kjbod_guard.situation import Situation
from kjbod_guard.slow_steps import State as Leadership
from kjbod_guard.suspects import encode

CUT_WITHIN_MS = 1_000
"""Maximum time from a look to the beginning of a file-system shutdown. Later the look is too old to allow it."""
_ON_THE_WAY = frozenset(map(str, (State.CUTTING, State.MASKING, State.UNMASKING, State.EVICTING, State.RELEASING)))


class ActionRunner:
    """Carries out the actions of a guard.

    Args:
        core: decides.
        helper: the privileged helper; None: this guard has no rights, see ``no_helper``.
        no_helper: why there is no helper, in words.
        controllers: speaks with the controllers.
        scribe: writes journal, log and audit.
        clock: the time.
        spawn: runs a coroutine for as long as the guard.
        review: looks at everything again, and calls :meth:`take`.
        situation: returns the present situation; None: the guard ends.
    """

    def __init__(
        self,
        *,
        core: GuardCore,
        helper: Helper | None,
        no_helper: str = "",
        controllers: Controllers,
        scribe: Scribe,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        review: Callable[[], None],
        situation: Callable[[], Situation | None],
    ) -> None:
        self.core = core
        self._helper = helper
        self._no_helper = no_helper
        self._controllers = controllers
        self._clock = clock
        self._spawn = spawn
        self._review = review
        self._situation = situation
        self._told: dict[str | None, tuple[str, str]] = {}
        self._led: dict[str, str] = {}
        self._journal_writer = JournalWriter(core, scribe, clock)

    @property
    def unwritten(self) -> str:
        """Reason why the journal cannot be written, in words; empty: it can be."""
        return self._journal_writer.trouble

    async def keep(self) -> None:
        """Write the journal again and again, until cancelled."""
        await self._journal_writer.keep()

    def take(self, look: Look) -> None:
        """Begin the tasks of a look, and report the states of directories and broker."""
        if look.forgotten:
            self._journal_writer.scribe.forgotten(list(look.forgotten))
        if look.changed:
            self._spawn(self._journal_writer.save())
        self._tell_states()
        self._begin(look.tasks)

    def _begin(self, tasks: tuple[Task, ...]) -> None:
        for task in tasks:
            self._spawn(self._carry_out(task))

    # ---- one effect

    async def _carry_out(self, task: Task) -> None:
        """Write a task to the journal, carry it out, and tell the core the outcome."""
        trouble = await self._journal_writer.write_down(task.path, task.effect) if task.is_saved else None
        if (now := self._situation()) is None:
            return
        found = self.core.saved(task, trouble, now)
        if isinstance(found, Done):
            self._done(task, found)
            return
        if not task.is_saved:
            self._journal_writer.tell_soon(task.path, task.effect, self._spawn)
        done = await self._do(task, now)
        if (now := self._situation()) is not None:
            self.core.came_of(task, done, now)
        self._done(task, done)

    def _done(self, task: Task, done: Done) -> None:
        self._journal_writer.scribe.done(task.effect.name, task.path, done)
        self._tell_states()
        if task.part is not Part.RECORD:
            self._spawn(self._journal_writer.save())
        self._review()

    async def _do(self, task: Task, now: Situation) -> Done:
        match effect := task.effect:
            case effects.Suspect():
                return await self._controllers.suspect(encode(effect.epoch, effect.directory_ids, effect.mark))
            case effects.Trust():
                return await self._controllers.suspect(None)
            case effects.Evict() | effects.Restore():
                return await lists.reassign(self._controllers, self.core.to_send(task, now))
            case effects.Demote() | effects.Promote():
                return await lists.order(self._controllers, self.core.to_order(effect, now))
            case effects.Report():
                return await self._controllers.report(effect.epoch, effect.directory_ids)
            case effects.Fence():
                return await self._controllers.fence(effect.epoch)
        if self._helper is None:
            return Done(outcome=Outcome.REFUSED, reason=self._no_helper)
        match effect:
            case effects.Cut():
                return await self._helper.cut(effect.path, now.now_ms + CUT_WITHIN_MS)
            case effects.Mask():
                return await self._helper.mask(effect.path)
            case effects.Unmask():
                return await self._helper.unmask(effect.path)
            case effects.Kill():
                return await self._helper.kill()
            case effects.Reset():
                return await self._helper.reset()
            case effects.Unreset():
                return await self._helper.unreset()
            case effects.Destroy():
                return await self._helper.destroy()
        return Done(outcome=Outcome.REFUSED, reason=f"nobody does {effect.name}")

    # ---- reports

    def _tell_states(self) -> None:
        """Report changed states of broker, directories and leadership to log and audit."""
        self._tell(None, str(self.core.broker.state), self.core.broker.reason)
        for path, one in self.core.directories.items():
            self._tell(path, str(one.state), one.reason)
        for path, led in self.core.leading.items():
            state = str(led.state)
            if self._led.get(path, str(Leadership.LEADING)) != state:
                self._led[path] = state
                self._journal_writer.scribe.stands(path, state, led.reason)

    def _tell(self, path: str | None, state: str, reason: str) -> None:
        if state in _ON_THE_WAY:
            return  # the action itself is reported; this saves an fsync before it
        before = self._told.get(path, (str(State.WELL), ""))
        if before != (state, reason):
            self._told[path] = (state, reason)
            self._journal_writer.scribe.stands(path, state, reason)

    # ---- requests of an operator

    def before_start(self, *, masks: bool) -> Mapping[str, Would]:
        """Begin the tasks that are due before a broker starts; return the step for each directory, by path."""
        if (now := self._situation()) is None:
            return {}
        gates, tasks = self.core.before_start(now, masks=masks)
        self._begin(tasks)
        self._review()
        return gates

    def release(self, path: str) -> str | None:
        """Release a directory: remove its mask, and leave it unchanged until it is healthy. Return why not now, in
        words."""
        found = self.core.release(path, self._clock.monotonic_ms())
        if isinstance(found, str):
            return found
        self._tell_states()
        self._begin(found)
        if not found:
            self._spawn(self._journal_writer.save())
        return None

    async def restore_now(self) -> tuple[int, Done | None]:
        """Put the broker back into all replica lists from which it was evicted; return their number and the outcome."""
        now = self._situation()
        found = {} if now is None else self.core.to_restore(now)
        if not found:
            return 0, None
        await self._journal_writer.tell("restore", None, {"partitions": len(found), "asked": "kjbod guard restore"})
        done = await lists.reassign(self._controllers, found)
        self._journal_writer.scribe.done("restore", None, done)
        return len(found), done
