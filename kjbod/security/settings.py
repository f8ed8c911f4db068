"""Read the security of connections from files: a ``server.properties`` for connections to controllers, and a file of
``--command-config`` for connections to a cluster (``ChannelBuilders.clientChannelBuilder``, ``JaasContext``,
``DefaultSslEngineFactory`` of 4.3.1).

A broker's connection to the controllers uses the keys of their listener:
``listener.name.controller.ssl.keystore.location`` comes before ``ssl.keystore.location``. The mechanism is
``sasl.mechanism.controller.protocol``. The login is ``listener.name.controller.scram-sha-512.sasl.jaas.config`` or the
section ``KafkaServer`` of the JAAS file. A client uses ``security.protocol``, ``sasl.mechanism`` and
``sasl.jaas.config``, or the section ``KafkaClient``.

Only the keys that the protocol needs are read, so unreadable secrets of other protocols do no harm. A mistake is one
line with file, key and the expected value, and never shows a secret.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from msgspec import structs

from kjbod.config.keys import LONG_MAX
from kjbod.config.properties import trim
from kjbod.errors import ConfigError
from kjbod.printable import printable
from kjbod.security.jaas import LoginModule, parse_login
from kjbod.security.kerberos_names import KEY as KERBEROS_RULES
from kjbod.security.kerberos_names import KerberosRule
from kjbod.security.kerberos_names import parse_rules as parse_kerberos_rules
from kjbod.security.kerberos_settings import GSSAPI, KRB5, MODULE, kerberos_of
from kjbod.security.keys import (
    PLAIN_TEXT,
    PLAINTEXT,
    SASL_PLAINTEXT,
    SASL_SSL,
    SECURITY_PROTOCOLS,
    SSL,
    ChannelSettings,
    Kerberos,
    ListenerSettings,
    Login,
)
from kjbod.security.principals import DEFAULT as DEFAULT_RULE
from kjbod.security.principals import Rule, parse_rules
from kjbod.security.sasl_server import plain_users
from kjbod.security.tls_keys import CLIENT_AUTH, DEFAULT_TLS_PROTOCOLS, JKS, NO_CLIENT, PEM, STORE_TYPES, Store, Tls

if TYPE_CHECKING:
    from kjbod.security.oauthbearer.keys import ValidatorSettings

Sections = Callable[[], Mapping[str, Sequence[LoginModule]]]
"""Returns the sections of the JAAS file by name, empty if there is no file; raises :class:`ConfigError`. Called only if
a login must come from that file."""
Resolve = Callable[[str], str]
"""Resolves the ``config.providers`` references in a value; raises ``ValueError`` with the reason if that fails."""

MECHANISMS: Final[Mapping[str, str]] = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    GSSAPI: MODULE,
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
"""SASL mechanisms of kjbod, with Kafka's login module of each."""
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
DEFAULT_MECHANISM: Final = GSSAPI
"""Kafka's default of ``sasl.mechanism`` and of ``sasl.mechanism.controller.protocol``."""
_OURS: Final = f"{', '.join(MECHANISMS)}, which is what kjbod has (Kafka's default is {DEFAULT_MECHANISM})"
_PRINCIPALS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_SERVER_CALLBACK: Final = "sasl.server.callback.handler.class"
_LOGIN_CALLBACK: Final = "sasl.login.callback.handler.class"
_CLIENT_CLASSES: Final = ("sasl.client.callback.handler.class", "sasl.login.class", _LOGIN_CALLBACK)
_ENGINE: Final = "ssl.engine.factory.class"
_ENABLED: Final = "sasl.enabled.mechanisms"
_USER_OF_URL: Final = re.compile(r"//[^/\s]*@")
SHOWN_MAX: Final = 120
"""Maximum characters of a value in a message."""
_SECRETS: Final = (
    "password",
    "jaas.config",
    "keystore.key",
    "keystore.certificate.chain",
    "truststore.certificates",
    "client.secret",
    "passphrase",
)


