"""The shell that writes down what a guard does: its journal, and what log and audit are told. An act is in the journal,
fsynced, before it begins.

A state directory that does not answer holds up an act for :data:`PATIENCE_MS` at most. The journal is replaced again
and again, so that the guard knows that it cannot be written before anything is to be done.
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
"""Between two times when the journal is replaced though nothing is done: so it is there again where it was removed."""
AGAIN_MS: Final = 5_000
"""The same while it cannot be."""


class Scribe(Protocol):
    """The writer of journal, log and audit."""

    async def save(self, journal: Journal) -> None:
        """Replace the journal, durably.

        Raises:
            OSError: it could not be.
        """

    async def does(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        """Tell log and audit what is about to be done; returns when it is fsynced, and never raises."""

    def done(self, name: str, path: str | None, done: Done) -> None:
        """Tell log and audit what came of it."""

    def stands(self, path: str | None, state: str, reason: str) -> None:
        """Tell log and audit that a directory, or the broker (None), has entered a state, or why it is left there."""

    def forgotten(self, names: list[str]) -> None:
        """Tell that partitions will not be restored, since somebody has changed them."""

    def unwritten(self, reason: str) -> None:
        """Tell that the journal cannot be written, and why; empty: it can be again."""


class JournalWriter:
    """The writer of a core's journal.

    Args:
        core: has the journal.
        scribe: writes down.
        clock: the time.

    Attributes:
        scribe: tells log and audit.
        trouble: why the journal could not be written the last time, in words; empty: it was.
    """

    def __init__(self, core: GuardCore, scribe: Scribe, clock: Clock) -> None:
        self.scribe = scribe
        self.trouble = ""
        self._core = core
        self._clock = clock
        self._troubled = asyncio.Event()
        self._save_turn = asyncio.Lock()

    async def write_down(self, path: str | None, effect: Effect) -> str | None:
        """Put an effect into journal and audit; why that did not work in time, in words."""
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
        """Tell log and audit of an effect that waits for nobody."""
        spawn(self.tell(effect.name, path, effect.facts()))

    async def tell(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        """Tell log and audit what somebody has asked for: it does not wait for a state directory that is silent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_MS / 1000):
                await self.scribe.does(name, path, facts)

    async def keep(self) -> None:
        """Replace the journal again and again."""
        while True:
            await self.save()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KEEP_MS / 1000):
                    await self._troubled.wait()
                    await asyncio.sleep(AGAIN_MS / 1000)

    async def save(self) -> None:
        """Replace the journal. One that is on its way for ever lets no other one begin."""
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
