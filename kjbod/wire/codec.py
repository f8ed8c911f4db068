"""Kafka's message encoding: readers and writers compiled from a schema and a class.

A :class:`Schema` describes one version of one message on the wire. ``kjbod.wire.schemas`` has those of RPCs, from kio;
``kjbod.metadata.records`` has those of metadata records. All versions of a message share one class. A field that a
version lacks keeps its default when read, and must have its default (or be marked :data:`Ignorable`) when written.
Fields of a version that the class lacks are skipped when read, and written with the schema's default. Unknown tagged
fields are skipped, as KIP-482 requires.

Lengths from a peer are not trusted: every count and length is limited to the remaining bytes before memory is
allocated. So memory stays proportional to the frame.

Encodings are those of Kafka's ``protocol guide``: big-endian integers; in flexible versions unsigned varint lengths
plus one, zero for null, and a section of tagged fields at the end of each struct; before that int16 string lengths and
int32 array and bytes lengths with -1 for null.
"""

import struct
import typing
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, TypeVar

from msgspec import NODEFAULT, Struct

from kjbod.errors import LocalProtocolError, RemoteProtocolError, UnsupportedVersionError
from kjbod.ids import ZERO, Uuid

Message = TypeVar("Message")
Buffer = bytes | memoryview
Reader = Callable[[Buffer, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

_FIXED: Mapping[str, str] = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_ZEROS: dict[str, Any] = dict.fromkeys(_FIXED, 0) | {
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO,
    "string": "",
    "bytes": b"",
}
REQUIRED = object()
"""Default of a schema field without a default in Kafka's own schema."""
_UVARINT_BYTES_MAX = 5


class MalformedMessageError(RemoteProtocolError, ValueError):
    """The bytes are not a message of the expected type."""


class Field(Struct, frozen=True):
    """A field of one version of a message."""

    name: str
    """Python name."""
    kind: str
    """``int32``, ``string``, ...; ``struct`` for a nested schema."""
    array: bool = False
    nullable: bool = False
    tag: int | None = None
    """Number in the tag section, None for a field in the body."""
    default: Any = REQUIRED
    struct: "Schema | None" = None
    legacy_length: bool = False
    """Whether a string has an int16 length even in a flexible version (client id of the request header)."""


class Schema(Struct, frozen=True):
    """A version of a message or of a struct inside it; fields in wire order."""

    name: str
    version: int
    flexible: bool
    fields: tuple[Field, ...]

    @property
    def body(self) -> tuple[Field, ...]:
        """The fields outside the tag section."""
        return tuple(f for f in self.fields if f.tag is None)

    @property
    def tagged(self) -> tuple[Field, ...]:
        """The fields of the tag section, by tag."""
        return tuple(sorted((f for f in self.fields if f.tag is not None), key=lambda f: f.tag or 0))


Value = TypeVar("Value")
Ignorable = Annotated[Value, "ignorable"]
"""Marks a field that may be dropped silently if the written version lacks it."""


class Codec(Struct, typing.Generic[Message], frozen=True):
    """Reads and writes one version of a message as ``cls``."""

    cls: type[Message]
    schema: Schema
    _read: Reader
    _write: Writer

    def decode(self, buf: Buffer, at: int = 0) -> tuple[Message, int]:
        """Return the message at ``at``, and its end.

        Raises:
            MalformedMessageError: a length does not fit, a value is invalid, or text is not UTF-8.
        """
        try:
            return self._read(buf, at)
        except (struct.error, IndexError):
            raise MalformedMessageError(f"{self.schema.name} v{self.schema.version} runs past the frame") from None
        except UnicodeDecodeError:
            raise MalformedMessageError(
                f"{self.schema.name} v{self.schema.version} has text that is not UTF-8"
            ) from None

    def decode_exact(self, buf: Buffer, at: int = 0) -> Message:
        """Return the message that fills ``buf`` from ``at`` to its end.

        Raises:
            MalformedMessageError: as :meth:`decode`, or bytes are left over.
        """
        message, end = self.decode(buf, at)
        if end != len(buf):
            raise MalformedMessageError(f"{self.schema.name} v{self.schema.version} leaves {len(buf) - end} bytes over")
        return message

    def encode_into(self, out: bytearray, message: Message) -> None:
        """Append ``message`` to ``out``.

        Raises:
            UnsupportedVersionError: a field that this version lacks is set and may not be dropped, or a field is null
                that cannot be in this version.
            LocalProtocolError: a number does not fit its field.
        """
        try:
            self._write(out, message)
        except struct.error as error:
            raise LocalProtocolError(f"{self.schema.name} v{self.schema.version}: {error}") from None

    def encode(self, message: Message) -> bytes:
        """Return ``message`` as bytes; errors as for :meth:`encode_into`."""
        out = bytearray()
        self.encode_into(out, message)
        return bytes(out)


def compile_codec(schema: Schema, cls: type[Message]) -> Codec[Message]:
    """Return the codec of ``schema`` for ``cls``. Slow (a millisecond): compile once and keep it."""
    return Codec(cls, schema, _struct_reader(schema, cls), _struct_writer(schema, cls))


# ---------------------------------------------------------------- varints and lengths


def read_uvarint(buf: Buffer, at: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits, and its end."""
    value = buf[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for i in range(1, _UVARINT_BYTES_MAX):
        byte = buf[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise MalformedMessageError("varint longer than five bytes")


def put_uvarint(out: bytearray, value: int) -> None:
    """Append ``value`` as an unsigned varint."""
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def _read_length(flexible: bool, width: struct.Struct) -> Callable[[Buffer, int], tuple[int, int]]:
    """Return a reader of a length, -1 for null, and of the start of the content."""
    if flexible:

        def compact(buf: Buffer, at: int) -> tuple[int, int]:
            value, at = read_uvarint(buf, at)
            return value - 1, at

        return compact

    def fixed(buf: Buffer, at: int) -> tuple[int, int]:
        (value,) = width.unpack_from(buf, at)
        if value < -1:
            raise MalformedMessageError(f"length {value}")
        return value, at + width.size

    return fixed


def _put_length(flexible: bool, width: struct.Struct) -> Callable[[bytearray, int], None]:
    if flexible:
        return lambda out, length: put_uvarint(out, length + 1)

    def fixed(out: bytearray, length: int) -> None:
        out += width.pack(length)

    return fixed


def _length_width(field: Field) -> struct.Struct:
    return _INT16 if field.kind == "string" else _INT32


# ---------------------------------------------------------------- values


def _value_reader(field: Field, flexible: bool, cls: type[Any] | None) -> Reader:
    """Return a reader of one value of ``field``, or of an array element if the field is an array."""
    if field.kind == "struct":
        assert field.struct is not None
        return _struct_reader(field.struct, cls)
    if field.kind in _FIXED:
        fixed = struct.Struct(">" + _FIXED[field.kind])
        unpack, size, is_uuid = fixed.unpack_from, fixed.size, field.kind == "uuid"

        def read_fixed(buf: Buffer, at: int) -> tuple[Any, int]:
            (value,) = unpack(buf, at)
            return (Uuid(value) if is_uuid else value), at + size

        return read_fixed
    return _sized_reader(field, flexible)


def _sized_reader(field: Field, flexible: bool) -> Reader:
    length_of = _read_length(flexible and not field.legacy_length, _length_width(field))
    text, name = field.kind == "string", field.name
    nullable = field.nullable and not field.array

    def read_sized(buf: Buffer, at: int) -> tuple[Any, int]:
        length, at = length_of(buf, at)
        if length < 0:
            if not nullable:
                raise MalformedMessageError(f"{name} is null")
            return None, at
        end = at + length
        if end > len(buf):
            raise MalformedMessageError(f"{name} of {length} bytes with {len(buf) - at} left")
        raw = bytes(buf[at:end])
        return (raw.decode() if text else raw), end

    return read_sized


def _field_reader(field: Field, flexible: bool, cls: type[Any] | None) -> Reader:
    one = _value_reader(field, flexible, cls)
    if field.array:
        return _array_reader(field, flexible, one, cls)
    if field.kind == "struct" and field.nullable and field.tag is None:

        def read_nullable_struct(buf: Buffer, at: int) -> tuple[Any, int]:
            return (None, at + 1) if buf[at] >= 128 else one(buf, at + 1)

        return read_nullable_struct
    return one


def _array_reader(field: Field, flexible: bool, one: Reader, cls: type[Any] | None) -> Reader:
    length_of = _read_length(flexible, _INT32)
    least, nullable, name = max(1, _least_element(field, flexible)), field.nullable, field.name
    form = None if field.kind == "uuid" else _FIXED.get(field.kind)
    flat = None if field.struct is None or cls is None else _flat_reader(field.struct, cls)

    def read_array(buf: Buffer, at: int) -> tuple[Any, int]:
        count, at = length_of(buf, at)
        if count < 0:
            if not nullable:
                raise MalformedMessageError(f"{name} is null")
            return None, at
        if count * least > len(buf) - at:
            raise MalformedMessageError(f"{name} of {count} elements with {len(buf) - at} bytes left")
        if form is not None:
            return struct.unpack_from(f">{count}{form}", buf, at), at + count * least
        if flat is not None and (elements := flat(buf, at, count)) is not None:
            return elements, at + count * least
        values = []
        for _ in range(count):
            value, at = one(buf, at)
            values.append(value)
        return tuple(values), at

    return read_array


def _least_element(field: Field, flexible: bool) -> int:
    """Return the minimum size in bytes of one element of ``field``."""
    if field.kind == "struct":
        assert field.struct is not None
        return _least(field.struct)
    if field.kind in _FIXED:
        return struct.calcsize(">" + _FIXED[field.kind])
    return 1 if flexible else _length_width(field).size


def _least(schema: Schema) -> int:
    total = 1 if schema.flexible else 0
    for field in schema.body:
        if field.array:
            total += 1 if schema.flexible else 4
        elif field.kind == "struct" and field.nullable:
            total += 1
        else:
            total += _least_element(field, schema.flexible)
    return total


# ---------------------------------------------------------------- structs


def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _element_class(hint: Any) -> type[Any] | None:
    """Return the class inside ``X``, ``X | None``, ``tuple[X, ...]`` or ``tuple[X, ...] | None``."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint
    for inner in typing.get_args(hint):
        if (found := _element_class(inner)) is not None:
            return found
    return None


def _nested(field: Field, cls: type[Any] | None) -> type[Any] | None:
    if field.kind != "struct" or cls is None:
        return None
    hint = _hints(cls).get(field.name)
    return None if hint is None else _element_class(hint)


class _Run(Struct, frozen=True):
    """Consecutive fixed-width fields, read with one unpack."""

    form: struct.Struct
    names: tuple[str, ...]
    uuids: tuple[int, ...]


def _runs(schema: Schema) -> list[_Run | Field]:
    """Return the body with consecutive fixed-width scalars joined."""
    out: list[_Run | Field] = []
    pending: list[Field] = []

    def flush() -> None:
        if pending:
            form = struct.Struct(">" + "".join(_FIXED[f.kind] for f in pending))
            uuids = tuple(i for i, f in enumerate(pending) if f.kind == "uuid")
            out.append(_Run(form, tuple(f.name for f in pending), uuids))
            pending.clear()

    for field in schema.body:
        if field.kind in _FIXED and not field.array:
            pending.append(field)
        else:
            flush()
            out.append(field)
    flush()
    return out


def _flat(schema: Schema) -> tuple[_Run, struct.Struct] | None:
    """Return the fields of a struct of numbers, and the format without tagged fields; None for other structs."""
    match _runs(schema):
        case [_Run(uuids=()) as run]:
            return run, struct.Struct(run.form.format + ("B" if schema.flexible else ""))
    return None


def _flat_reader(schema: Schema, cls: type[Any]) -> Callable[[Buffer, int, int], tuple[Any, ...] | None] | None:
    """Return a reader of many structs of numbers at once. It returns None if one has tagged fields, or they are cut
    off."""
    found = _flat(schema)
    if found is None:
        return None
    run, form = found
    if not set(run.names) <= set(cls.__struct_fields__):
        return None
    tagged = schema.flexible
    only = run.names[0] if len(run.names) == 1 else None

    def read_flat(buf: Buffer, at: int, count: int) -> tuple[Any, ...] | None:
        raw = memoryview(buf)[at : at + count * form.size]
        if len(raw) < count * form.size:
            return None
        # The first element that is not 0 is at its place: all before it have the fixed size.
        if tagged and raw[form.size - 1 :: form.size].tobytes().strip(b"\0"):
            return None
        # Row by row: building one list of all would not give other threads a turn.
        if only is not None:
            return tuple([cls(**{only: row[0]}) for row in form.iter_unpack(raw)])
        return tuple([cls(**dict(zip(run.names, row, strict=False))) for row in form.iter_unpack(raw)])

    return read_flat


def _struct_reader(schema: Schema, cls: type[Any] | None) -> Reader:
    """Return a reader of a struct as ``cls``; with None, a reader that skips it."""
    wanted = set() if cls is None else set(cls.__struct_fields__)
    steps: list[Callable[[Buffer, int, dict[str, Any]], int]] = []
    for part in _runs(schema):
        if isinstance(part, _Run):
            steps.append(_run_step(part, wanted))
        else:
            steps.append(_field_step(part, schema.flexible, cls, part.name in wanted))
    tags = _tag_reader(schema, cls, wanted) if schema.flexible else None

    def read_struct(buf: Buffer, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for step in steps:
            at = step(buf, at, values)
        if tags is not None:
            at = at + 1 if buf[at] == 0 else tags(buf, at, values)
        return (None if cls is None else cls(**values)), at

    return read_struct


def _run_step(run: _Run, wanted: set[str]) -> Callable[[Buffer, int, dict[str, Any]], int]:
    unpack, size, uuids = run.form.unpack_from, run.form.size, run.uuids
    kept = [(i, name) for i, name in enumerate(run.names) if name in wanted]

    def step(buf: Buffer, at: int, values: dict[str, Any]) -> int:
        got = unpack(buf, at)
        for i, name in kept:
            values[name] = Uuid(got[i]) if i in uuids else got[i]
        return at + size

    return step


def _field_step(
    field: Field, flexible: bool, cls: type[Any] | None, wanted: bool
) -> Callable[[Buffer, int, dict[str, Any]], int]:
    read, name = _field_reader(field, flexible, _nested(field, cls)), field.name

    def step(buf: Buffer, at: int, values: dict[str, Any]) -> int:
        value, at = read(buf, at)
        if wanted:
            values[name] = value
        return at

    return step


def _tag_reader(
    schema: Schema, cls: type[Any] | None, wanted: set[str]
) -> Callable[[Buffer, int, dict[str, Any]], int]:
    readers = {f.tag: (_field_reader(f, True, _nested(f, cls)), f.name) for f in schema.tagged}

    def read_tags(buf: Buffer, at: int, values: dict[str, Any]) -> int:
        count, at = read_uvarint(buf, at)
        if count * 2 > len(buf) - at:
            raise MalformedMessageError(f"{count} tagged fields with {len(buf) - at} bytes left")
        last = -1
        for _ in range(count):
            tag, at = read_uvarint(buf, at)
            size, at = read_uvarint(buf, at)
            end = at + size
            if tag <= last or end > len(buf):
                raise MalformedMessageError("tagged fields out of order, or past the frame")
            last = tag
            if (known := readers.get(tag)) is not None:
                read, name = known
                # not a slice of the frame: copying it for each tagged field would take quadratic time
                value, used = read(buf, at)
                if used != end:
                    raise MalformedMessageError(f"tagged field {name} is not of its declared size")
                if name in wanted:
                    values[name] = value
            at = end
        return at

    return read_tags


# ---------------------------------------------------------------- writing


def _struct_writer(schema: Schema, cls: type[Any] | None) -> Writer:
    """Return a writer of ``cls`` as a struct; with None, of the schema's defaults."""
    ours = () if cls is None else cls.__struct_fields__
    steps: list[Writer] = []
    for part in _runs(schema):
        if isinstance(part, _Run):
            steps.append(_run_writer(schema, part, set(ours)))
        else:
            steps.append(_field_writer(part, schema.flexible, cls, part.name in ours))
    steps += _absent_checks(schema, cls)
    tags = [_tagged_writer(f, cls, f.name in ours) for f in schema.tagged] if schema.flexible else []

    def write_struct(out: bytearray, value: Any) -> None:
        for step in steps:
            step(out, value)
        if not schema.flexible:
            return
        present = [chunk for chunk in (tag(value) for tag in tags) if chunk] if tags else []
        put_uvarint(out, len(present))
        for chunk in present:
            out += chunk

    return write_struct


def _flat_writer(schema: Schema, cls: type[Any]) -> Callable[[bytearray, Sequence[Any]], None] | None:
    """Return a writer of many structs of numbers, without fields that this version may have to refuse."""
    found = _flat(schema)
    ours = cls.__struct_fields__
    if found is None or schema.tagged or not set(found[0].names) <= set(ours) or _absent_checks(schema, cls):
        return None
    run, form = found
    none_tagged = (0,) if schema.flexible else ()
    pack, values_of = form.pack, attrgetter(*run.names)
    if len(run.names) == 1:
        return lambda out, values: out.extend(b"".join([pack(values_of(each), *none_tagged) for each in values]))
    return lambda out, values: out.extend(b"".join([pack(*values_of(each), *none_tagged) for each in values]))


def _default_of(field: Field) -> Any:
    if field.default is not REQUIRED:
        return field.default
    if field.array:
        return ()
    return _ZEROS.get(field.kind)


def _run_writer(schema: Schema, run: _Run, ours: set[str]) -> Writer:
    pack, names = run.form.pack, run.names
    defaults = {f.name: _default_of(f) for f in schema.body}
    if all(name in ours for name in names):
        if len(names) == 1:
            (only,) = names
            return lambda out, value: out.extend(pack(getattr(value, only)))
        return lambda out, value: out.extend(pack(*[getattr(value, name) for name in names]))
    return lambda out, value: out.extend(
        pack(*[getattr(value, name) if name in ours else defaults[name] for name in names])
    )


def _value_writer(field: Field, flexible: bool, cls: type[Any] | None) -> Writer:
    """Return a writer of one value of ``field``, or of an element if the field is an array."""
    if field.kind == "struct":
        assert field.struct is not None
        return _struct_writer(field.struct, cls)
    if field.kind in _FIXED:
        pack = struct.Struct(">" + _FIXED[field.kind]).pack
        return lambda out, value: out.extend(pack(value))
    put_length = _put_length(flexible and not field.legacy_length, _length_width(field))
    text, refuse_null = field.kind == "string", _null_refusal(field, field.nullable and not field.array)

    def write_sized(out: bytearray, value: Any) -> None:
        if value is None:
            refuse_null()
            put_length(out, -1)
            return
        raw = value.encode() if text else value
        put_length(out, len(raw))
        out += raw

    return write_sized


def _null_refusal(field: Field, nullable: bool) -> Callable[[], None]:
    """Return a check that raises if a value is null and must not be: the peer could not decode it."""

    def refuse() -> None:
        if not nullable:
            raise UnsupportedVersionError(f"{field.name} cannot be null in this version")

    return refuse


def _any_writer(field: Field, flexible: bool, cls: type[Any] | None) -> Writer:
    one = _value_writer(field, flexible, cls)
    if field.array:
        put_length = _put_length(flexible, _INT32)
        refuse_null = _null_refusal(field, field.nullable)
        flat = None if field.struct is None or cls is None else _flat_writer(field.struct, cls)

        def write_array(out: bytearray, value: Any) -> None:
            if value is None:
                refuse_null()
                put_length(out, -1)
                return
            put_length(out, len(value))
            if flat is not None:
                flat(out, value)
                return
            for element in value:
                one(out, element)

        return write_array
    if field.kind == "struct" and field.nullable and field.tag is None:

        def write_nullable_struct(out: bytearray, value: Any) -> None:
            if value is None:
                out.append(0xFF)
            else:
                out.append(1)
                one(out, value)

        return write_nullable_struct
    return one


def _field_writer(field: Field, flexible: bool, cls: type[Any] | None, ours: bool) -> Writer:
    write, name, default = _any_writer(field, flexible, _nested(field, cls)), field.name, _default_of(field)
    if ours:
        return lambda out, value: write(out, getattr(value, name))
    if field.kind == "struct" and not field.array and default is None and not field.nullable:
        assert field.struct is not None
        plain = _struct_writer(field.struct, None)
        return lambda out, value: plain(out, None)
    return lambda out, value: write(out, default)


def _tagged_writer(field: Field, cls: type[Any] | None, ours: bool) -> Callable[[Any], bytes | bytearray]:
    """Return a function that gives tag, size and value of one tagged field; nothing for its default."""
    nested = _nested(field, cls)
    write, name, tag = _any_writer(field, True, nested), field.name, field.tag or 0
    default = _default_of(field)
    if field.kind == "struct" and not field.array:
        default = _struct_default(name, cls, nested)

    def tagged(value: Any) -> bytes | bytearray:
        if not ours or ((given := getattr(value, name)) is None and not field.nullable) or given == default:
            return b""
        body = bytearray()
        write(body, given)
        out = bytearray()
        put_uvarint(out, tag)
        put_uvarint(out, len(body))
        out += body
        return out

    return tagged


def _struct_default(name: str, cls: type[Any] | None, nested: type[Any] | None) -> Any:
    """Return the value of an absent tagged struct, which need not be written: its owner's default, or a struct of
    defaults."""
    if name in (defaults := defaults_of(cls)):
        return defaults[name]
    try:
        return None if nested is None else nested()
    except TypeError:  # not every field has a default, so no value equals it
        return None


def defaults_of(cls: type[Any] | None) -> dict[str, Any]:
    """Return the defaults by field name, of fields that have one."""
    if cls is None:
        return {}
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    found = zip(names[len(names) - len(defaults) :], defaults, strict=True)
    return {name: default for name, default in found if default is not NODEFAULT}


def _absent_checks(schema: Schema, cls: type[Any] | None) -> list[Writer]:
    """Return checks that refuse to drop a value that this version cannot carry (Kafka:
    ``UnsupportedVersionException``)."""
    known = {f.name for f in schema.fields}
    checks: list[Writer] = []
    if cls is None or known.issuperset(cls.__struct_fields__):
        return checks
    hints = typing.get_type_hints(cls, include_extras=True)
    defaults = defaults_of(cls)
    for name in cls.__struct_fields__:
        if name in known or "ignorable" in getattr(hints[name], "__metadata__", ()):
            continue

        default = defaults.get(name, REQUIRED)

        def check(out: bytearray, value: Any, name: str = name, default: Any = default) -> None:
            if getattr(value, name) != default:
                raise UnsupportedVersionError(f"{schema.name} v{schema.version} has no field {name}")

        checks.append(check)
    return checks