def of_listener(
    properties: Mapping[str, str],
    source: str,
    listener: str,
    protocol: str,
    mechanism_key: str,
    resolve: Resolve,
    sections: Sections = dict,
) -> ChannelSettings:
    """Return the settings of a node's connections to other nodes of its kind.

    Args:
        properties: content of its ``server.properties``.
        source: name of that file, for messages.
        listener: listener of the other nodes: the first of ``controller.listener.names``.
        protocol: protocol of that listener.
        mechanism_key: key of the mechanism: ``sasl.mechanism.controller.protocol``.
        resolve: resolves ``config.providers``.
        sections: returns the sections of its JAAS file.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    if protocol == PLAINTEXT:
        return PLAIN_TEXT
    reader = _Reader(properties, source, resolve, f"listener.name.{listener.lower()}.")
    general = _Reader(properties, source, resolve, problems=reader.problems)

    def login() -> Login | None:
        mechanism = general.mechanism(mechanism_key)
        if mechanism is None:
            return None
        # Kafka ignores a login without the listener's prefix (ChannelBuilders.channelBuilderConfigs).
        key = f"{reader.prefix}{mechanism.lower()}.sasl.jaas.config"
        # The keys of a mechanism's own belong to the listener too.
        return reader.login(mechanism, key, _server_sections(listener), sections)

    return _settings(reader, protocol, login)


def of_client(
    properties: Mapping[str, str], source: str, resolve: Resolve, sections: Sections = dict
) -> ChannelSettings:
    """Return the settings of a client, from the file of ``--command-config``.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    reader = _Reader(properties, source, resolve)
    protocol = (reader.text("security.protocol") or PLAINTEXT).upper()
    if protocol not in SECURITY_PROTOCOLS:
        reader.wrong("security.protocol", f"expected one of {', '.join(SECURITY_PROTOCOLS)}")
        raise ConfigError(*reader.problems)

    def login() -> Login | None:
        mechanism = reader.mechanism("sasl.mechanism")
        if mechanism is None:
            return None
        return reader.login(mechanism, "sasl.jaas.config", ["KafkaClient"], sections)

    has_handler = reader.text("sasl.mechanism") == OAUTHBEARER
    return _settings(reader, protocol, login, _CLIENT_CLASSES[:-1] if has_handler else _CLIENT_CLASSES)


