"""Delegation tokens (KIP-48) on a secured cluster: Kafka's own tool makes, lists, renews and ends them through an
unmodified broker, and whoever has one logs in with it: at the broker, at the controller, and at an agent.

What the tools say is noted with names for what is by chance, so that two controllers have the same transcript.
"""

import re
import subprocess
from pathlib import Path
from typing import Final

from kjbod.errors import KjbodError
from kjbod.metadata.live import dump_live
from kjbod.security.opening import client_security
from scripts.brokers.peers import AUTHORIZER, SECRET_KEY, STRANGER
from scripts.rig.cluster import Cluster, Properties, wait_until_serving
from scripts.rig.kafka import DELEGATION_TOKENS, QUORUM, TOPICS, KafkaKit
from scripts.rig.processes import ManagedProcess, free_port, wait_until
from scripts.rig.rig_error import RigError
from scripts.rig.secured import MECHANISMS, PASSWORD, USER, Secured, jaas

_TIMEOUT_S: Final = 60.0
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+Z?|(?<=expiry date : )\S+")
_ERROR: Final = re.compile(r"(?<=org\.apache\.kafka\.common\.errors\.)\w+: .*")
_HOUR_MS: Final = 3_600_000


class Token:
    """A token, as Kafka's tool says it."""

    def __init__(self, said: str) -> None:
        row = next((line for line in said.splitlines() if line.count("User:") >= 2), "")
        self.id, self.hmac, *_ = row.split() or ("", "")
        if not self.hmac:
            raise RigError(f"no token was made: {said}")


