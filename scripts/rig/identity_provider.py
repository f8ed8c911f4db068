"""A small identity provider (OAuth 2.0, RFC 6749) on this machine: a token endpoint, and the keys that it signs with.

Real sockets, with TLS where it is given a certificate. It gives a token to who has the secret or an assertion, answers
what it is told to answer otherwise, and remembers what it was asked.
"""

import base64
import json
import socketserver
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qs

from joserfc import jwk, jws

from scripts.rig.certificates import Certified

CLIENT_ID: Final = "kafka"
CLIENT_SECRET: Final = "client-secret:=%'"
AUDIENCE: Final = "kafka-cluster"
ISSUER: Final = "https://idp.example"
KEY_ID: Final = "first"
LIFETIME_S: Final = 3_600


def signing_key(key_id: str = KEY_ID, kind: str = "EC") -> jwk.ECKey | jwk.RSAKey:
    """A new private key."""
    parameters: Any = {"kid": key_id, "use": "sig"}
    if kind == "EC":
        return jwk.ECKey.generate_key("P-256", parameters)
    return jwk.RSAKey.generate_key(2048, parameters)


def claims(subject: str = CLIENT_ID, now_s: float | None = None, **changes: Any) -> dict[str, object]:
    """Claims of a good token; those that are changed to None are left out."""
    now = time.time() if now_s is None else now_s
    found = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "iat": int(now), "exp": int(now) + LIFETIME_S, **changes}
    return {name: value for name, value in found.items() if value is not None}


def signed(what: Mapping[str, object], key: jwk.ECKey | jwk.RSAKey, header: Mapping[str, object] | None = None) -> str:
    """A token."""
    algorithm = "ES256" if isinstance(key, jwk.ECKey) else "RS256"
    given: dict[str, Any] = {"alg": algorithm, "kid": key.kid, "typ": "JWT", **(header or {})}
    parts = ({name: value for name, value in given.items() if value is not None}, what)
    text = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_encoded(jws.JWSRegistry.algorithms[given['alg']].sign(text.encode(), key))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def key_set(*keys: jwk.ECKey | jwk.RSAKey) -> str:
    """Their public halves."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]})


class IdentityProvider:
    """Serves ``/token`` and ``/keys`` until the end of a ``with`` block.

    Args:
        certified: its certificate; None: plain HTTP.

    Attributes:
        key: that tokens are signed with.
        changes: to the claims of tokens.
        answers: status and body of the next answers, instead of a token or keys.
        asked: path, headers and form of each question.
        gate: questions wait for it.
    """

    def __init__(self, certified: Certified | None = None, base: Any = None) -> None:
        self.key: jwk.ECKey | jwk.RSAKey = signing_key()
        self.changes: dict[str, Any] = {}
        self.answers: deque[tuple[int, bytes]] = deque()
        self.asked: list[tuple[str, Mapping[str, str], Mapping[str, str]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._scheme = "http"
        if certified is not None:
            path = base / "idp.pem"
            path.write_text(certified.key_pem() + certified.chain_pem)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(path)
            self._server.context = context
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def token_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/token"

    @property
    def keys_url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/keys"

    def token(self, subject: str = CLIENT_ID, **changes: Any) -> str:
        """A token without being asked."""
        return signed(claims(subject, **(self.changes | changes)), self.key)

    def answer(self, path: str, headers: Mapping[str, str], form: Mapping[str, str]) -> tuple[int, bytes]:
        """The answer to a question."""
        self.asked.append((path, headers, form))
        self.gate.wait()
        if self.answers:
            return self.answers.popleft()
        if path == "/keys":
            return 200, key_set(self.key).encode()
        return self._grant(headers, form)

    def _grant(self, headers: Mapping[str, str], form: Mapping[str, str]) -> tuple[int, bytes]:
        name, _, secret = (
            base64.b64decode(headers.get("authorization", "").removeprefix("Basic ")).decode().partition(":")
        )
        assertion = form.get("client_assertion") or form.get("assertion")
        if assertion is None and secret != CLIENT_SECRET:
            return 401, b'{"error": "invalid_client", "error_description": "no such client\\u001b[31m"}'
        scope = {"scope": form["scope"]} if "scope" in form else {}
        token = self.token(name or "asserted", **scope)
        return 200, json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": LIFETIME_S}).encode()


class _Server(ThreadingHTTPServer):
    context: ssl.SSLContext | None = None
    daemon_threads = True
    block_on_close = False

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.context is not None:
            request = self.context.wrap_socket(request, server_side=True)
        with request:
            super().finish_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that does not believe us, or leaves, is no fault of ours."""


def _handler(provider: IdentityProvider) -> type[socketserver.BaseRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            self._reply({name: values[0] for name, values in parse_qs(body).items()})

        def _reply(self, form: Mapping[str, str]) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, body = provider.answer(self.path, headers, form)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
