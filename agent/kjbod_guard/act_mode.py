"""Additional parts of a guard in mode act: the privileged helper, the connections to the controllers, the journal, and
the watch over the broker's threads and answers during an action.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.errors import KjbodError
from kjbod.metadata.fetching import Leader
from kjbod.security.channel import Security
from kjbod.wire.client import opened_with
from kjbod_guard import canary, journal, redundancy, stuck
from kjbod_guard.account import Account
from kjbod_guard.action_runner import ActionRunner
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.binding import Holder
from kjbod_guard.boots import boot_id
from kjbod_guard.canary_asking import Asked, CanaryAsking, ports_of
from kjbod_guard.controller_client import ControllerClient, Rights
from kjbod_guard.core import GuardCore
from kjbod_guard.helper_link import Facts as HelperFacts
from kjbod_guard.helper_link import HelperLink, Started
from kjbod_guard.holding import Holding
from kjbod_guard.journal import Journal, JournalError
from kjbod_guard.observing import Observed
from kjbod_guard.picture import ActionCounters
from kjbod_guard.situation import Situation
from kjbod_host.channel import ControllerChannel
from kjbod_host.files.file_process import FileProcess
from kjbod_host.reporter import Log

THREADS_EVERY_MS: Final = 250
IDLE_MS: Final = 250
JOURNAL_TIMEOUT_MS: Final = 5_000
OPEN_AHEAD_TIMEOUT_MS: Final = 5_000
SECURITY_TIMEOUT_MS: Final = 30_000
"""Timeout of the first look at keystores."""


class NoJournalError(KjbodError):
    """The journal of the previous guard cannot be used."""


class _Scribe(Struct):
    """Writer of journal, log and audit of the actions."""

    path: Path
    node: int
    boot_id: str
    clock: Clock
    files: FileProcess
    account: Account

    async def save(self, told: Journal) -> None:
        ahead_ms = self.clock.wall_ms() - self.clock.monotonic_ms()
        content = journal.encode(told, self.node, ahead_ms=ahead_ms, boot_id=self.boot_id)
        await self.files.call("write", str(self.path), content)

    async def does(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        await self.account.does(name, path, facts)

    def done(self, name: str, path: str | None, done: Done) -> None:
        self.account.done(name, path, done)

    def stands(self, path: str | None, state: str, reason: str) -> None:
        self.account.stands(path, state, reason)

    def forgotten(self, names: list[str]) -> None:
        self.account.forgotten(names)

    def unwritten(self, reason: str) -> None:
        self.account.unwritten(reason)


async def load_journal(config: Config, files: FileProcess, clock: Clock) -> Journal:
    """Load the journal of the previous guard.

    Raises:
        NoJournalError: the journal cannot be used.
    """
    path, remedy = Path(config.kjbod_state_dir) / journal.NAME, "see what it says, and move it away"
    try:
        async with asyncio.timeout(JOURNAL_TIMEOUT_MS / 1000):
            content = await files.call("read", str(path))
        now_ms, wall_ms = clock.monotonic_ms(), clock.wall_ms()
        return journal.decode(content, config.node_id, now_ms=now_ms, wall_ms=wall_ms, boot_id=boot_id())
    except FileNotFoundError:
        return Journal()
    except JournalError as error:
        raise NoJournalError(f"{path}: {error}: {remedy}") from error
    except TimeoutError as error:
        raise NoJournalError(f"{path}: no answer within {JOURNAL_TIMEOUT_MS} ms: {remedy}") from error
    except OSError as error:
        raise NoJournalError(f"{path}: {error.strerror}: {remedy}") from error


async def _prepared(security: Security) -> None:
    """Read the files and get the token of a connection's security. The first connection reports errors."""
    with contextlib.suppress(KjbodError):
        await security.context(timeout_ms=SECURITY_TIMEOUT_MS)
        await security.mechanism("", timeout_ms=SECURITY_TIMEOUT_MS)


