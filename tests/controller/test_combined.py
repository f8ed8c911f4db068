"""The controller as half of a combined node, on somebody else's event loop."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator

import pytest
import structlog

from kjbod.errors import EXIT_DISK_FAILURE, KjbodError, StorageError
from kjbod_controller_stub.combined import CombinedController
from kjbod_controller_stub.server import ControllerServer
from tests.controller.conftest import Site
from tests.controller.test_bad_start import tree

pytestmark = pytest.mark.usefixtures("world")


@pytest.fixture
async def controller(site: Site) -> AsyncIterator[CombinedController]:
    interval_s = sys.getswitchinterval()
    one = CombinedController(site.config)
    yield one
    await one.close()
    sys.setswitchinterval(interval_s)


def server_of(controller: CombinedController) -> ControllerServer:
    assert controller._server is not None
    return controller._server


async def test_it_serves_from_its_start_to_its_end_and_tells_how_it_is(controller: CombinedController) -> None:
    assert (controller.words(), controller.as_json()) == ([], None)
    await controller.open()
    await controller.start()
    port = server_of(controller).port
    socket.create_connection(("127.0.0.1", port)).close()
    assert controller.words() == ["controller 3000 active in epoch 1"]
    told = controller.as_json()
    assert told is not None and (told["epoch"], told["brokers"], told["offline_partitions"]) == (1, 0, 0)
    names = {family.name for family in controller.pictures()()()}
    assert "kjbod_controller_requests_waiting" in names
    await controller.close()
    await controller.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_failure_of_its_log_ends_the_node_with_the_exit_code_of_disks(controller: CombinedController) -> None:
    await controller.open()
    await controller.start()
    server_of(controller)._fail(StorageError("/d1 has failed"))
    with pytest.raises(KjbodError, match="/d1 has failed") as caught:
        await controller.run()
    assert caught.value.exit_code == EXIT_DISK_FAILURE


async def test_a_bug_of_it_is_not_taken_for_a_disk(controller: CombinedController) -> None:
    await controller.open()
    await controller.start()
    server_of(controller)._fail(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        await controller.run()


async def test_a_start_that_is_refused_is_one_line_and_leaves_nothing(
    controller: CombinedController, site: Site
) -> None:
    (site.log_dir / "meta.properties").unlink()
    with pytest.raises(StorageError, match="is not formatted"):
        await controller.open()
    await controller.close()
    assert not (site.log_dir / ".lock").exists()


async def test_until_it_may_serve_it_has_changed_nothing_and_no_port_is_open(
    controller: CombinedController, site: Site
) -> None:
    await controller.open()
    await controller.start()
    port = server_of(controller).port
    await controller.close()
    site.configure(listeners=f"CONTROLLER://127.0.0.1:{port}")
    before = tree(site.log_dir)
    again = CombinedController(site.config)
    await again.open()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    assert tree(site.log_dir).keys() - before.keys() == {str(site.log_dir / ".lock")}
    await again.close()
    assert tree(site.log_dir) == before


async def test_a_port_of_it_or_of_its_metrics_that_is_taken_is_found_before_anything_is_written(site: Site) -> None:
    before = tree(site.log_dir)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for key, value, words in (
            ("kjbod_metrics_listener", where, f"kjbod.metrics.listener={where}: Address already in use: choose"),
            ("listeners", f"CONTROLLER://{where}", f"cannot listen on {where}: Address already in use"),
        ):
            site.configure(**{key: value})
            with pytest.raises(KjbodError, match=words):
                await CombinedController(site.config).open()
    assert tree(site.log_dir) == before


async def test_a_start_that_is_given_up_leaves_nothing(
    controller: CombinedController, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def hangs(_: ControllerServer) -> None:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ControllerServer, "_recover", hangs)
    starting = asyncio.ensure_future(controller.open())
    await reached.wait()
    starting.cancel()
    await asyncio.wait({starting})
    await controller.close()
    assert not (site.log_dir / ".lock").exists()


async def test_its_log_lines_say_that_they_are_the_controllers_and_nobody_elses_do(
    controller: CombinedController,
) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await controller.open()
        await controller.start()
        await controller.close()
        structlog.get_logger().info("other")
    assert {str(line["event"]): line.get("component") for line in lines} == {
        "controller.started": "controller",
        "controller.stopped": "controller",
        "other": None,
    }
