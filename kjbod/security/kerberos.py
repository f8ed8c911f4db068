"""State machines of SASL GSSAPI (RFC 4752) for client and server, over a security context and without Kerberos itself.
Also the renewal time of a ticket (``SaslClientAuthenticator``, ``SaslServerAuthenticator``, ``KerberosLogin`` of 4.3.1;
``GssKrb5Client``, ``GssKrb5Server`` of Java).

========  =========================================  ==========================================
step      client                                     server
========  =========================================  ==========================================
1         a token of the context                     its answer, until the context stands
2         nothing                                    security layers it has: none (``01``), size 0
3         the layer it takes: none; its identity     nothing: the client is in
========  =========================================  ==========================================

Messages of steps 2 and 3 are wrapped: only the two ends of the context can have made them. The identity that a client
asks for is ignored, as in Kafka (``SaslServerCallbackHandler``): the principal of its ticket counts. Our client also
makes the server prove its identity (mutual authentication). Kafka's client does not.
"""

from collections.abc import Callable
from typing import Final, Protocol

from kjbod.errors import KjbodError, RemoteProtocolError
from kjbod.security.kerberos_settings import GSSAPI
from kjbod.security.sasl_server import Answer, Refused

_NO_LAYER: Final = 1
_LAYER_BYTES: Final = 4
"""Size of the mask of layers, and of the message size field after it."""
_NO_ANSWER: Final = "Kerberos has failed, or not answered in time"


class GssError(KjbodError):
    """Kerberos cannot be used, or the peer failed authentication; one line."""


class Context(Protocol):
    """A security context of GSSAPI. Each of its methods may block and may raise :class:`GssError`."""

    def step(self, token: bytes | None) -> bytes:
        """Return the token for the other end, given a token from the other end. The result may be empty."""

    @property
    def complete(self) -> bool:
        """Return whether the context is established."""

    def wrap(self, message: bytes) -> bytes:
        """Wrap a message so that the other end can check its origin."""

    def unwrap(self, message: bytes) -> bytes:
        """Check and unwrap a message of the other end."""

    def peer(self) -> str:
        """Return the principal of the end that began the context."""


class GssapiClient:
    """The client's half of one exchange. Its steps block: run each in a thread.

    Args:
        begin: makes the context.
    """

    blocks = True

    def __init__(self, begin: Callable[[], Context]) -> None:
        self._begin = begin
        self._context: Context | None = None
        self._chose = False

    def first(self) -> bytes:
        """Return the first message.

        Raises:
            GssError: there is no ticket.
        """
        self._context = self._begin()
        return self._context.step(None)

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the answer to a message of the server; None: that was the last message.

        Raises:
            RemoteProtocolError: the message does not fit GSSAPI at this step.
            GssError: the server could not prove its identity.
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
    """The server's half of one exchange. :meth:`work` blocks: run it in a thread before :meth:`answer`.

    Args:
        begin: makes the context.
        short_name: gives the short name of a principal; raises ``ValueError``.
    """

    def __init__(self, begin: Callable[[], Context], short_name: Callable[[str], str]) -> None:
        self._begin = begin
        self._short_name = short_name
        self._context: Context | None = None
        self._offered = False
        self._outcome: Answer | Refused = _refused(_NO_ANSWER)

    def work(self, message: bytes) -> None:
        """Compute the answer to a message of the client. Blocks."""
        try:
            self._outcome = self._answer(message)
        except (KjbodError, ValueError) as error:
            self._outcome = _refused(str(error))

    def answer(self, message: bytes) -> Answer:
        """Return the answer that :meth:`work` computed.

        Raises:
            Refused: the client is refused.
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
    """Return the message that offers no security layer, with size 0."""
    return bytes([_NO_LAYER]).ljust(_LAYER_BYTES, b"\0")


def _refused(why: str) -> Refused:
    # Text of ``SaslServerAuthenticator``: a client learns nothing else.
    words = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {GSSAPI}"
    return Refused(words, why)


def renewal_ms(now_ms: int, lifetime_ms: int, factor: float, chance: float, pause_ms: int) -> int:
    """Return the time at which a ticket is renewed (``KerberosLogin.getRefreshTime``).

    Args:
        now_ms: time at which the ticket was obtained.
        lifetime_ms: lifetime of the ticket.
        factor: part of the lifetime; ``chance`` is added to it.
        pause_ms: pause between two attempts; a ticket that ends sooner is still renewed before its end.
    """
    due_ms = int(lifetime_ms * min(1.0, factor + chance))
    return now_ms + max(due_ms, pause_ms if pause_ms < lifetime_ms else 0)
