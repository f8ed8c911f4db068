"""A KDC of MIT's on loopback, with a realm, a database and a ``krb5.conf`` of its own: nothing of the host's is used.

::

    with Kdc(base) as kdc:
        keytab = kdc.keytab("kafka", "kafka/localhost")
        kafka = start(..., env=kdc.environment)  # our own processes; Java: options=kdc.java_options
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kjbod.security.kerberos_settings import MODULE
from scripts.rig.processes import free_port, wait_until
from scripts.rig.rig_error import RigError

REALM: Final = "KJBOD.TEST"
SERVICE: Final = "kafka"
SERVER: Final = f"{SERVICE}/localhost"
"""Principal of a node on loopback: the name of 127.0.0.1."""
_PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_TIMEOUT_S: Final = 30.0


def jaas(keytab: Path, principal: str, **others: str) -> str:
    """A value of ``sasl.jaas.config``; ``others``: further options."""
    options = {"useKeyTab": "true", "storeKey": "true", "keyTab": str(keytab), "principal": principal, **others}
    given = " ".join(f'{name}="{value}"' for name, value in options.items())
    return f"{MODULE} required {given};"


def require_kdc() -> None:
    """Raise :class:`RigError` where this machine has no KDC."""
    lacking = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if lacking:
        raise RigError(f"{', '.join(lacking)}: apt-get install krb5-kdc krb5-admin-server krb5-user, or scripts/setup")


class Kdc:
    """A running KDC.

    Args:
        base: for its files.
        lifetime: of its tickets, as MIT's files write it.

    Attributes:
        environment: with which MIT's library finds it.
        java_options: with which Java does.
    """

    def __init__(self, base: Path, lifetime: str = "1h") -> None:
        require_kdc()
        self._base = base
        base.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.krb5_conf = base / "krb5.conf"
        self.environment: Mapping[str, str] = {
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(base / "kdc.conf"),
            "KRB5RCACHENAME": f"dfl:{base}",
            "KRB5CCNAME": f"FILE:{base}/no-ticket-cache",
        }
        self.java_options = (f"-Djava.security.krb5.conf={self.krb5_conf}",)
        self._process: subprocess.Popen[bytes] | None = None
        self._write_files(lifetime)

    def _write_files(self, lifetime: str) -> None:
        base = self._base
        self.krb5_conf.write_text(
            f"[libdefaults]\n  default_realm = {REALM}\n  dns_lookup_kdc = false\n  dns_lookup_realm = false\n"
            f"    udp_preference_limit = 1\n  ticket_lifetime = {lifetime}\n  renew_lifetime = 7d\n"
            f"[realms]\n  {REALM} = {{\n    kdc = 127.0.0.1:{self.port}\n  }}\n"
            f"[domain_realm]\n  localhost = {REALM}\n"
        )
        (base / "kdc.conf").write_text(
            f'[kdcdefaults]\n  kdc_listen = ""\n  kdc_tcp_listen = 127.0.0.1:{self.port}\n'
            f"[realms]\n  {REALM} = {{\n    database_name = {base}/principal\n    key_stash_file = {base}/stash\n"
            f"    acl_file = {base}/acl\n    max_life = {lifetime}\n    max_renewable_life = 7d\n  }}\n"
            f"[logging]\n  kdc = FILE:{base}/kdc.log\n"
        )

    def __enter__(self) -> Self:
        self._run("kdb5_util", "-r", REALM, "create", "-s", "-W", "-P", "of-a-test")
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Let it answer."""
        log = self._base / "kdc.log"
        log.unlink(missing_ok=True)
        with (self._base / "kdc.out").open("wb") as out:
            self._process = subprocess.Popen(
                [self._program("krb5kdc"), "-n", "-r", REALM],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            self._wait(log)
        except BaseException:
            self.stop()
            raise

    def _wait(self, log: Path) -> None:
        wait_until(lambda: log.exists() and "commencing operation" in log.read_text(), _TIMEOUT_S, f"the KDC ({log})")

    def stop(self) -> None:
        """Let it answer no more."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def keytab(self, name: str, *principals: str) -> Path:
        """The file ``name.keytab`` with the keys of these principals, which are made."""
        path = self._base / f"{name}.keytab"
        for principal in principals:
            self.admin(f"addprinc -randkey {principal}")
            self.admin(f"ktadd -norandkey -k {path} {principal}")
        return path

    def node(self, keytab: Path, principal: str = SERVER) -> dict[str, object]:
        """Lines of a node whose controllers have a listener with GSSAPI; brokers stay in plain text."""
        return {
            "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "sasl.mechanism.controller.protocol": "GSSAPI",
            "sasl.kerberos.service.name": SERVICE,
            "sasl.enabled.mechanisms": "GSSAPI",
            "listener.name.controller.gssapi.sasl.jaas.config": jaas(keytab, principal),
        }

    def broker(self, keytab: Path, port: int, principal: str = SERVER) -> dict[str, object]:
        """Lines of a broker with a single listener with GSSAPI, on this port, as its controllers have one."""
        return {
            **self.node(keytab, principal),
            "listeners": f"INTERNAL://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,INTERNAL:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "sasl.mechanism.inter.broker.protocol": "GSSAPI",
            "listener.name.internal.gssapi.sasl.jaas.config": jaas(keytab, principal),
        }

    def client(self, keytab: Path, principal: str) -> dict[str, object]:
        """Lines of a ``--command-config`` file."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.jaas.config": jaas(keytab, principal, serviceName=SERVICE),
        }

    def admin(self, command: str) -> None:
        """A command of ``kadmin``."""
        self._run("kadmin.local", "-r", REALM, "-q", command)

    def kinit(self, keytab: Path, principal: str, cache: Path, *options: str) -> None:
        """Put a ticket into a ticket cache."""
        self._run("kinit", *options, "-k", "-t", str(keytab), "-c", str(cache), principal)

    def _program(self, name: str) -> str:
        return shutil.which(name, path=_PATH) or name

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._program(name), *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode or "add_principal:" in done.stderr or "while" in done.stderr:
            raise RigError(f"{name} {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
