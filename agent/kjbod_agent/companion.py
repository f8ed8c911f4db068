"""The other half of a combined node (``process.roles=broker,controller``, Kafka's ``KafkaRaftServer``), which shares
the agent's process: what the agent asks of it.

It serves before the agent registers with it, and is closed last, because a controlled shutdown asks it; but it changes
nothing, and answers nobody, before the agent has found nothing wrong with the directories: what it says to other nodes
from the directory of another disk has them give up their replicas. When
it ends by itself the agent ends with it. What the agent shows of itself (status line, ``kjbod status``, metrics) has it
too.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from kjbod.security.certificates import NO_CERTIFICATES, Certificates

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Companion(Protocol):
    """A part of the node beside the agent, on the same event loop.

    Attributes:
        start_tasks: threads and processes that its start takes.
        start_files: open files that it takes.
    """

    start_tasks: int
    start_files: int

    async def open(self) -> None:
        """Check and lock the companion's files. Changes nothing and opens no port.

        Raises:
            KjbodError: it cannot start; one line.
        """

    async def start(self) -> None:
        """Start it, after :meth:`open`; it serves when this returns.

        Raises:
            KjbodError: it cannot; one line.
        """

    async def run(self) -> None:
        """Wait for an end of its own, for as long as there is none.

        Raises:
            KjbodError: the reason for its end, with the exit code of the process.
            Exception: a bug of it.
        """

    async def close(self) -> None:
        """End it, started or not. Nothing more is said by it then. A second call does nothing."""

    def words(self) -> list[str]:
        """Words about it for the status line of the service manager."""

    def as_json(self) -> dict[str, Any] | None:
        """Figures for ``kjbod status``; None: there is nothing to tell."""

    @property
    def certificates(self) -> Certificates:
        """Certificates of it, once it serves."""

    def process_ids(self) -> tuple[int, ...]:
        """Processes of its own that touch a disk."""

    def pictures(self) -> "Callable[[], Callable[[], Iterable[Metric]]]":
        """Takes a picture of it, on the event loop; calling the picture, in a thread, makes metrics of it."""


class NoCompanion:
    """Companion of an agent that is alone in its process: does nothing."""

    start_tasks = start_files = 0
    certificates = NO_CERTIFICATES

    async def open(self) -> None:
        return

    async def start(self) -> None:
        return

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        return

    def words(self) -> list[str]:
        return []

    def as_json(self) -> dict[str, Any] | None:
        return None

    def process_ids(self) -> tuple[int, ...]:
        return ()

    def pictures(self) -> "Callable[[], Callable[[], Iterable[Metric]]]":
        return lambda: tuple


ALONE: Final = NoCompanion()
