"""SASL GSSAPI (RFC 4752) as machines that know no Kerberos: both ends of an exchange over a security context; and when
a ticket is renewed (``SaslClientAuthenticator``, ``SaslServerAuthenticator``, ``KerberosLogin`` of 4.3.1;
``GssKrb5Client``, ``GssKrb5Server`` of Java).

========  =========================================  ==========================================
step      client                                     server
========  =========================================  ==========================================
1         a token of the context                     its answer, until the context stands
2         nothing                                    security layers it has: none (``01``), size 0
3         the layer it takes: none; its identity     nothing: the client is in
========  =========================================  ==========================================

Messages of steps 2 and 3 are wrapped: no other than the two ends of the context can have made them. Whom a client asks
to be counts as little as in Kafka (``SaslServerCallbackHandler``): it is whom its ticket names. Our client asks the
server to show that it is who it should be (mutual authentication), which Kafka's does not.
"""

from collections.abc import Callable
from typing import Final, Protocol

from kjbod.errors import KjbodError, RemoteProtocolError
from kjbod.security.kerberos_settings import GSSAPI
from kjbod.security.sasl_server import Answer, Refused

_NO_LAYER: Final = 1
_LAYER_BYTES: Final = 4
"""A mask of layers, and the size of a message with one."""
_NO_ANSWER: Final = "Kerberos has failed, or not answered in time"


class GssError(KjbodError):
    """Kerberos cannot be used, or does not believe; one line."""


class Context(Protocol):
    """A security context of GSSAPI. Whatever it does may block, and raise :class:`GssError`."""

    def step(self, token: bytes | None) -> bytes:
        """The token for the other end, of whom ``token`` is; it may be empty."""

    @property
    def complete(self) -> bool:
        """Whether it stands."""

    def wrap(self, message: bytes) -> bytes:
        """A message that the other end can check."""

    def unwrap(self, message: bytes) -> bytes:
        """A message of the other end, checked."""

    def peer(self) -> str:
        """The principal of who began it."""


class GssapiClient:
    """The client's half of one exchange. Its steps block: each is to be taken in a thread.

    Args:
        begin: makes the context.
    """

    blocks = True

    def __init__(self, begin: Callable[[], Context]) -> None:
        self._begin = begin
        self._context: Context | None = None
        self._chose = False

    def first(self) -> bytes:
        """The message to begin with.

        Raises:
            GssError: there is no ticket.
        """
        self._context = self._begin()
        return self._context.step(None)

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to a message of the server; None: that was the last one.

        Raises:
            RemoteProtocolError: it is not what GSSAPI has there.
            GssError: the server is not who it should be.
        """
        context = self._context
        assert context is not None
        if not context.complete:
            return context.step(challenge)
        if self._chose:
            if challenge:
                raise RemoteProtocolError(f"the server asks on after {GSSAPI}")
            return None
        layers = context.unwrap(challenge)
        if len(layers) != _LAYER_BYTES or not layers[0] & _NO_LAYER:
            raise RemoteProtocolError(f"the server wants a security layer of {GSSAPI} below Kafka's protocol")
        self._chose = True
        return context.wrap(_layers())


class GssapiServer:
    """The server's half of one exchange. :meth:`work` blocks, and is to be called in a thread before :meth:`answer`.

    Args:
        begin: makes the context.
        short_name: of a principal; raises ``ValueError``.
    """

    def __init__(self, begin: Callable[[], Context], short_name: Callable[[str], str]) -> None:
        self._begin = begin
        self._short_name = short_name
        self._context: Context | None = None
        self._offered = False
        self._outcome: Answer | Refused = _refused(_NO_ANSWER)

    def work(self, message: bytes) -> None:
        """Find the answer to a message of the client. Blocks."""
        try:
            self._outcome = self._answer(message)
        except (KjbodError, ValueError) as error:
            self._outcome = _refused(str(error))

    def answer(self, message: bytes) -> Answer:
        """The answer that :meth:`work` has found.

        Raises:
            Refused: there is none.
        """
        del message
        outcome, self._outcome = self._outcome, _refused(_NO_ANSWER)
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def _answer(self, message: bytes) -> Answer:
        if self._context is None:
            self._context = self._begin()
        context = self._context
        if self._offered:
            chosen = context.unwrap(message)
            if len(chosen) < _LAYER_BYTES or chosen[0] != _NO_LAYER:
                raise ValueError("the client wants a security layer below Kafka's protocol")
            return Answer(b"", self._short_name(context.peer()))
        if context.complete:
            if message:
                raise ValueError("the client sent more than its context needs")
        elif token := context.step(message):
            return Answer(token)
        if not context.complete:
            raise ValueError("the client sent what leads to no context")
        self._offered = True
        return Answer(context.wrap(_layers()))


def _layers() -> bytes:
    """No security layer, and so no size of a message with one."""
    return bytes([_NO_LAYER]).ljust(_LAYER_BYTES, b"\0")


def _refused(why: str) -> Refused:
    # Of ``SaslServerAuthenticator``, which tells a client no more than this.
    words = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {GSSAPI}"
    return Refused(words, why)


def renewal_ms(now_ms: int, lifetime_ms: int, factor: float, chance: float, pause_ms: int) -> int:
    """The time at which a ticket is renewed (``KerberosLogin.getRefreshTime``).

    Args:
        now_ms: when it was got.
        lifetime_ms: how long it is good for.
        factor: part of that; ``chance`` is added to it.
        pause_ms: between two attempts; a ticket that ends before is renewed in time all the same.
    """
    due_ms = int(lifetime_ms * min(1.0, factor + chance))
    return now_ms + max(due_ms, pause_ms if pause_ms < lifetime_ms else 0)