def of_own_listener(
    properties: Mapping[str, str],
    source: str,
    listener: str,
    protocol: str,
    resolve: Resolve,
    sections: Sections = dict,
) -> ListenerSettings:
    """Return the settings of a listener of this node. Arguments as for :func:`of_listener`.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    if protocol == PLAINTEXT:
        return ListenerSettings()
    reader = _Reader(properties, source, resolve, f"listener.name.{listener.lower()}.")
    reader.refuse_classes_of_listeners(protocol)
    tls = reader.tls() if protocol in (SSL, SASL_SSL) else None
    if tls is not None and tls.keystore is None:
        reader.wrong("ssl.keystore.location", f"expected a keystore, as the listener {listener} has TLS")
    if tls is not None and protocol == SASL_SSL and reader.key("ssl.client.auth") == "ssl.client.auth":
        # A client with a SASL login needs no certificate unless this listener requires it (ChannelBuilders.create).
        tls = structs.replace(tls, client_auth=NO_CLIENT)
    has_sasl = protocol in (SASL_PLAINTEXT, SASL_SSL)
    mechanisms = reader.enabled_mechanisms(listener, sections) if has_sasl else {}
    found = ListenerSettings(
        protocol,
        tls,
        mechanisms,
        reader.lifetimes_ms(mechanisms),
        reader.milliseconds("connection.failed.authentication.delay.ms", default=100),
        reader.principal_rules(),
        reader.acceptor(listener, sections) if GSSAPI in mechanisms else None,
        reader.kerberos_rules() if GSSAPI in mechanisms else (),
        reader.tokens(listener, sections) if OAUTHBEARER in mechanisms else None,
    )
    if reader.problems:
        raise ConfigError(*reader.problems)
    return found


def _server_sections(listener: str) -> Sequence[str]:
    """Return the sections of a JAAS file for the login of a node (``JaasContext.loadServerContext``); the first one
    wins."""
    return f"{listener.lower()}.KafkaServer", "KafkaServer"


def _settings(
    reader: "_Reader", protocol: str, login: Callable[[], Login | None], classes: Iterable[str] = _CLIENT_CLASSES
) -> ChannelSettings:
    reader.refuse_classes(protocol, classes)
    tls = reader.tls() if protocol in (SSL, SASL_SSL) else None
    who = login() if protocol in (SASL_PLAINTEXT, SASL_SSL) else None
    if reader.problems:
        raise ConfigError(*reader.problems)
    return ChannelSettings(protocol, tls, who)


class _Reader:
    """Keys of one file; keys with ``prefix`` come before keys without. Collects the problems."""

    def __init__(
        self,
        properties: Mapping[str, str],
        source: str,
        resolve: Resolve,
        prefix: str = "",
        problems: list[str] | None = None,
    ) -> None:
        self._properties = properties
        self._source = source
        self._resolve = resolve
        self.prefix = prefix
        self.problems: list[str] = [] if problems is None else problems

    def key(self, name: str) -> str:
        """Return the full key for ``name``: the listener's key if the file has it."""
        return f"{self.prefix}{name}" if f"{self.prefix}{name}" in self._properties else name

    def text(self, name: str) -> str | None:
        """Return the trimmed value; None if it is not set, or cannot be resolved."""
        value = self._properties.get(self.key(name))
        if value is None:
            return None
        try:
            return trim(self._resolve(value))
        except ValueError as error:
            self.problems.append(f"{self._source}: {self.key(name)}: {error}")
            return None

    def named(self, name: str) -> str:
        """Return a key with its file, for messages."""
        return f"{self._source}: {self.key(name)}"

    def note(self, words: str) -> None:
        """Note a problem."""
        self.problems.append(f"{self._source}: {words}")

    def of_options(self, where: str, options: Mapping[str, str]) -> Self:
        """Return a reader of a JAAS entry's options, which adds its problems to ours."""
        return type(self)(options, f"{self._source}: {where}", str, problems=self.problems)

    def wrong(self, name: str, expected: str) -> None:
        """Note that a value is not as expected."""
        key = self.key(name)
        value = self._properties.get(key)
        if value is None:
            self.problems.append(f"{self._source}: {name} is missing: {expected}")
        elif key.endswith(_SECRETS):
            self.problems.append(f"{self._source}: {key}: {expected}")
        else:
            shown = _USER_OF_URL.sub("//...@", value)  # the URL may contain a password
            self.problems.append(f"{self._source}: {key}={printable(shown, SHOWN_MAX)}: {expected}")

    def refuse_classes(self, protocol: str, of_sasl: Iterable[str]) -> None:
        """Note classes that a protocol would need; ``of_sasl``: keys of the classes that SASL would need."""
        for name in (*([_ENGINE] if SSL in protocol else []), *(of_sasl if protocol != SSL else [])):
            if self.text(name):
                self.wrong(name, "expected nothing: kjbod runs no Java classes")

    def refuse_classes_of_listeners(self, protocol: str) -> None:
        """Note classes that decide the identity of a client: without them, other clients would get access, or another
        identity."""
        enabled = [one for one in self._list(_ENABLED) if one in MECHANISMS and one != OAUTHBEARER]
        self.refuse_classes(protocol, [f"{one.lower()}.{_SERVER_CALLBACK}" for one in enabled])
        if self.text("principal.builder.class") not in (None, "", _PRINCIPALS):
            self.wrong("principal.builder.class", f"expected {_PRINCIPALS} or nothing: kjbod runs no Java classes")

    # ---- TLS

    def tls(self) -> Tls:
        """Return the settings of TLS."""
        algorithm = self.text("ssl.endpoint.identification.algorithm")
        return Tls(
            source=self._source,
            keystore=self._keystore(),
            truststore=self._truststore(),
            checks_name=algorithm is None or algorithm != "",
            protocols=self._list("ssl.enabled.protocols") or DEFAULT_TLS_PROTOCOLS,
            cipher_suites=self._list("ssl.cipher.suites"),
            client_auth=self._choice("ssl.client.auth", CLIENT_AUTH, NO_CLIENT),
        )

    def _keystore(self) -> Store | None:
        location = self._path("ssl.keystore.location")
        chain, key = self.text("ssl.keystore.certificate.chain"), self.text("ssl.keystore.key")
        if not location and chain is None and key is None:
            return None
        if not location and (chain is None or key is None):
            missing = "ssl.keystore.key" if key is None else "ssl.keystore.certificate.chain"
            self.wrong(missing, "expected the PEM text of it, as its other half is there")
            return None
        named = "ssl.keystore.location" if location else "ssl.keystore.certificate.chain"
        return Store(
            self.key(named),
            self._kind("ssl.keystore.type", PEM if not location else JKS),
            path=location or None,
            password=self.text("ssl.keystore.password"),
            pem=chain if not location else None,
            key_pem=key if not location else None,
            key_password=self.text("ssl.key.password"),
        )

    def _truststore(self) -> Store | None:
        location, certificates = self._path("ssl.truststore.location"), self.text("ssl.truststore.certificates")
        if not location and not certificates:
            return None
        return Store(
            self.key("ssl.truststore.location" if location else "ssl.truststore.certificates"),
            self._kind("ssl.truststore.type", PEM if not location else JKS),
            path=location or None,
            password=self.text("ssl.truststore.password"),
            pem=None if location else certificates,
        )

    def _path(self, name: str) -> str | None:
        """Return a path. A blank value is an unfilled template, and is an error instead of the default."""
        text = self.text(name)
        if text == "":
            self.wrong(name, "expected the path of a file")
        return text or None

    def _kind(self, name: str, default: str) -> str:
        return self._choice(name, STORE_TYPES, default, str.upper)

    def _choice(self, name: str, choices: Sequence[str], default: str, fold: Callable[[str], str] = str.lower) -> str:
        text = self.text(name)
        if not text:
            return default
        if fold(text) not in choices:
            self.wrong(name, f"expected {' or '.join(choices)}")
            return default
        return fold(text)

    def _list(self, name: str) -> tuple[str, ...]:
        return tuple(entry.strip() for entry in (self.text(name) or "").split(",") if entry.strip())

    # ---- SASL

    def mechanism(self, name: str) -> str | None:
        """Return the mechanism that a key names; None if kjbod does not have it."""
        mechanism = self.text(name) or DEFAULT_MECHANISM
        if mechanism in MECHANISMS:
            return mechanism
        self.wrong(name, f"expected {_OURS}")
        return None

    def login(self, mechanism: str, key: str, names: Sequence[str], sections: Sections) -> Login | None:
        """Return a login, from the value of ``key``, or from the first of the sections ``names`` that exists."""
        modules = self._modules(key, names, sections)
        where = key if key in self._properties else f"section {names[-1]} of the JAAS file"
        if not modules:
            if key not in self._properties:
                default = " (Kafka's default of the mechanism)" if mechanism == DEFAULT_MECHANISM else ""
                self.problems.append(
                    f"{self._source}: {key} is missing: expected the login of {mechanism}{default}, or a section "
                    f"{names[-1]} in the file of kjbod.jaas.file"
                )
            return None
        module = next((one for one in modules if one.name == MECHANISMS[mechanism]), modules[0])
        if mechanism == GSSAPI:
            return self._kerberos_login(module, where)
        if mechanism == OAUTHBEARER:
            from kjbod.security.oauthbearer.settings import login_of

            return login_of(self, module, where)
        username, password = module.options.get("username"), module.options.get("password")
        if username is None or password is None:
            lacking = "username" if username is None else "password"
            self.problems.append(f"{self._source}: {where}: {lacking} is missing, which {mechanism} needs")
            return None
        is_token = mechanism != PLAIN and module.options.get("tokenauth", "").lower() == "true"
        return Login(mechanism, username, password, is_token)

    def _kerberos_login(self, module: LoginModule, where: str) -> Login | None:
        try:
            found = kerberos_of(module, f"{self._source}: {where}", self.text)
        except ConfigError as error:
            self.problems.extend(error.problems)
            return None
        return Login(GSSAPI, found.principal or "the ticket cache", kerberos=found)

    def acceptor(self, listener: str, sections: Sections) -> Kerberos | None:
        """Return the login of a listener's own principal."""
        key = f"{self.prefix}{GSSAPI.lower()}.sasl.jaas.config"
        modules = self._modules(key, _server_sections(listener), sections)
        module = next((one for one in modules if one.name.endswith(KRB5)), None)
        where = f"{self._source}: {key}"
        if module is None:
            self.problems.append(
                f"{where} is missing: expected the keytab of this host, by {MODULE}, or {_ENABLED} without {GSSAPI}, "
                "its default"
            )
            return None
        try:
            return kerberos_of(module, where, self.text, accepts=True)
        except ConfigError as error:
            self.problems.extend(error.problems)
            return None

    def enabled_mechanisms(self, listener: str, sections: Sections) -> Mapping[str, Mapping[str, str]]:
        """Return the mechanisms of a listener that kjbod has, with the users of PLAIN."""
        enabled = self._list(_ENABLED) or (DEFAULT_MECHANISM,)
        known = [one for one in enabled if one in MECHANISMS]
        if not known:
            self.wrong(_ENABLED, f"expected one of {_OURS}")
        return {one: self._plain_users(listener, sections) if one == PLAIN else {} for one in known}

    def _plain_users(self, listener: str, sections: Sections) -> Mapping[str, str]:
        key = f"{self.prefix}{PLAIN.lower()}.sasl.jaas.config"
        modules = self._modules(key, _server_sections(listener), sections)
        module = next((one for one in modules if one.name == MECHANISMS[PLAIN]), None)
        if module is None:
            self.problems.append(f"{self._source}: {key} is missing: expected the users of PLAIN as options user_NAME")
            return {}
        return plain_users(module)

    def tokens(self, listener: str, sections: Sections) -> "ValidatorSettings | None":
        """Return the rules for the tokens that a listener accepts."""
        from kjbod.security.oauthbearer.settings import validator_of

        key = f"{self.prefix}{OAUTHBEARER.lower()}.sasl.jaas.config"
        modules, before = self._modules(key, _server_sections(listener), sections), len(self.problems)
        module = next((one for one in modules if one.name == MECHANISMS[OAUTHBEARER]), None)
        if module is None and len(self.problems) == before:
            self.note(f"{key} is missing: expected {MECHANISMS[OAUTHBEARER]} required;")
        where = key if key in self._properties else "the JAAS file"
        return validator_of(self, module, where)

    def lifetimes_ms(self, mechanisms: Iterable[str]) -> Mapping[str, int]:
        """Return the lifetime of a login by mechanism; a mechanism's own key overrides the general key."""
        name = "connections.max.reauth.ms"
        own = {one: f"{one.lower()}.{name}" for one in mechanisms}
        found = {one: self.milliseconds(key if self.key(key) in self._properties else name) for one, key in own.items()}
        return {one: lifetime_ms for one, lifetime_ms in found.items() if lifetime_ms}

    def milliseconds(self, name: str, default: int = 0) -> int:
        """Return a period in ms, or the default if it is not set."""
        text = self.text(name) or str(default)
        if not text.isascii() or not text.isdigit() or int(text) > LONG_MAX:
            self.wrong(name, f"expected a whole number from 0 to {LONG_MAX} (ms)")
            return 0
        return int(text)

    def principal_rules(self) -> tuple[Rule, ...]:
        """Return the rules that turn a certificate's name into a principal."""
        name = "ssl.principal.mapping.rules"
        try:
            return parse_rules(self.text(name) or DEFAULT_RULE)
        except ValueError as error:
            self.wrong(name, str(error))
            return ()

    def kerberos_rules(self) -> tuple[KerberosRule, ...]:
        """Return the rules that turn a Kerberos name into a principal."""
        text = self.text(KERBEROS_RULES)
        try:
            return parse_kerberos_rules(DEFAULT_RULE if text is None else text)
        except ValueError as error:
            self.wrong(KERBEROS_RULES, str(error))
            return ()

    def _modules(self, key: str, names: Sequence[str], sections: Sections) -> Sequence[LoginModule]:
        """Return the login modules of a key's value, or, if it is not set, of the first of these sections that
        exists."""
        if key not in self._properties:
            found = sections()
            return next((found[name] for name in names if found.get(name)), ())
        text = self.text(key)
        if text is None:
            return ()
        try:
            modules = parse_login(text)
        except ValueError as error:
            self.wrong(key, f"expected a JAAS login module: {error}")
            return ()
        if len(modules) != 1:
            self.wrong(key, f"expected one JAAS login module, not {len(modules)}")
            return ()
        return modules
