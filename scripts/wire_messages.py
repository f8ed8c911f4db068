"""Message classes from Kafka's schemas; ``python -m scripts.wire_schemas`` writes them.

What the schemas do not say stands in two tables: wire_messages.txt for :mod:`kjbod.wire.messages`,
wire_admin_messages.txt for :mod:`kjbod.wire.admin_messages`. ::

    FETCH 4-18
    FetchResponseTopic (FetchableTopicResponse): The data of one topic.
        topic? topic_id?

An API by its name in ApiKey, with the lowest and the highest version that kjbod speaks; its classes, each below those
that it needs, with their docstrings. In parentheses is Kafka's name of a struct, where :func:`_names` does not lead to
ours. Indented are the fields of which there is more to say, in their order: ``name?`` is ignorable, ``name=1`` has that
default (an expression without spaces), ``name!`` has none, ``name`` only stands before the next. The defaults of all
others are those of :func:`_default`.
"""

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from kjbod.ids import ZERO
from kjbod.wire.apis import AUTHORIZED_OPERATIONS_OMITTED, INT32_MAX, INT64_MAX, ApiKey
from kjbod.wire.codec import REQUIRED, Field, Schema
from kjbod.wire.schemas import SIDES, Side

ROOT: Final = Path(__file__).parents[1]
_DOC_WIDTH: Final = 116
_TYPES: Final = {"bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "uuid": "Uuid"}
_ZEROS: Final = {"bool": "False", "float64": "0.0", "string": '""', "bytes": 'b""', "uuid": "ZERO"}
"""Type and zero of each kind; those of any other are ``int`` and 0."""
_CONSTANTS: Final[dict[object, str]] = {
    AUTHORIZED_OPERATIONS_OMITTED: "AUTHORIZED_OPERATIONS_OMITTED",
    INT32_MAX: "INT32_MAX",
    INT64_MAX: "INT64_MAX",
    ZERO: "ZERO",
}
_MESSAGES: Final = '''\
"""The messages that kjbod speaks, one class for all versions of each.

``python -m scripts.wire_schemas`` writes this file from Kafka's schemas and scripts/wire_messages.txt: change it there.

Names are Kafka's (``clients/src/main/resources/common/message/*.json``) in snake_case. Durations are milliseconds and
end in ``_ms``, error codes are plain integers (:mod:`kjbod.wire.error_codes`), ids are :class:`kjbod.ids.Uuid`, zero
where Kafka has none. Structs inside a message are named after it: ``FetchRequestPartition``.

Defaults are Kafka's, so that a caller sets only what matters. A field that a version lacks reads as its default;
writing another value than that to such a version raises, unless Kafka calls the field ignorable: then it is dropped.
"""

from typing import ClassVar

from msgspec import Struct

from kjbod.ids import METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.wire.apis import AUTHORIZED_OPERATIONS_OMITTED as AUTHORIZED_OPERATIONS_OMITTED
from kjbod.wire.apis import INT32_MAX, ApiSpec, api_specs
from kjbod.wire.apis import INT64_MAX as INT64_MAX
from kjbod.wire.apis import ApiKey as ApiKey
from kjbod.wire.apis import RequestBody as RequestBody
from kjbod.wire.apis import ResponseBody as ResponseBody
from kjbod.wire.apis import ResponseT as ResponseT
from kjbod.wire.codec import Ignorable
{classes}

# ---------------------------------------------------------------- registry


API: dict[ApiKey, ApiSpec] = api_specs(({rows}))
"""Every API that kjbod can read and write, those of :mod:`kjbod.wire.admin_messages` where that was imported; what a
server offers is its own choice."""
'''
_ADMIN_MESSAGES: Final = '''\
"""The messages that administrators send to a broker or a controller, and other controllers to a controller; see
:mod:`kjbod.wire.messages`.

``python -m scripts.wire_schemas`` writes this file from Kafka's schemas and scripts/wire_admin_messages.txt.

They are apart from the others because most programs speak none of them, and should not pay for their classes. Importing
this module enters them into :data:`kjbod.wire.messages.API`.
"""

from typing import ClassVar

from msgspec import Struct

from kjbod.ids import ZERO, Uuid
from kjbod.wire.apis import AUTHORIZED_OPERATIONS_OMITTED, ApiKey, RequestBody, ResponseBody, api_specs
from kjbod.wire.codec import Ignorable
from kjbod.wire.messages import API
{classes}

# ---------------------------------------------------------------- registry


API.update(api_specs(({rows})))
'''
_MODULES: Final = {"messages": _MESSAGES, "admin_messages": _ADMIN_MESSAGES}
"""The text around the classes of each module."""
_FIELD: Final = r"(\w+)(\??)(=\S+|!|)"


class TableError(Exception):
    """A table has a mistake, or does not fit Kafka's schemas."""


class TableField(NamedTuple):
    """A field in a table."""

    name: str
    ignorable: bool = False
    default: str | None = None
    """An expression, empty where a caller must give the value; None: that of :func:`_default`."""


class TableClass(NamedTuple):
    """A class in a table."""

    name: str
    kafka_name: str | None
    doc: str
    fields: dict[str, TableField]


class TableApi(NamedTuple):
    """An API in a table."""

    key: ApiKey
    versions: range
    classes: list[TableClass]

    @property
    def name(self) -> str:
        return _camel_case(self.key.name)

    def message(self, side: Side) -> str:
        """The class of its requests or responses."""
        return self.name + side.capitalize()


def apis() -> list[TableApi]:
    """The APIs of all tables; errors as :func:`read_table`."""
    return [api for module in _MODULES for api in _of_module(module)]


def _of_module(module: str) -> list[TableApi]:
    path = ROOT / f"scripts/wire_{module}.txt"
    return read_table(path.read_text(), path.name)


def read_table(text: str, source: str) -> list[TableApi]:
    """The APIs of one table.

    Raises:
        TableError: a line is none of those above.
    """
    found: list[TableApi] = []
    for number, line in enumerate(text.splitlines(), start=1):
        api = re.fullmatch(r"(\w+) (\d+)-(\d+)", line)
        cls = re.fullmatch(r"(\w+)(?: \((\w+)\))?: (.+)", line)
        if api and api[1] in ApiKey.__members__:
            found.append(TableApi(ApiKey[api[1]], range(int(api[2]), int(api[3]) + 1), []))
        elif found and cls:
            found[-1].classes.append(TableClass(cls[1], cls[2], cls[3], {}))
        elif found and found[-1].classes and re.fullmatch(f"   (?: {_FIELD})+", line):
            for name, mark, default in re.findall(f" {_FIELD}", line):
                found[-1].classes[-1].fields[name] = TableField(name, bool(mark), default[1:] if default else None)
        elif line and not line.startswith("#"):
            raise TableError(f"{source}:{number}: no API of ApiKey, no class and no fields of one: {line}")
    return found


class Classes:
    """The classes of all tables, with what Kafka's schemas say of them.

    Raises:
        TableError: a struct is in no table, a class or field in no schema, or a class above one that it needs.
    """

    def __init__(self, table: list[TableApi], schema_of: Callable[[int, int, Side], Schema]) -> None:
        self._named = {cls.name: cls for api in table for cls in api.classes}
        self._versions: dict[str, list[Schema]] = {name: [] for name in self._named}
        """The versions of each class, oldest first."""
        self._structs: dict[tuple[str, str], str] = {}
        """The class of a field that is a struct, by class and field."""
        for api in table:
            for version in api.versions:
                for side in SIDES:
                    self._add(schema_of(api.key, version, side), api.message(side), api.message(side))
            self._hold_order(api.message("response"), api.message("request"))
        for name, versions in self._versions.items():
            if not versions:
                raise TableError(f"{name} is no struct of Kafka's: say in parentheses behind it which one is meant")

    def _add(self, schema: Schema, name: str, message: str) -> None:
        if name not in self._named:
            raise TableError(f"{name} is in no table")
        self._versions[name].append(schema)
        for field in schema.fields:
            if field.struct is not None:
                inner = self._structs[name, field.name] = self._name_of(field.struct, field.name, message)
                self._hold_order(inner, name)
                self._add(field.struct, inner, message)

    def _hold_order(self, needed: str, name: str) -> None:
        order = list(self._named)
        if order.index(needed) > order.index(name):
            raise TableError(f"{needed} is below {name}, which needs it")

    def _name_of(self, struct: Schema, field: str, message: str) -> str:
        said = (name for name, cls in self._named.items() if cls.kafka_name == struct.name and name.startswith(message))
        for name in (*said, *_names(struct.name, field, message)):
            if name in self._named:
                return name
        raise TableError(f"{struct.name}, the struct in field {field} of {message}, is in no table")

    def source(self, cls: TableClass, api: TableApi) -> str:
        """A class, before it is formatted."""
        bases = {
            api.message("request"): f"RequestBody[{api.message('response')}]",
            api.message("response"): "ResponseBody",
        }
        base = bases.get(cls.name, "Struct")
        doc = textwrap.indent(textwrap.fill(f'"""{cls.doc}"""', _DOC_WIDTH, break_on_hyphens=False), "    ")
        key = f"    API_KEY: ClassVar[ApiKey] = ApiKey.{api.key.name}\n" if cls.name in bases else ""
        fields = "".join(f"    {line}\n" for line in self._fields(cls))
        return f"class {cls.name}({base}, frozen=True, kw_only=True):\n{doc}\n\n{key}{fields}\n\n"

    def _fields(self, cls: TableClass) -> Iterator[str]:
        schemas = self._versions[cls.name]
        for name in _in_order(list(cls.fields), [[field.name for field in schema.fields] for schema in schemas]):
            versions = [field for schema in schemas for field in schema.fields if field.name == name]
            if not versions:
                raise TableError(f"{cls.name} has no field {name} in Kafka's schemas")
            struct = self._structs.get((cls.name, name), "")
            _, ignorable, default = cls.fields.get(name, TableField(name))
            if default is None:
                default = _default(versions, struct, in_all=len(versions) == len(schemas))
            if ignorable and not default:
                raise TableError(f"{cls.name} needs a default of {name}, which is ignorable")
            type_ = _type(versions, struct)
            type_ = f"Ignorable[{type_}]" if ignorable else type_
            yield f"{name}: {type_}" + (f" = {default}" if default else "")


def _names(kafka_name: str, field: str, message: str) -> tuple[str, ...]:
    """The names that a struct's class may have, by its name in Kafka and the field that it is in."""
    singular = re.sub("ies$", "y", field).removesuffix("s")
    api = message.removesuffix("Request").removesuffix("Response")
    return message + kafka_name, kafka_name, message + _camel_case(singular), api + kafka_name


def _camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _in_order(order: list[str], versions: list[list[str]]) -> list[str]:
    """The names of all versions: one that newer versions do not have is behind the one that it follows."""
    for names in reversed(versions):
        for before, name in zip([None, *names], names, strict=False):
            if name not in order:
                order.insert(0 if before is None else order.index(before) + 1, name)
    return order


def _type(versions: list[Field], struct: str) -> str:
    found = struct or _TYPES.get(versions[-1].kind, "int")
    if versions[-1].array:
        found = f"tuple[{found}, ...]"
    return f"{found} | None" if any(field.nullable for field in versions) else found


def _default(versions: list[Field], struct: str, *, in_all: bool) -> str:
    """Kafka's default, the newest. Where it has none: null, no elements, a struct of defaults, no error, no delay,
    false, and zero for a field that some version lacks. A caller must give any other."""
    given = [field.default for field in versions if field.default is not REQUIRED]
    if given:
        return _expression(given[-1])
    if any(field.nullable for field in versions):
        return "None"
    last = versions[-1]
    if last.array:
        return "()"
    if struct:
        return f"{struct}()"
    if not in_all or last.kind == "bool" or last.name in ("error_code", "throttle_time_ms"):
        return _ZEROS.get(last.kind, "0")
    return ""


def _expression(value: Any) -> str:
    if value in _CONSTANTS:
        return _CONSTANTS[value]
    if isinstance(value, str):
        return json.dumps(value)
    return f"{value:_}" if type(value) is int else repr(value)


def sources(schema_of: Callable[[int, int, Side], Schema]) -> dict[Path, str]:
    """The text of each module.

    Raises:
        TableError: a table has a mistake, or does not fit Kafka's schemas.
    """
    classes = Classes(apis(), schema_of)
    return {ROOT / f"kjbod/wire/{module}.py": _source(module, classes) for module in _MODULES}


def _source(module: str, classes: Classes) -> str:
    text = []
    for api in _of_module(module):
        text.append(f"\n# {'-' * 64} {api.name} ({api.key})\n\n\n")
        text += [classes.source(cls, api) for cls in api.classes]
    rows = [
        f"({api.message('request')}, {api.message('response')}, {api.versions[0]}, {api.versions[-1]})"
        for api in sorted(_of_module(module))
    ]
    return _formatted(_MODULES[module].format(classes="".join(text), rows=", ".join(rows)))


def _formatted(source: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "made.py", "-"]
    return subprocess.run(command, input=source, cwd=ROOT, capture_output=True, text=True, check=True).stdout
