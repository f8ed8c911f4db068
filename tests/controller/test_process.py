"""The controller as a process: what it says while it starts."""

import asyncio
from typing import Any

import pytest

from kjbod_controller_stub import process
from kjbod_controller_stub.server import ControllerServer
from tests.controller.conftest import Site


async def test_a_start_that_takes_long_says_what_it_waits_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = asyncio.Event()
    start = ControllerServer.start

    async def hangs(*args: Any, **kwargs: Any) -> ControllerServer:
        await goes_on.wait()
        return await start(*args, **kwargs)

    class Logger:
        def warning(self, event: str, **fields: object) -> None:
            said.append((event, fields["directory"]))
            goes_on.set()

    said: list[tuple[str, object]] = []
    monkeypatch.setattr(ControllerServer, "start", hangs)
    monkeypatch.setattr(process, "SLOW_START_S", 0.01)
    monkeypatch.setattr(process, "_log", Logger())
    controller = process.Controller(site.config)
    await controller.open()
    await controller.close()
    assert said == [("controller.start.slow", str(site.log_dir))]
