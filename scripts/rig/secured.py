"""A secured cluster's side of ``server.properties``: certificates of an authority of its own, users and mechanisms.

Everything is Kafka's own keys, with PEM stores, so that the same lines secure real nodes and kjbod's.
"""

from pathlib import Path
from typing import Final

from scripts.rig.certificates import Authority, Certified
from scripts.rig.cluster import Properties
from scripts.rig.identity_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, ISSUER, IdentityProvider
from scripts.rig.kafka import render_properties

USER: Final = "kafka"
"""Principal of brokers and controllers."""
PASSWORD: Final = "kafka-secret=;'"
"""Of that, with what JAAS has to quote."""
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HOST: Final = "127.0.0.1"
OAUTHBEARER: Final = "OAUTHBEARER"
"""A mechanism too, where there is an identity provider."""
_OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
_ALLOWED_URLS: Final = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"


def jaas(mechanism: str, username: str = USER, password: str = PASSWORD, **others: str) -> str:
    """A value of ``sasl.jaas.config`` as a line of a file has it; ``others``: further options."""
    options = {"username": username, "password": password, **others}
    module = _PLAIN if mechanism == "PLAIN" else _SCRAM
    return f"{module} required {' '.join(f'{name}={_quoted(value)}' for name, value in options.items())};"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.replace("\\", "\\\\")  # once for JAAS, and once for the file of properties


class Secured:
    """An authority, the nodes' certificate, and what files say of them.

    Args:
        base: for the stores.
        hosts: names and addresses that the nodes' certificate has.
        authority: its name.

    Attributes:
        provider: who gives tokens, and vouches for them; None: nobody.
    """

    def __init__(self, base: Path, *hosts: str, authority: str = "Test CA") -> None:
        self.base = base
        self.provider: IdentityProvider | None = None
        base.mkdir(parents=True, exist_ok=True)
        self.authority = Authority.make(authority)
        self.put(self.authority.leaf(*(hosts or (HOST, "localhost")), common_name="kafka"))
        self.authority.truststore(base, "truststore.pem")

    def identity_provider(self) -> IdentityProvider:
        """An identity provider with TLS, whose tokens are taken from now on."""
        self.provider = IdentityProvider(self.authority.leaf(HOST), self.base)
        return self.provider

    def java_options(self) -> list[str]:
        """Options of a Java that may ask the identity provider (KIP-768's list of allowed URLs)."""
        assert self.provider is not None
        urls = f"{self.provider.token_url},{self.provider.keys_url}"
        return [f"-D{_ALLOWED_URLS}={urls}"]

    def put(self, certified: Certified) -> None:
        """Make this the nodes' certificate, in one step as a tool that rotates certificates does."""
        certified.keystore(self.base, "keystore.pem.new")
        (self.base / "keystore.pem.new").replace(self.base / "keystore.pem")

    def stores(self, *, keystore: bool = True) -> dict[str, object]:
        """The ``ssl.*`` keys of a node, or of a client without a certificate."""
        trust: dict[str, object] = {
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.base / "truststore.pem",
        }
        own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.base / "keystore.pem"}
        return trust | own if keystore else trust

    def node(self, protocol: str, mechanism: str = MECHANISMS[-1]) -> dict[str, object]:
        """Lines of a node whose controllers have a listener of this protocol; brokers stay in plain text."""
        return {
            "listener.security.protocol.map": f"CONTROLLER:{protocol},PLAINTEXT:PLAINTEXT",
            "sasl.mechanism.controller.protocol": mechanism,
            **self._listener("CONTROLLER", protocol),
        }

    def broker(self, protocol: str, port: int, mechanism: str = MECHANISMS[-1]) -> dict[str, object]:
        """Lines of a broker with a single listener of this protocol, on this port, as its controllers have one."""
        return {
            **self.node(protocol, mechanism),
            "listeners": f"INTERNAL://{HOST}:{port}",
            "listener.security.protocol.map": f"CONTROLLER:{protocol},INTERNAL:{protocol}",
            "inter.broker.listener.name": "INTERNAL",
            "sasl.mechanism.inter.broker.protocol": mechanism,
            **self._listener("INTERNAL", protocol),
        }

    def _listener(self, listener: str, protocol: str) -> dict[str, object]:
        """Lines of a listener, and of those who connect to it with the same file."""
        name = f"listener.name.{listener.lower()}"
        lines: dict[str, object] = self.stores() if protocol.endswith("SSL") else {}
        if protocol == "SSL":
            lines |= {f"{name}.ssl.client.auth": "required"}
        if protocol.startswith("SASL"):
            lines |= {
                f"{name}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
                f"{name}.plain.sasl.jaas.config": jaas("PLAIN", **{f"user_{USER}": PASSWORD}),
            }
            lines |= {f"{name}.{one.lower()}.sasl.jaas.config": jaas(one) for one in MECHANISMS[1:]}
            lines |= self._tokens(name)
        return lines

    def _tokens(self, name: str) -> dict[str, object]:
        """Lines of a listener that takes tokens, and of those who connect to it with the same file."""
        if self.provider is None:
            return {}
        own = f"{name}.{OAUTHBEARER.lower()}"
        return {
            f"{name}.sasl.enabled.mechanisms": ",".join((*MECHANISMS, OAUTHBEARER)),
            f"{own}.sasl.jaas.config": self.oauth_jaas(),
            f"{own}.sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
            f"{own}.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
            "sasl.oauthbearer.jwks.endpoint.url": self.provider.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }

    def oauth_jaas(self, secret: str = CLIENT_SECRET, client_id: str = CLIENT_ID) -> str:
        """A value of ``sasl.jaas.config`` for a token."""
        trust = {name: str(value) for name, value in self.stores(keystore=False).items()}
        options = {"clientId": client_id, "clientSecret": secret, "scope": "kafka", **trust}
        said = " ".join(f"{name}={_quoted(value)}" for name, value in options.items())
        return f"{_OAUTH}.OAuthBearerLoginModule required {said};"

    def client(self, protocol: str, mechanism: str = MECHANISMS[-1], password: str = PASSWORD) -> Properties:
        """Lines of a ``--command-config`` file."""
        lines: dict[str, object] = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            lines |= self.stores(keystore=protocol == "SSL")
        if mechanism == OAUTHBEARER and self.provider is not None:
            lines |= {
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": self.oauth_jaas(),
                "sasl.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": self.provider.token_url,
            }
        elif protocol.startswith("SASL"):
            lines |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(mechanism, password=password)}
        return lines

    def client_file(self, path: Path, lines: Properties) -> Path:
        """Write such a file."""
        path.write_text(render_properties(lines))
        return path


def scram_credentials(*users: str) -> list[str]:
    """Values of ``--add-scram`` with which these users can log in from the first start on; the nodes' user alone where
    none is named."""
    return [f'{one}=[name={user},password="{PASSWORD}"]' for user in users or (USER,) for one in MECHANISMS[1:]]


def scram_options(*users: str) -> list[str]:
    """Options of ``kafka-storage format`` for them."""
    return [option for user in scram_credentials(*users) for option in ("--add-scram", user)]
