"""The shell that opens and closes the guard's account with its writers, and reports regular samples."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.ids import Uuid
from kjbod_guard.account import Account, Audit
from kjbod_guard.following import Following
from kjbod_guard.watching import Watching
from kjbod_host.files.file_process import FileProcess
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.report_writer import Limits, ReportWriter
from kjbod_host.reporter import Log, Sender

END_TIMEOUT_MS: Final = 1_000


class Reporting:
    """The account and its writers.

    Args:
        config: of the broker, and kjbod's own keys.
        mode: ``observe`` or ``act``.
        clock: the time.
        log: the log.

    Attributes:
        account: log, health report and audit; set by :meth:`open`.
        audit: the audit alone; set by :meth:`open`.
    """

    def __init__(self, config: Config, mode: str, clock: Clock, log: Log) -> None:
        self._config = config
        self._mode = mode
        self._clock = clock
        self._log = log
        self._reports: ReportWriter | None = None
        self._is_open = False
        self.account: Account
        self.audit: Audit

    async def open(
        self,
        incarnation_id: Uuid,
        watching: Watching,
        files: FileProcess,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Open the account, and report the watched directories.

        Args:
            incarnation_id: of this run.
            watching: the directories.
            files: does file calls in ``kjbod.state.dir``.
            spawn: runs a coroutine for as long as the guard.
        """
        config = self._config
        host = config.kjbod_host or socket.gethostname()
        reports = self._reports = ReportWriter(
            Path(config.kjbod_reports_dir),
            host=host,
            boot_id=str(incarnation_id),
            clock=self._clock,
            limits=Limits(rotate_interval_ms=config.kjbod_reports_rotate_interval_ms),
        )
        await reports.start()
        sender = Sender(
            host=host,
            broker_id=config.node_id,
            boot_id=str(incarnation_id),
            fleet=watching.cluster_id or "",
            rack=config.broker_rack,
        )
        self.audit = Audit(config.kjbod_state_dir, files, self._clock, self._log, spawn)
        self.account = Account(sender, self._clock, self._log, reports, mode=self._mode, audit=self.audit)
        self._is_open = True
        watched = {path: str(owned.directory_id) for path, owned in watching.owned.items()}
        self.account.begun(watched, watching.unwatched, config.source)

    async def sample(self, watching: Watching, monitor: HealthMonitor, following: Following) -> None:
        """Write a line per directory into the health report, each ``kjbod.reports.interval.ms``."""
        while True:
            held = following.observed.held() if following.is_followed else {}
            led = {str(one): counts.led for one, counts in held.items()}
            all_of_them = {str(one): counts.led + counts.followed for one, counts in held.items()}
            self.account.sample(monitor.status(), all_of_them, led)
            self.account.sample_unreadable({path: watching.directory_id(path) for path in watching.unwatched})
            await asyncio.sleep(self._config.kjbod_reports_interval_ms / 1000)

    def process_ids(self) -> tuple[int, ...]:
        """Return the pid of the report writer's process."""
        return () if self._reports is None else self._reports.process_ids()

    async def end(self, exit_code: int, reason: str) -> None:
        """Report the end of the guard, and close the health report."""
        if self._is_open:
            self.account.stopped(exit_code, reason)
        await self.close()

    async def close(self) -> None:
        """Close the health report, if it is open."""
        if self._reports is not None:
            await self._reports.close(END_TIMEOUT_MS)
