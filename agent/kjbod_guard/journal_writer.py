"""The shell that writes the actions of a guard to journal, log and audit. An act is in the journal, fsynced, before it
begins.

A state directory that does not answer delays an act for :data:`PATIENCE_MS` at most. The journal is replaced regularly,
so that the guard learns of a write problem before an action is needed.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from kjbod.clock import Clock
from kjbod.files import reason_of
from kjbod_guard.actions import Done
from kjbod_guard.core import GuardCore
from kjbod_guard.effects import Effect
from kjbod_guard.journal import Journal

PATIENCE_MS: Final = 500
"""How long an act waits for the journal and the audit."""
NO_ANSWER: Final = f"kjbod.state.dir did not answer within {PATIENCE_MS} ms"
KEEP_MS: Final = 60_000
"""Time between two replacements of the journal without an action. This also restores a removed file."""
AGAIN_MS: Final = 5_000
"""Time between two replacements of the journal while it cannot be written."""


class Scribe(Protocol):
    """Writer of journal, log and audit."""

    async def save(self, journal: Journal) -> None:
        """Replace the journal, durably.

        Raises:
            OSError: it could not be.
        """

    async def does(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        """Report an action to log and audit before it begins; return when the audit is fsynced. Never raises."""

    def done(self, name: str, path: str | None, done: Done) -> None:
        """Report the outcome of an action to log and audit."""

    def stands(self, path: str | None, state: str, reason: str) -> None:
        """Report to log and audit a new state of a directory or the broker (None), or a new reason for it."""

    def forgotten(self, names: list[str]) -> None:
        """Report partitions that will not be restored, because others have changed them."""

    def unwritten(self, reason: str) -> None:
        """Log why the journal cannot be written; empty: it can be written again."""


class JournalWriter:
    """Writer of a core's journal.

    Args:
        core: has the journal.
        scribe: writes journal, log and audit.
        clock: the time.

    Attributes:
        scribe: tells log and audit.
        trouble: why the last write of the journal failed, in words; empty: it worked.
    """

    def __init__(self, core: GuardCore, scribe: Scribe, clock: Clock) -> None:
        self.scribe = scribe
        self.trouble = ""
        self._core = core
        self._clock = clock
        self._troubled = asyncio.Event()
        self._save_turn = asyncio.Lock()

    async def write_down(self, path: str | None, effect: Effect) -> str | None:
        """Write an effect to journal and audit; return why that failed or was late, in words."""
        try:
            async with asyncio.timeout(PATIENCE_MS / 1000):
                await self.scribe.does(effect.name, path, effect.facts())  # told, also where the journal fails
                await self._save()
        except TimeoutError:
            return self._in_trouble(NO_ANSWER)
        except OSError as error:
            return self._in_trouble(reason_of(error))
        return None

    def tell_soon(self, path: str | None, effect: Effect, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Report an effect to log and audit without waiting."""
        spawn(self.tell(effect.name, path, effect.facts()))

    async def tell(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        """Report an action to log and audit. Waits at most :data:`PATIENCE_MS` for the state directory."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_MS / 1000):
                await self.scribe.does(name, path, facts)

    async def keep(self) -> None:
        """Replace the journal again and again, until cancelled."""
        while True:
            await self.save()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_MS / 1000):
                    await self._troubled.wait()
                    await asyncio.sleep(AGAIN_MS / 1000)

    async def save(self) -> None:
        """Replace the journal. Only one write at a time: a write that hangs blocks all later ones."""
        timer = asyncio.get_running_loop().call_later(PATIENCE_MS / 1000, self._in_trouble, NO_ANSWER)
        try:
            await self._save()
        except OSError as error:
            self._in_trouble(reason_of(error))
        finally:
            timer.cancel()

    async def _save(self) -> None:
        """Replace the journal.

        Raises:
            OSError: it could not be.
        """
        async with self._save_turn:
            await self.scribe.save(self._core.to_write(self._clock.monotonic_ms(), self._clock.wall_ms()))
            self._in_trouble("")

    def _in_trouble(self, reason: str) -> str:
        if reason != self.trouble:
            self.trouble = reason
            if reason:
                self._troubled.set()
            else:
                self._troubled.clear()
            self.scribe.unwritten(reason)
        return reason
