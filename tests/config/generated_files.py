"""Generated ``server.properties`` files: valid ones of each role, with a few keys changed. Drawn by a seed."""

import random
from collections.abc import Iterator, Mapping, Sequence

from kjbod.config.endpoints import INT_MAX
from kjbod.config.keys import LONG_MAX, OWN_PREFIX, settings

File = dict[str, str]

BASES: Sequence[File] = (
    {
        "process.roles": "broker",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": "/mnt/d1,/mnt/d2,/mnt/d3",
    },
    {
        "process.roles": "controller",
        "node.id": "3000",
        "controller.quorum.voters": "3000@127.0.0.1:9093",
        "listeners": "CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": "/mnt/meta",
    },
    {
        "process.roles": "broker,controller",
        "node.id": "2",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        "listeners": "INTERNAL://127.0.0.1:9092,EXTERNAL://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093",
        "advertised.listeners": "INTERNAL://b2:9092,EXTERNAL://b2.example.com:9094",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "log.dirs": "/mnt/d1,/mnt/d2",
        "metadata.log.dir": "/mnt/meta",
    },
)
_BLANK = ("", " ", ",", ",,")
_LISTS = ("{0},{0}", "{0},", ",{0}", "{0},,{0}", " {0} ", "{0} , ", "{0}\t")
_NAMES = (
    "PLAINTEXT",
    "plaintext",
    "Plaintext",
    "CONTROLLER",
    "controller",
    "INTERNAL",
    "SSL",
    "SASL_SSL",
    "C2",
    "C-2.x",
)
_HOSTS = ("", "127.0.0.1", "0.0.0.0", "[::1]", "::1", "[::]", "h", "h.example.com", "h_1", "h h", "[h]", "-")
_PORTS = ("0", "1", "9092", "9093", "65535", "65536", "-1", "", "x", "+1", "099")
_PROTOCOLS = ("PLAINTEXT", "plaintext", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "TLS", "")
_PATHS = (
    "/mnt/d1",
    "/mnt/d1/",
    "/mnt/./d1",
    "/mnt//d1",
    "/mnt/d2",
    "/mnt",
    "/mnt/d1/kraft",
    "/mnt/d1/t-0",
    "rel",
    "*",
    "/",
)
_NUMBERS = (
    "", " ", "x", "5s", "0x10", "1e3", "1.0", "+5", "-0", " 7 ", "007", "\u0663",
    *map(str, (-LONG_MAX - 2, -LONG_MAX - 1, -INT_MAX - 2, -INT_MAX - 1, -2, -1, 0, 1, 2, 3, 13, 14, 100)),
    *map(str, (32767, 32768, INT_MAX, INT_MAX + 1, LONG_MAX, LONG_MAX + 1)),
)  # fmt: skip
_IDS = ("1", "2", "3000", "3001", "-1", "x", "", "+2", "2147483648")
_BOOLEANS = ("true", "false", "TRUE", " False ", "yes", "1", "", "t")


