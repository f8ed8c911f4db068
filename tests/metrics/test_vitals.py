"""``/healthz`` and ``/readyz`` of the metrics listener, and what they mean for an agent."""

import asyncio

import pytest
from msgspec.structs import replace

from kjbod.metrics.listener import MetricsListener
from kjbod.metrics.vitals import Vitals, answer
from kjbod_agent.condition import Contact, unready
from kjbod_agent.lifecycle import BrokerState
from tests.agent.core.test_condition import RUNNING

HEARD = Contact(address="c1:9093", answers=True, refused=False, silent_ms=500, last_answer_ms=1, trouble="")


@pytest.mark.parametrize(
    ("now", "health", "readiness"),
    [
        (Vitals(), (200, "ok"), (200, "ok")),
        (Vitals(waits="no broker runs"), (200, "ok"), (503, "no broker runs")),
        (Vitals(stuck="no probe has ended for 30 s"), (503, "no probe has ended"), (503, "no probe has ended")),
        (Vitals(stuck="no probe", waits="no broker runs"), (503, "no probe"), (503, "no probe")),
    ],
)
def test_health_is_that_it_works_and_readiness_that_it_can_do_what_it_is_for(
    now: Vitals, health: tuple[int, str], readiness: tuple[int, str]
) -> None:
    for path, (code, text) in ((b"/healthz", health), (b"/readyz", readiness)):
        status, line = answer(path, now)
        assert status.startswith(str(code)) and line.startswith(text) and line.endswith("\n")


async def get(port: int, target: str, method: str = "GET") -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {target} HTTP/1.1\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head.partition("\r\n")[0], body


async def test_the_listener_asks_each_time_and_makes_no_metrics_for_it() -> None:
    now = [Vitals(), Vitals(waits="the controller has fenced it"), Vitals()]

    def never() -> None:
        raise AssertionError("a picture is taken")

    listener = MetricsListener(never, lambda _: (), None, lambda: now[0])
    await listener.open("127.0.0.1", 0)
    try:
        for code in ("200 OK", "503 Service Unavailable", "200 OK"):
            assert await get(listener.port, "/readyz") == (f"HTTP/1.1 {code}", f"{now[0].waits or 'ok'}\n")
            assert await get(listener.port, "/healthz?verbose") == ("HTTP/1.1 200 OK", "ok\n")
            now.pop(0)
        now.append(Vitals())
        assert (await get(listener.port, "/healthz", "POST"))[0].startswith("HTTP/1.1 405")
        assert (await get(listener.port, "/health"))[0].startswith("HTTP/1.1 404")
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("state", "fenced", "failures", "silent_ms", "reason"),
    [
        (BrokerState.RUNNING, False, 0, 500, None),
        (BrokerState.RUNNING, False, 2, 3_000, None),
        (BrokerState.RUNNING, False, 9, 60_000, "no controller for 1 min"),
        (BrokerState.RUNNING, True, 0, 500, "the controller has fenced it"),
        (BrokerState.STARTING, True, 0, 500, "it starts"),
        (BrokerState.RECOVERY, True, 3, 500, "it starts"),
        (BrokerState.PENDING_CONTROLLED_SHUTDOWN, False, 0, 500, "it stops"),
        (BrokerState.SHUTTING_DOWN, True, 0, 500, "it stops"),
    ],
)
def test_an_agent_is_ready_while_the_controllers_have_its_broker_unfenced(
    state: BrokerState, fenced: bool, failures: int, silent_ms: int, reason: str | None
) -> None:
    found = unready(
        replace(RUNNING, state=state, fenced=fenced, failures=failures), replace(HEARD, silent_ms=silent_ms)
    )
    assert (found is None) == (reason is None)
    assert found is None or found.startswith(str(reason))
