"""Read Kerberos logins from files: options of Java's ``Krb5LoginModule`` and Kafka's ``sasl.kerberos.*``
(``KerberosLogin``, ``SaslConfigs`` of 4.3.1).

The options ``keyTab``, ``principal``, ``useKeyTab``, ``useTicketCache``, ``ticketCache`` and ``serviceName`` are used.
The system's Kerberos reads keytabs and ticket caches each time, so options like ``storeKey`` have no effect.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from kjbod.config.keys import LONG_MAX
from kjbod.errors import ConfigError
from kjbod.security.jaas import LoginModule
from kjbod.security.keys import Kerberos

GSSAPI: Final = "GSSAPI"
KRB5: Final = ".Krb5LoginModule"
MODULE: Final = f"com.sun.security.auth.module{KRB5}"
SERVICE: Final = "sasl.kerberos.service.name"
_KINIT: Final = "sasl.kerberos.kinit.cmd"
_FACTOR: Final = "sasl.kerberos.ticket.renew.window.factor"
_JITTER: Final = "sasl.kerberos.ticket.renew.jitter"
_PAUSE: Final = "sasl.kerberos.min.time.before.relogin"
_FILE: Final = "FILE:"
_SERVER: Final = re.compile(r"[^/@]+/[^/@]+(?:@[^/@]+)?")

Text = Callable[[str], str | None]
"""Returns the value of a key of the same file; None: the key is not set."""


def kerberos_of(module: LoginModule, where: str, text: Text, *, accepts: bool = False) -> Kerberos:
    """Return the login of a login module.

    Args:
        module: login module of the JAAS entry.
        where: file and key of the JAAS entry, for messages.
        text: returns the values of the keys ``sasl.kerberos.*``.
        accepts: whether the login is that of a listener.

    Raises:
        ConfigError: the login has mistakes; the error lists all of them.
    """
    problems: list[str] = []
    if module.name != MODULE:
        raise ConfigError(f"{where}: {module.name}: expected {MODULE}, as the mechanism is {GSSAPI} (Kafka's default)")
    options = module.options
    uses_keytab, uses_cache = _is_true(options, "useKeyTab"), _is_true(options, "useTicketCache") and not accepts
    principal, keytab = options.get("principal"), _path(options.get("keyTab"))
    if not uses_keytab and not uses_cache:
        kinds = "useKeyTab=true" if accepts else "useKeyTab=true or useTicketCache=true"
        problems.append(f"{where}: expected {kinds}: nobody is here who could be asked for a password")
    if uses_keytab:
        lacking = [name for name, value in (("keyTab", keytab), ("principal", principal)) if not value]
        problems += [f"{where}: {name} is missing, which useKeyTab=true needs" for name in lacking]
    if accepts and principal and not _SERVER.fullmatch(principal):
        problems.append(f"{where}: principal={principal}: expected that of a server: service/host@REALM")
    found = Kerberos(
        where,
        principal or None,
        keytab if uses_keytab else None,
        uses_cache,
        _path(options.get("ticketCache")),
        None if accepts else _service(options, where, text, problems),
        text(_KINIT) or Kerberos(where).kinit,
        _part(_FACTOR, Kerberos(where).renew_factor, where, text, problems),
        _part(_JITTER, Kerberos(where).renew_jitter, where, text, problems),
        _pause_ms(where, text, problems),
    )
    if problems:
        raise ConfigError(*problems)
    return found


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def _path(value: str | None) -> str | None:
    return None if value is None else value.removeprefix(_FILE) or None


def _service(options: Mapping[str, str], where: str, text: Text, problems: list[str]) -> str | None:
    """Return the service's name. If option and key both give a name, they must agree
    (``KerberosLogin.getServiceName``)."""
    of_jaas, of_key = options.get("serviceName"), text(SERVICE)
    if of_jaas and of_key and of_jaas != of_key:
        problems.append(f"{where}: serviceName={of_jaas}: expected {of_key}, as {SERVICE} says")
    if not of_jaas and not of_key:
        problems.append(f"{where}: expected serviceName here, or {SERVICE}: the first part of the servers' principal")
    return of_jaas or of_key


def _part(key: str, default: float, where: str, text: Text, problems: list[str]) -> float:
    """Return a fraction of a ticket's lifetime."""
    try:
        found = float(text(key) or default)
    except ValueError:
        found = math.nan
    if 0 <= found <= 1:
        return found
    problems.append(f"{where.partition(': ')[0]}: {key}: expected a number from 0 to 1")
    return default


def _pause_ms(where: str, text: Text, problems: list[str]) -> int:
    value = text(_PAUSE) or str(Kerberos(where).renew_pause_ms)
    if value.isascii() and value.isdigit() and int(value) <= LONG_MAX:
        return int(value)
    problems.append(f"{where.partition(': ')[0]}: {_PAUSE}: expected a whole number from 0 to {LONG_MAX} (ms)")
    return 0