def files(seed: int, count: int) -> Iterator[File]:
    """So many files; each key of a number has each of its limits before any has one twice, in an order of chance."""
    rng = random.Random(seed)
    limits = [(name, value) for name, values in _SINGLE.items() for value in values]
    rng.shuffle(limits)
    for number in range(count):
        made = dict(rng.choice(BASES))
        if number % 2 and limits:
            name, value = limits[number // 2 % len(limits)]
            made[name] = value
        else:
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                _change(made, rng)
        yield made


def text_of(file: Mapping[str, str]) -> bytes:
    """The file's bytes, each character above ASCII and each backslash escaped."""
    escaped = {
        key: "".join(f"\\u{ord(one):04x}" if not " " <= one <= "~" else one for one in value)
        for key, value in file.items()
    }
    return "".join(
        f"{key}={value.replace(' ', chr(92) + ' ', 1) if value[:1] == ' ' else value}\n"
        for key, value in escaped.items()
    ).encode("ascii")


def _around(name: str) -> Sequence[str]:
    """Values of a number at the limits of its type and of this table."""
    key = settings()[name].key
    return tuple(
        dict.fromkeys((*_NUMBERS, *(str(limit + by) for limit in (key.at_least, key.at_most) for by in (-1, 0, 1))))
    )


_KAFKAS = {name: one for name, one in settings().items() if not name.startswith(OWN_PREFIX)}
_SINGLE: Mapping[str, Sequence[str]] = {
    **{name: _around(name) for name, one in _KAFKAS.items() if one.kind is int},
    **{name: _BOOLEANS for name, one in _KAFKAS.items() if one.kind is bool},
    "broker.id": ("1", "2", "-1", "x", "3000"),
    "broker.rack": ("", " r ", "r,s"),
    "super.users": ("", "User:a;User:b", "x"),
    "authorizer.class.name": ("", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    "delegation.token.secret.key": ("", " ", "hush"),
}


def _listener(rng: random.Random) -> str:
    return (
        f"{rng.choice(_NAMES)}://{rng.choice(_HOSTS[:6])}:{rng.choice(_PORTS[:5])}"
        if rng.random() < 0.8
        else rng.choice(
            (
                f"{rng.choice(_NAMES)}://{rng.choice(_HOSTS)}:{rng.choice(_PORTS)}",
                "PLAINTEXT",
                "://h:1",
                "PLAINTEXT:h:1",
                "A B://h:1",
            )
        )
    )


def _voter(rng: random.Random) -> str:
    return f"{rng.choice(_IDS)}@{rng.choice(_HOSTS)}:{rng.choice(_PORTS)}"


def _server(rng: random.Random) -> str:
    return f"{rng.choice(('', '', 'CONTROLLER://', 'x://', '://', 'PLAIN_TEXT://', 'a b://'))}{rng.choice(_HOSTS)}:{rng.choice(_PORTS)}"


def _of_map(rng: random.Random) -> str:
    return (
        f"{rng.choice(_NAMES)}:{rng.choice(_PROTOCOLS)}"
        if rng.random() < 0.9
        else rng.choice(("PLAINTEXT", ":SSL", "A:B:SSL", "a : SSL"))
    )


def _several(make: object, rng: random.Random, most: int = 3) -> str:
    assert callable(make)
    found = ",".join(make(rng) for _ in range(rng.randint(1, most)))
    return rng.choice(_LISTS).format(found) if rng.random() < 0.2 else found


def _change(file: File, rng: random.Random) -> None:
    """One change that is no number's."""
    kind = rng.randrange(15)
    if kind == 0:
        del file[rng.choice(sorted(file))]
    elif kind == 1:
        file[rng.choice(sorted(file))] = rng.choice(_BLANK)
    elif kind == 2:
        key = rng.choice(sorted(file))
        file[key] = rng.choice(_LISTS).format(file[key])
    elif kind == 3:
        file["listeners"] = _several(_listener, rng)
    elif kind == 4:
        file["advertised.listeners"] = _several(_listener, rng, 2)
    elif kind == 5:
        added = file.get("listener.security.protocol.map", "CONTROLLER:PLAINTEXT")
        file["listener.security.protocol.map"] = rng.choice((f"{added},", "", f"{added},")) + _several(_of_map, rng)
    elif kind == 6:
        file["controller.listener.names"] = _several(lambda r: r.choice(_NAMES), rng, 2)
    elif kind == 7:
        file["controller.quorum.voters"] = _several(_voter, rng)
    elif kind == 8:
        file["controller.quorum.bootstrap.servers"] = _several(_server, rng, 2)
    elif kind == 9:
        file["log.dirs"] = _several(lambda r: r.choice(_PATHS[:5] if r.random() < 0.7 else _PATHS), rng)
    elif kind == 10:
        file[rng.choice(("metadata.log.dir", "log.dir"))] = rng.choice((*_PATHS, ""))
    elif kind == 11:
        file["cordoned.log.dirs"] = _several(lambda r: r.choice(_PATHS), rng, 2)
    elif kind == 12:
        file["process.roles"] = _several(lambda r: r.choice(("broker", "controller", "broker", "Broker", "x")), rng)
    elif kind == 13:
        file[rng.choice(("inter.broker.listener.name", "security.inter.broker.protocol"))] = rng.choice(
            (*_NAMES, "", " PLAINTEXT ")
        )
        if rng.random() < 0.5:
            file.pop("inter.broker.listener.name", None)
    else:
        host = rng.choice(("10.0.0.1", "h", "::1", "[::1]", "", "a b", "fe80::1%eth0"))
        entry = f"{host}:{rng.choice(('0', '5', '-1', 'x', '', '2147483648', '+3'))}"
        file["max.connections.per.ip.overrides"] = rng.choice((*_LISTS, "{0}")).format(entry)
        if rng.random() < 0.5:
            file["max.connections.per.ip"] = rng.choice(("0", "-1", "5"))