class TokenStory:
    """A broker and an agent on a controller that runs, and what is said of tokens there.

    Args:
        cluster: as :func:`.peers.start` gives it.
        kit: Kafka's.
        secured: its certificates.
        protocol: of all listeners, with SASL.

    """

    def __init__(self, cluster: Cluster, kit: KafkaKit, secured: Secured, protocol: str) -> None:
        self._told: list[str] = []
        self._cluster, self._kit, self._secured, self._protocol = cluster, kit, secured, protocol
        self._tokens: list[Token] = []
        self._broker_port, self._agent_port = free_port(), free_port()
        self._admin = self._user(USER)
        self._alice = self._user(STRANGER)

    def start(self) -> list[ManagedProcess]:
        """The broker and the agent, which serve."""
        cluster, base = self._cluster, self._cluster.base
        broker = cluster.launch_broker(self._kit, self._node(11, self._broker_port), name="broker")
        agent = cluster.start_agent(self._node(12, self._agent_port, {"kjbod.state.dir": base / "b12" / "state"}))
        wait_until_serving(broker)
        agent.wait_for_event("agent.unfenced")
        return [broker, agent]

    def _node(self, node_id: int, port: int, more: Properties | None = None) -> Path:
        disks = [self._cluster.base / f"b{node_id}" / name for name in ("d1", "d2")]
        for disk in disks:
            disk.mkdir(parents=True)
        lines = {**self._secured.broker(self._protocol, port), **AUTHORIZER, **SECRET_KEY, **(more or {})}
        config = self._cluster.configure_broker(node_id, disks, lines)
        self._cluster.format_broker(config)
        return config

    # ---- the story

    def tell(self) -> None:
        """All of it.

        Raises:
            RigError: somebody is let in who may not, or is not who may.
        """
        mine = self._create(self._alice, "--renewer-principal", f"User:{USER}")
        self._create(self._alice, "--owner-principal", f"User:{USER}", check=False)
        admins = self._create(self._admin)
        self._create(self._admin, "--owner-principal", f"User:{STRANGER}", "--max-life-time-period", str(_HOUR_MS))
        for who in (self._alice, self._admin):
            self._describe(who)
        self._say(self._admin, "--renew", "--renew-time-period", str(_HOUR_MS), "--hmac", mine.hmac)
        self._say(self._alice, "--renew", "--renew-time-period", "-1", "--hmac", admins.hmac)
        self._say(self._alice, "--renew", "--renew-time-period", "-1", "--hmac", "bm8gdG9rZW4=")
        self._log_in(self._by(mine), self._by(admins))
        self._create(self._by(mine), check=False)
        self._say(self._admin, "--expire", "--expiry-time-period", "-1", "--hmac", admins.hmac)
        self._say(self._admin, "--renew", "--renew-time-period", "-1", "--hmac", admins.hmac)
        self._keep_out(self._by(admins))

    def tell_after_a_restart(self) -> None:
        """The controller is stopped and started, and has its tokens."""
        self._cluster.stop_controller()
        self._cluster.start_controller()
        mine = self._tokens[0]
        expire = ("--expire", "--expiry-time-period", str(_HOUR_MS), "--hmac", mine.hmac)
        # Kafka's controller reads them a little later than it serves.
        wait_until(lambda: "Completed" in self._ask(self._alice, *expire).stdout, _TIMEOUT_S, "the tokens")
        self._say(self._alice, "--renew", "--renew-time-period", str(2 * _HOUR_MS), "--hmac", mine.hmac)
        self._describe(self._alice)
        self._log_in(self._by(mine))

    def transcript(self) -> str:
        """All that the tools said, in turn."""
        text = "\n".join(self._told)
        for number, token in enumerate(self._tokens):
            text = text.replace(token.id, f"ID-{number}").replace(token.hmac, f"HMAC-{number}")
        return _MOMENT.sub("*", text)

    def _log_in(self, users: Path, admins: Path | None = None) -> None:
        """By the token of a user without rights, who sees no topic, and of one who may do everything."""
        for port in (self._broker_port, self._agent_port):
            self._run(TOPICS, users, port, "--list")
            if admins is not None:
                self._run(TOPICS, admins, port, "--describe", "--topic", "none", check=False)
        if admins is not None:
            self._run(TOPICS, admins, self._broker_port, "--create", "--topic", "made-by-token", "--partitions", "2")
            self._run(TOPICS, admins, self._broker_port, "--list")
            controller = ("--bootstrap-controller", f"127.0.0.1:{self._cluster.port}", "--command-config", str(admins))
            self._kit.run(QUORUM, *controller, "describe", "--status")
            if not self._dump(admins):
                raise RigError("kjbod read no metadata with a token")

    def _keep_out(self, client: Path) -> None:
        """A token that was ended lets nobody in, as soon as the metadata are there."""
        wait_until(lambda: not self._dump(client), _TIMEOUT_S, "the controller to forget a token")
        for port in (self._broker_port, self._agent_port):
            self._run(TOPICS, client, port, "--list", check=False)

    def _dump(self, client: Path) -> int:
        """Count the records of the metadata that kjbod reads; 0 where it may not."""
        try:
            return len(list(dump_live([("127.0.0.1", self._cluster.port)], lambda _: None, client_security(client))))
        except KjbodError:
            return 0

    # ---- tools

    def _create(self, who: Path, *options: str, check: bool = True) -> Token:
        given = options if "--max-life-time-period" in options else ("--max-life-time-period", "-1", *options)
        said = self._run(DELEGATION_TOKENS, who, self._broker_port, "--create", *given, check=check)
        if not check:
            return self._tokens[-1]
        self._tokens.append(Token(said))
        return self._tokens[-1]

    def _describe(self, who: Path) -> None:
        """Alice's tokens, at a broker and at an agent, in the order in which they were made."""
        for port in (self._broker_port, self._agent_port):
            said = self._ask(who, "--describe", "--owner-principal", f"User:{STRANGER}", port=port).stdout
            found = [f"ID-{number}" for number, token in enumerate(self._tokens) if f"{token.id} {token.hmac}" in said]
            self._told.append(f"$ {who.stem} describes\n{' '.join(found)}")

    def _say(self, who: Path, *options: str) -> None:
        self._run(DELEGATION_TOKENS, who, self._broker_port, *options, check=False)

    def _ask(self, who: Path, *options: str, port: int | None = None) -> subprocess.CompletedProcess[str]:
        server = ("--bootstrap-server", f"127.0.0.1:{port or self._broker_port}", "--command-config", str(who))
        return self._kit.run(DELEGATION_TOKENS, *server, *options, check=False)

    def _run(self, tool: str, who: Path, port: int, *options: str, check: bool = True) -> str:
        server = ("--bootstrap-server", f"127.0.0.1:{port}", "--command-config", str(who))
        done = self._kit.run(tool, *server, *options, check=check)
        said = "\n".join([done.stdout.strip(), *_ERROR.findall(done.stderr)[:1]])
        self._told.append(f"$ {tool.rpartition('.')[2]} {who.stem} {' '.join(options)}\n{said}")
        return done.stdout

    # ---- logins

    def _user(self, name: str) -> Path:
        return self._client(name, jaas(MECHANISMS[-1], username=name, password=PASSWORD))

    def _by(self, token: Token, mechanism: str = MECHANISMS[-1]) -> Path:
        """The login by a token."""
        number = self._tokens.index(token)
        return self._client(
            f"token-{number}", jaas(mechanism, username=token.id, password=token.hmac, tokenauth="true")
        )

    def _client(self, name: str, login: str) -> Path:
        lines = {**self._secured.client(self._protocol), "sasl.jaas.config": login}
        return self._secured.client_file(self._cluster.base / f"{name}.properties", lines)
