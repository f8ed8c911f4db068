"""Questions to a broker's own listener."""

from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.wire.client import Connection
from kjbod_agent.guard import canary
from kjbod_agent.guard.canary_asking import CanaryAsking, listener_to_ask, ports_of


class ManualClock(SystemClock):
    """A clock that a test moves."""

    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


BROKER = """
node.id=1
log.dirs=/mnt/d1
controller.quorum.bootstrap.servers=127.0.0.1:9093
controller.listener.names=CONTROLLER
"""


@pytest.mark.parametrize(
    ("lines", "asked", "ports"),
    [
        ("process.roles=broker\nlisteners=PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9092", ((9092,), ())),
        (
            "process.roles=broker,controller\nlisteners=CONTROLLER://:9093,PLAINTEXT://:9092",
            "PLAINTEXT://:9092",
            ((9092,), (9093,)),
        ),
        (
            "process.roles=broker\nlisteners=SSL://:9094\ninter.broker.listener.name=SSL\n"
            "listener.security.protocol.map=SSL:SSL,CONTROLLER:PLAINTEXT",
            "the broker cannot be asked: its listeners speak SSL, and the guard asks in PLAINTEXT alone",
            ((9094,), ()),
        ),
    ],
)
def test_a_plaintext_listener_of_the_broker_is_asked_and_never_a_controller_s(
    tmp_path: Path, lines: str, asked: str, ports: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(BROKER + lines)
    config = load_config(path)
    assert str(listener_to_ask(config)) == asked
    assert ports_of(config) == ports


async def test_a_broker_that_does_not_answer_is_silent_since_the_first_question() -> None:
    clock = ManualClock()
    asking = CanaryAsking("127.0.0.1", 1, clock=clock)  # nobody listens there
    asking.canary = canary.answered(canary.asked(asking.canary, 0), 10, 0)
    for now_ms in (1_000, 2_000, 3_999):
        clock.now_ms = now_ms
        await asking.ask()
        assert asking.problem is not None
        assert canary.verdict(asking.canary, clock.now_ms) is None
    clock.now_ms = 4_000
    assert canary.verdict(asking.canary, clock.now_ms) == "the broker has not answered ApiVersions for 3.0 s"
    asking.forget()
    assert asking.problem is None and canary.verdict(asking.canary, clock.now_ms) is None


async def test_a_guard_that_was_suspended_in_the_middle_of_a_question_holds_it_against_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    asking = CanaryAsking("127.0.0.1", 1, clock=clock)
    asking.canary = canary.answered(canary.asked(asking.canary, 0), 10, 0)

    async def suspended(*_: object, **__: object) -> Connection:
        clock.now_ms += 60_000
        raise TimeoutError("no answer")

    monkeypatch.setattr(Connection, "open", suspended)
    await asking.ask()
    assert asking.problem is not None and canary.verdict(asking.canary, clock.now_ms) is None