class Found(Struct, frozen=True):
    """Knowledge of the broker's process.

    Attributes:
        stuck: proof by a thread that the broker is stuck, in words; None: there is none.
        waits: whether any thread waits for a disk that was acted on.
        silent: sign in the broker's answers that it is stuck, in words; None: there is none.
    """

    stuck: str | None = None
    waits: bool = False
    silent: str | None = None


class ActMode:
    """Parts of a guard that acts.

    Args:
        config: of the broker, and kjbod's own keys.
        clock: the time.
        log: gets lines about missing rights.
        account: reports the actions.
        core: decides.
        security: of connections to the controllers.
        asked: the broker's listener that is asked in doubt, or why there is none.
        spawn: runs a coroutine for as long as the guard.
        review: looks at everything again.
        observed: returns the present metadata.
        failed: paths of directories that have failed.
        well: paths of directories that are watched and healthy.
        bound: whether the broker runs.
        situation: returns the present situation; None: the guard ends.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        log: Log,
        account: Account,
        core: GuardCore,
        *,
        security: Security,
        asked: Asked | str,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        review: Callable[[], None],
        observed: Callable[[], Observed],
        failed: Callable[[], Sequence[str]],
        well: Callable[[], Collection[str]],
        bound: Callable[[], bool],
        situation: Callable[[], Situation | None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._log = log
        self._account = account
        self._core = core
        self._spawn = spawn
        self._review = review
        self._observed = observed
        self._failed = failed
        self._well = well
        self._bound = bound
        self._situation = situation
        self._holding: Holding | None = None
        self._broker: tuple[int, int] | None = None
        """Pid and start time of the broker's process."""
        self._held: tuple[int, int] | None = None
        """Pid and start time of the process that the helper accepted as the broker's."""
        self._asked: tuple[int, int] | None = None
        """Pid and start time of the process that the helper was told last, accepted or not."""
        self._told_hold = ""
        self._link: HelperLink | None = None
        self._no_helper = ""
        self._asking: CanaryAsking | None = None
        self._threads = Found()
        self._threads_of: tuple[int, int] | None = None
        """Pid and start time of the process that ``_threads`` is about."""
        self._silent: str | None = None
        self._silent_of: tuple[int, int] | None = None
        self._security, self._asked_listener = security, asked
        client_id = f"kjbod-guard-{config.node_id}"
        self._channels = [
            ControllerChannel(client_id=client_id, clock=clock, spawn=spawn, connect=opened_with(security))
            for _ in range(2)
        ]
        self._controllers = ControllerClient(config.node_id, self._channels[0], self._channels[1], clock)
        self.rights = Rights(self._controllers)
        self.acting: ActionRunner

    def _doubts_canary(self, problem: str | None) -> None:
        """Log that the broker does not answer questions, or answers again. Until then only its threads are judged."""
        if problem is None:
            self._log.info("guard.broker.asked")
        else:
            self._log.warning("guard.broker.not.asked", reason=problem)

    def in_doubt(self) -> None:
        """Prepare for an action, because a disk may be failing: open the connections to the controller, and check the
        guard's rights."""
        for channel in self._channels:
            self._spawn(channel.open_ahead(timeout_ms=OPEN_AHEAD_TIMEOUT_MS))
        self.rights.in_doubt()

    async def open(
        self,
        files: FileProcess,
        helper: Started | str,
        directories: Sequence[str],
        later: Sequence[str],
        own: Sequence[str],
    ) -> None:
        """Open the parts.

        Args:
            files: does file calls in ``kjbod.state.dir``.
            helper: the started helper, or why none was started.
            directories: paths of this broker's directories, as configured.
            later: paths of directories that may turn out to be this broker's.
            own: paths that kjbod needs to run.
        """
        config, clock = self._config, self._clock
        path = Path(config.kjbod_state_dir) / journal.NAME
        no_helper = self._no_helper = helper if isinstance(helper, str) else ""
        if isinstance(helper, Started):
            ports, never = ports_of(config)
            facts = HelperFacts(
                node=config.node_id,
                directories=tuple(directories),
                later=tuple(later),
                ports=ports,
                never_ports=never,
                own=tuple(own),
            )
            self._link = await HelperLink.open(helper, facts, clock=clock, told=self._helper_lost)
            for line in self._link.missing:
                self._log.warning("guard.hand.missing", reason=line)
        else:
            self._helper_lost(no_helper)
        if isinstance(self._asked_listener, str):
            self._log.warning("guard.hand.missing", reason=self._asked_listener)
        else:
            self._asking = CanaryAsking(self._asked_listener, clock=clock, told=self._doubts_canary)
            # The first look at a keystore may start Java's own tool. Do not wait for that tool while a disk is in
            # doubt.
            self._spawn(_prepared(self._asked_listener.security))
        self._spawn(_prepared(self._security))
        self.acting = ActionRunner(
            core=self._core,
            helper=self._link,
            no_helper=no_helper,
            controllers=self._controllers,
            scribe=_Scribe(path, config.node_id, boot_id(), clock, files, self._account),
            clock=clock,
            spawn=self._spawn,
            review=self._review,
            situation=self._situation,
        )
        self._observed().follow_evicted(self._core.journal.evicted)
        self._spawn(self.acting.keep())
        self._spawn(self.rights.watch(self._registration, self._review))
        if self._link is not None:
            self._holding = Holding(
                self._link,
                standing=self._core.standing,
                well=self._well,
                bound=self._bound,
                told=self._account.held,
                clock=clock,
            )
            self._spawn(self._holding.run())

    def _registration(self) -> bool:
        """Whether the broker runs here and is registered. Before that no right can be checked in the broker's name."""
        return self._bound() and self._observed().registration is not None

    def _helper_lost(self, reason: str) -> None:
        self._log.error("guard.hand.missing", reason=f"{reason}: no disk is cut, and no broker killed")

    def close(self) -> None:
        """End the privileged helper, without waiting."""
        if self._link is not None:
            self._link.close()

    def process_ids(self) -> tuple[int, ...]:
        """Return the pid of the privileged helper, if there is one."""
        return () if self._link is None else (self._link.pid,)

    # ---- news from other parts

    def on_leader(self, leader: Leader | None) -> None:
        """Set the active controller that the metadata follower has found."""
        for channel in self._channels:
            channel.set_leader(leader)

    async def hold(self, holder: Holder | None) -> None:
        """Tell the helper which process is the broker; None: no broker runs."""
        if holder is None:
            self._told_hold = ""
            return
        found = (holder.pid, holder.started)
        if found != self._broker:
            self._broker, self._threads, self._silent = found, Found(), None
            if self._asking is not None:
                self._asking.forget()
        if self._link is None or self._link.problem is not None or found == self._held:
            return
        if self._holding is not None:
            await self._holding.look()  # the helper knows the broker by the directories that the helper holds
        done = await self._link.hold(*found)
        self._asked = found
        if done.outcome is Outcome.DONE:
            self._held = found
        elif done.reason != self._told_hold:
            self._log.warning("guard.hand.missing", reason=f"the broker (process {found[0]}): {done.reason}")
        self._told_hold = done.reason

    def watched_anew(self, path: str) -> None:
        """Note that a directory which had failed is healthy, or that its path has another directory."""
        if self._holding is not None:
            self._holding.watched_anew(path)

    async def let_go(self, path: str) -> str | None:
        """Have the helper close a released directory; return why the helper does not, in words."""
        return None if self._holding is None else await self._holding.let_go(path)

    @property
    def no_helper(self) -> str | None:
        """Reason why the privileged helper cannot act on this host; None: it can."""
        return self._no_helper if self._link is None else self._link.problem

    @property
    def unable(self) -> tuple[str, ...]:
        """Reasons why the guard cannot carry out all its decisions, a line each."""
        helper = (self.no_helper,) if self.no_helper else () if self._link is None else tuple(self._link.lacks)
        told = (f"the broker's process cannot be acted on: {self._told_hold}",) if self._told_hold else ()
        return (*self.rights.missing, *(f"the guard cannot act: {line}" for line in helper), *told)

    def no_cut(self, path: str) -> str | None:
        """Return the helper's reason not to cut a directory; None: there is none."""
        frozen = None if self._link is None else self._link.directories.get(path)
        return None if frozen is None else frozen.reason or frozen.no_cut

    def was_told(self, holder: Holder) -> bool:
        """Whether the helper was told that this process is the broker; true without a helper."""
        return self.no_helper is not None or self._asked == (holder.pid, holder.started)

    def found(self, holder: Holder | None) -> Found:
        """Return the evidence about the broker, as far as it is about this process."""
        process = None if holder is None else (holder.pid, holder.started)
        threads = self._threads if self._threads_of == process else Found()
        return Found(threads.stuck, threads.waits, self._silent if self._silent_of == process else None)

    def counters(self, holder: Holder | None) -> ActionCounters:
        """Return the counts of actions up to now, and the evidence about the broker's process."""
        core, observed = self._core, self._observed()
        lacks = 1 if self._link is None or self._link.problem else len(self._link.lacks) + bool(self._told_hold)
        evicted = redundancy.evicted(core.journal, observed)
        since_ms = [core.journal.evicted[key].at_ms for key in evicted]
        found = self.found(holder)
        return ActionCounters(
            outcomes=self._account.outcomes,
            hand_missing=lacks,
            missing_rights=self.rights.missing,
            crippled=found.stuck is not None or (found.waits and found.silent is not None),
            canary_lag=None if self._asking is None else canary.lag(self._asking.canary, observed.offset),
            evicted=len(evicted),
            evicted_since_ms=min(since_ms, default=None),
        )

    # ---- the broker, while in doubt

    @property
    def _in_doubt(self) -> bool:
        """Whether to watch the broker's threads and answers: a disk has failed, or the guard acted a short time ago."""
        return self._broker is not None and (bool(self._failed()) or self._core.in_doubt(self._clock.monotonic_ms()))

    async def watch_threads(self) -> None:
        """Look at the broker's threads, again and again."""
        while True:
            link = self._link
            if link is not None and link.problem is None and self._in_doubt:
                await self._look_at_threads(link)
            else:
                self._threads = Found()
            await asyncio.sleep(THREADS_EVERY_MS / 1000)

    async def _look_at_threads(self, link: HelperLink) -> None:
        process = self._held
        waiting = await link.threads()
        if isinstance(waiting, Done) or process != self._held:
            return
        now_ms = self._clock.monotonic_ms()
        acted = self._core.acted(now_ms)
        situation = self._situation()
        late = () if situation is None else [path for path, disk in situation.disks.items() if disk.is_late]
        failed = {*self._failed(), *acted, *self._core.released, *late}
        found = stuck.crippled(waiting, acted, failed, now_ms)
        seen = Found(None if found is None else found.reason, stuck.waits(waiting, acted, failed, now_ms))
        changed = (seen.stuck is None) != (self._threads.stuck is None) or seen.waits != self._threads.waits
        if changed or process != self._threads_of:
            self._threads, self._threads_of = seen, process
            self._review()

    async def watch_answers(self) -> None:
        """Ask the broker for its versions, again and again."""
        asking = self._asking
        if asking is None:
            return
        try:
            while True:
                if self._in_doubt and self._is_here:
                    await self._ask(asking)
                    await asyncio.sleep(canary.EVERY_MS / 1000)
                else:
                    asking.forget()
                    self._silent = None
                    await asyncio.sleep(IDLE_MS / 1000)
        finally:
            with contextlib.suppress(Exception):
                await asking.close()

    @property
    def _is_here(self) -> bool:
        """Whether answers at the broker's port come from the broker. They may not if its network namespace is another
        one, or is unknown. Without a helper the answers have no effect."""
        return self._link is None or (self._link.apart is False and self._held == self._broker)

    async def _ask(self, asking: CanaryAsking) -> None:
        process = self._broker
        await asking.ask()
        if process != self._broker:
            return
        asking.committed(self._observed().offset)
        reason = canary.verdict(asking.canary, self._clock.monotonic_ms())
        if (reason is None) != (self._silent is None) or process != self._silent_of:
            self._silent, self._silent_of = reason, process
            self._review()
