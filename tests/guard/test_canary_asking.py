"""Questions to a broker's own listener."""

from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.config.endpoints import Listener
from kjbod.wire.client import AuthenticationFailed, Connection, Disconnected, ForeignPeer, RequestTimedOut
from kjbod_guard import canary
from kjbod_guard.canary_asking import Asked, CanaryAsking, listener_to_ask, ports_of


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
            "SSL://:9094",
            ((9094,), ()),
        ),
    ],
)
def test_a_listener_of_the_broker_is_asked_in_plain_text_where_it_can_be_and_never_a_controller_s(
    tmp_path: Path, lines: str, asked: str, ports: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(BROKER + lines)
    config = load_config(path)
    found = listener_to_ask(config)
    assert not isinstance(found, str) and str(found.listener) == asked
    assert found.security.settings.protocol == found.listener.protocol
    assert ports_of(config) == ports


async def test_a_broker_that_does_not_answer_is_silent_since_the_first_question() -> None:
    clock = ManualClock()
    asking = CanaryAsking(
        Asked(Listener("PLAINTEXT", "127.0.0.1", 1, "PLAINTEXT")), clock=clock
    )  # nobody listens there
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
    asking = CanaryAsking(Asked(Listener("PLAINTEXT", "127.0.0.1", 1, "PLAINTEXT")), clock=clock)
    asking.canary = canary.answered(canary.asked(asking.canary, 0), 10, 0)

    async def suspended(*_: object, **__: object) -> Connection:
        clock.now_ms += 60_000
        raise TimeoutError("no answer")

    monkeypatch.setattr(Connection, "open", suspended)
    await asking.ask()
    assert asking.problem is not None and canary.verdict(asking.canary, clock.now_ms) is None


SASL = """
process.roles=broker
listeners=INTERNAL://0.0.0.0:9094
advertised.listeners=INTERNAL://broker1.example:9094
inter.broker.listener.name=INTERNAL
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.internal.plain.sasl.jaas.config=\
  org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";
"""


def secured(tmp_path: Path, protocol: str) -> Asked | str:
    path = tmp_path / "server.properties"
    path.write_text(f"{BROKER}{SASL}listener.security.protocol.map=CONTROLLER:PLAINTEXT,INTERNAL:{protocol}\n")
    return listener_to_ask(load_config(path))


def test_the_certificate_of_a_listener_is_to_have_the_name_that_others_know(tmp_path: Path) -> None:
    asked = secured(tmp_path, "SASL_SSL")
    assert isinstance(asked, Asked) and asked.name == "broker1.example"
    assert asked.security.settings.tls is not None and asked.security.settings.tls.checks_name


def test_a_password_is_not_handed_to_whoever_has_the_port(tmp_path: Path) -> None:
    asked = secured(tmp_path, "SASL_PLAINTEXT")
    assert isinstance(asked, str) and "PLAIN without TLS" in asked


@pytest.mark.parametrize("error", [AuthenticationFailed("expired"), ForeignPeer("TLS"), Disconnected("reset")])
async def test_a_secured_broker_that_does_not_believe_the_guard_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Disconnected
) -> None:
    asked = secured(tmp_path, "SASL_SSL")
    assert isinstance(asked, Asked)
    clock, told = ManualClock(), list[str | None]()
    asking = CanaryAsking(asked, clock=clock, told=told.append)
    asking.canary = canary.answered(canary.asked(asking.canary, 0), 10, 0)
    answers: list[Disconnected] = [error] * 5 + [RequestTimedOut("no answer")] * 2

    async def refuse(*_: object, **__: object) -> Connection:
        raise answers.pop(0)

    monkeypatch.setattr(Connection, "open", refuse)
    for now_ms in range(1_000, 6_000, 1_000):
        clock.now_ms = now_ms
        await asking.ask()
        assert canary.verdict(asking.canary, clock.now_ms + 60_000) is None
    assert told == [str(error)]
    for now_ms in (6_000, 9_000):  # time that passes without an answer counts
        clock.now_ms = now_ms
        await asking.ask()
    assert canary.verdict(asking.canary, clock.now_ms) == "the broker has not answered ApiVersions for 3.0 s"
