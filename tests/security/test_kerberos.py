"""SASL GSSAPI's own messages, with peers that do not keep to RFC 4752, and the time of a renewal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.errors import RemoteProtocolError
from kjbod.security.kerberos import GssapiClient, GssapiServer, GssError, renewal_ms
from kjbod.security.sasl_server import Refused

NO_LAYER = b"\1\0\0\0"


class Standing:
    """A context that stands after so many tokens; each end wraps by a prefix."""

    def __init__(self, tokens: int = 1, reply: bytes = b"token") -> None:
        self._left = tokens
        self._reply = reply

    @property
    def complete(self) -> bool:
        return self._left <= 0

    def step(self, token: bytes | None) -> bytes:
        self._left -= 1
        return self._reply

    def wrap(self, message: bytes) -> bytes:
        return b"wrapped " + message

    def unwrap(self, message: bytes) -> bytes:
        if not message.startswith(b"wrapped "):
            raise GssError("not wrapped")
        return message.removeprefix(b"wrapped ")

    def peer(self) -> str:
        return "alice@A"


def server(context: Standing) -> GssapiServer:
    return GssapiServer(lambda: context, lambda principal: principal.partition("@")[0])


def said(machine: GssapiServer, message: bytes) -> tuple[bytes, str | None]:
    machine.work(message)
    answer = machine.answer(message)
    return answer.reply, answer.user


def refusal(machine: GssapiServer, message: bytes) -> str:
    with pytest.raises(Refused, match="invalid credentials with SASL mechanism GSSAPI") as caught:
        said(machine, message)
    return caught.value.reason


def test_a_client_that_asks_for_no_proof_of_the_server_gets_the_layers_at_once_as_javas_does() -> None:
    machine = server(Standing(reply=b""))
    assert said(machine, b"token") == (b"wrapped " + NO_LAYER, None)
    assert said(machine, b"wrapped " + NO_LAYER) == (b"", "alice")


def test_whom_a_client_asks_to_be_does_not_count_as_in_kafka() -> None:
    machine = server(Standing(reply=b""))
    said(machine, b"token")
    assert said(machine, b"wrapped " + NO_LAYER + b"kafka@A") == (b"", "alice")


def test_a_client_that_asks_for_a_layer_or_does_not_wrap_is_refused() -> None:
    for last, why in (
        (b"wrapped \2\0\0\0", "the client wants a security layer below Kafka's protocol"),
        (b"wrapped \3\0\0\0", "the client wants a security layer below Kafka's protocol"),
        (b"wrapped \1", "the client wants a security layer below Kafka's protocol"),
        (NO_LAYER, "not wrapped"),
    ):
        machine = server(Standing(reply=b""))
        said(machine, b"token")
        assert refusal(machine, last) == why


def test_a_client_gets_no_further_out_of_turn() -> None:
    machine = server(Standing())
    assert said(machine, b"token") == (b"token", None)
    assert refusal(machine, b"more") == "the client sent more than its context needs"
    assert refusal(server(Standing(tokens=2, reply=b"")), b"token") == "the client sent what leads to no context"


def test_an_answer_that_was_not_found_in_time_is_a_refusal() -> None:
    machine = server(Standing())
    with pytest.raises(Refused) as caught:
        machine.answer(b"token")
    assert caught.value.reason == "Kerberos has failed, or not answered in time"


def test_a_server_that_wants_a_layer_or_asks_on_is_not_believed() -> None:
    for layers in (b"wrapped \6\0\0\0", b"wrapped \1", b"wrapped \1\0\0\0\0"):
        machine = GssapiClient(Standing)
        assert machine.first() == b"token"
        with pytest.raises(RemoteProtocolError, match="wants a security layer of GSSAPI"):
            machine.answer(layers)
    machine = GssapiClient(Standing)
    machine.first()
    assert machine.answer(b"wrapped \7\0\1\0\0"[:-1]) == b"wrapped " + NO_LAYER
    with pytest.raises(RemoteProtocolError, match="asks on after GSSAPI"):
        machine.answer(b"more")


@given(st.lists(st.binary(max_size=12), max_size=5), st.integers(1, 3), st.sampled_from([b"", b"token"]))
def test_no_order_of_messages_lets_anybody_in_who_has_not_wrapped(
    messages: list[bytes], tokens: int, reply: bytes
) -> None:
    machine = server(Standing(tokens, reply))
    for message in messages:
        machine.work(message)
        try:
            answer = machine.answer(message)
        except Refused:
            return
        assert answer.user is None or message.startswith(b"wrapped \1")


@pytest.mark.parametrize(
    ("lifetime_s", "factor", "chance", "due_s"),
    [(3600, 0.8, 0, 2880), (3600, 0.8, 0.05, 3060), (3600, 1, 0.05, 3600), (70, 0.5, 0, 60), (60, 0.5, 0, 30)],
)
def test_a_ticket_is_renewed_at_its_part_of_the_time_and_before_its_end(
    lifetime_s: int, factor: float, chance: float, due_s: int
) -> None:
    assert renewal_ms(5, lifetime_s * 1000, factor, chance, 60_000) == 5 + due_s * 1000
