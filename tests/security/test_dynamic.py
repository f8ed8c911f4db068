"""Stores of listeners that are altered in the metadata (KIP-226)."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kjbod.config import load_config
from kjbod.config.endpoints import Listener
from kjbod.config.keys import Config
from kjbod.errors import KjbodError
from kjbod.security.dynamic import DynamicStores, counts_for, stores_in
from kjbod.security.keys import ListenerSettings

FILE = """process.roles=controller
node.id=1
controller.quorum.voters=1@h:9093
listeners=CONTROLLER://h:9093,CLIENTS://h:9094
controller.listener.names=CONTROLLER,CLIENTS
listener.security.protocol.map=CONTROLLER:SSL,CLIENTS:SSL
log.dirs=/nowhere
ssl.keystore.location=file.pem
"""
CONTROLLER, CLIENTS = Listener("CONTROLLER", "h", 9093, "SSL"), Listener("CLIENTS", "h", 9094, "SSL")


class Listening:
    """A listener that keeps what it is given, or refuses it."""

    def __init__(self) -> None:
        self.taken: list[ListenerSettings] = []
        self.refuses = False

    async def reconfigure(self, read: Callable[[], ListenerSettings]) -> None:
        found = read()
        if self.refuses:
            raise KjbodError("new.pem: no such file")
        self.taken.append(found)


class Log:
    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **_: object) -> None:
        self.events.append(event)

    warning = info


class Node:
    """A node with two listeners, its configs in the metadata, and what was read of its file and them."""

    def __init__(self, base: Path) -> None:
        self.configs: dict[str, str] = {}
        self.read: list[tuple[str, Mapping[str, str]]] = []
        self.log = Log()
        file = base / "server.properties"
        file.write_text(FILE)
        config = load_config(file)
        self.stores = DynamicStores(config, lambda: self.configs, self.settings, self.log)
        self.controller, self.clients = Listening(), Listening()
        self.stores.add(CONTROLLER, self.controller)
        self.stores.add(CLIENTS, self.clients)

    def settings(self, config: Config, listener: Listener) -> ListenerSettings:
        self.read.append((listener.name, config.properties))
        return ListenerSettings()


@pytest.mark.parametrize(
    ("name", "listener", "expected"),
    [
        ("ssl.keystore.location", "CONTROLLER", True),
        ("listener.name.controller.ssl.keystore.location", "CONTROLLER", True),
        ("listener.name.clients.ssl.keystore.location", "CONTROLLER", False),
    ],
)
def test_a_name_with_a_prefix_is_for_that_listener_alone(name: str, listener: str, *, expected: bool) -> None:
    assert stores_in({name: "x"}) == {name: "x"}
    assert counts_for(name, listener) is expected


def test_nothing_but_stores_is_altered_in_the_metadata() -> None:
    others = ("ssl.client.auth", "ssl.protocol", "sasl.enabled.mechanisms", "listener.name.controller.ssl.client.auth")
    assert stores_in(dict.fromkeys((*others, "log.retention.ms"), "x")) == {}


async def test_configs_of_the_node_count_before_its_file_and_only_where_they_changed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.stores.apply()
    assert node.read == []
    node.configs = {"listener.name.controller.ssl.keystore.location": "new.pem", "log.retention.ms": "1"}
    for _ in range(2):
        await node.stores.apply()
    (listener, read), *others = node.read
    assert (listener, others) == ("CONTROLLER", [])
    assert read["listener.name.controller.ssl.keystore.location"] == "new.pem"
    assert read["ssl.keystore.location"] == "file.pem"
    assert (len(node.controller.taken), len(node.clients.taken)) == (1, 0)
    node.configs = {}
    await node.stores.apply()
    assert "listener.name.controller.ssl.keystore.location" not in node.read[1][1]


async def test_stores_that_cannot_be_used_are_said_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.controller.refuses = True
    node.configs = {"ssl.keystore.location": "new.pem"}
    for _ in range(3):
        await node.stores.apply()
    assert node.log.events == ["security.not.reconfigured", "security.reconfigured"]
    assert len(node.clients.taken) == 1
