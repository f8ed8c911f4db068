"""The guard's account: what ends it where it was never opened."""

from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.ids import Uuid
from kjbod_guard import reporting
from kjbod_guard.reporting import Reporting
from kjbod_host.report_writer import ReportWriter


class _Broken(ReportWriter):
    async def start(self) -> None:
        raise OSError("no process can be started")


async def test_an_account_that_could_not_be_opened_ends_without_a_second_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:1\nlisteners=PLAINTEXT://:9092\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs={tmp_path}/d1\nkjbod.reports.dir={tmp_path}/reports\n"
    )
    monkeypatch.setattr(reporting, "ReportWriter", _Broken)
    account = Reporting(load_config(file), "observe", SystemClock(), structlog.get_logger())
    with pytest.raises(OSError, match="no process"):
        await account.open(Uuid.of(1, 1), cast(Any, None), cast(Any, None), cast(Any, None))
    await account.end(1, "no process can be started")
    assert account.process_ids() == ()
