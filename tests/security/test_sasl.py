"""The client's half of SASL: PLAIN and SCRAM as the RFCs and Kafka have them, and servers that do not keep to it."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.errors import RemoteProtocolError
from kjbod.security.keys import Login
from kjbod.security.sasl import ClientMechanism, client_mechanism

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
"""The exchange of RFC 7677, section 3."""


def scram(password: str = "pencil", username: str = "user") -> ClientMechanism:
    return client_mechanism(Login("SCRAM-SHA-256", username, password), NONCE)


def test_plain_has_name_and_password_and_nothing_more() -> None:
    machine = client_mechanism(Login("PLAIN", "alice", "wonderland=,"), NONCE)
    assert machine.first() == b"\0alice\0wonderland=,"
    assert machine.answer(b"") is None
    with pytest.raises(RemoteProtocolError, match="asks on"):
        machine.answer(b"more")


def test_scram_is_that_of_the_rfc() -> None:
    machine = scram()
    assert machine.first() == FIRST
    assert machine.answer(SERVER_FIRST) == FINAL
    assert machine.answer(SERVER_FINAL) is None


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    machine = scram()
    machine.first()
    machine.answer(SERVER_FIRST)
    with pytest.raises(RemoteProtocolError, match="does not know the password"):
        machine.answer(b"v=" + base64.b64encode(bytes(32)))


def test_a_server_that_refuses_is_told() -> None:
    machine = scram()
    machine.first()
    machine.answer(SERVER_FIRST)
    with pytest.raises(RemoteProtocolError, match="refused SCRAM-SHA-256"):
        machine.answer(b"e=invalid-proof")


@pytest.mark.parametrize("iterations", [1, 4095, 16_385, 2_000_000_000])
def test_a_server_does_not_choose_how_cheap_or_dear_the_proof_is(iterations: int) -> None:
    machine = scram()
    machine.first()
    with pytest.raises(RemoteProtocolError, match=f"wants {iterations} iterations"):
        machine.answer(SERVER_FIRST.replace(b"i=4096", f"i={iterations}".encode()))


@pytest.mark.parametrize("nonce", [NONCE, "other" + NONCE, ""])
def test_a_message_of_another_exchange_is_not_answered(nonce: str) -> None:
    machine = scram()
    machine.first()
    with pytest.raises(RemoteProtocolError):
        machine.answer(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_name_and_password_are_taken_as_they_are(username: str, password: str) -> None:
    """Kafka prepares neither: characters that SASLprep forbids or changes are those of the password."""
    if any("\ud800" <= char <= "\udfff" for char in username + password):
        return
    machine = scram(password, username)
    assert machine.first().startswith(b"n,,n=")
    assert machine.first().count(b",") == 3
    assert machine.answer(SERVER_FIRST) is not None


@given(st.binary() | st.text().map(str.encode))
def test_whatever_a_server_says_is_answered_or_refused(said: bytes) -> None:
    machine = scram()
    machine.first()
    for _ in range(2):
        try:
            machine.answer(said)
        except RemoteProtocolError as error:
            assert "pencil" not in str(error)
