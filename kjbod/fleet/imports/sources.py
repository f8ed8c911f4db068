"""The files that are to be imported: which there are, what columns they have, and their lines as rows of text.

Files of one kind may have different columns. Spark, given several CSV files, takes those of the first for all of them
and shifts the others without a word; so files are read by groups with the same first line.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.imports.formats import header, unnamed
from kjbod.fleet.imports.zips import ZIP_BYTES_MAX, zip_lines
from kjbod.output import plural, safe

HEADERS_AT_ONCE = 8
_ZIPPED = "ARRAY<STRUCT<name: STRING, wrong: STRING, lines: ARRAY<STRING>>>"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was given."""

    uri: str
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Files with the same first line."""

    names: tuple[str, ...]
    """Columns."""
    text: DataFrame
    """``value``, and ``file`` that it is from; the first lines are among them."""


def files_of(spark: SparkSession, given: Sequence[str]) -> list[SourceFile]:
    """Files at the URIs that were given: files, directories, patterns.

    Raises:
        FleetError: there are none, or one of them is empty.
    """
    found: dict[str, SourceFile] = {}
    for uri in given:
        try:
            rows = _strict(spark).format("binaryFile").load(uri).select("path", "length").collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                raise FleetError(f"{safe(uri)}: no such file") from None
            raise
        if not rows:
            raise FleetError(f"{safe(uri)} is empty: fetch it again")  # Spark lists no files without content
        found |= {row.path: SourceFile(row.path, row.length) for row in rows}
    return sorted(found.values(), key=lambda file: file.uri)


def lines_of(spark: SparkSession, source: str, files: Sequence[SourceFile]) -> list[Lines]:
    """Lines of the files, by groups with the same columns.

    Raises:
        FleetError: one of them is not of ``source``, or cannot be read.
    """
    zips = [file for file in files if file.uri.lower().endswith(".zip")]
    plain = [file for file in files if file not in zips]
    return [*_plain_lines(spark, source, plain), *(each for file in zips for each in _zip_lines(spark, source, file))]


def _plain_lines(spark: SparkSession, source: str, files: Sequence[SourceFile]) -> list[Lines]:
    with ThreadPoolExecutor(HEADERS_AT_ONCE) as pool:
        firsts = list(pool.map(lambda file: _first_line(spark, file), files))
    groups: dict[str, list[SourceFile]] = {}
    for file, first in zip(files, firsts, strict=True):
        groups.setdefault(first, []).append(file)
    made = []
    for first, group in groups.items():
        names = unnamed(header(source, first, safe(group[0].uri)))
        text = _strict(spark).text([file.uri for file in group])
        made.append(Lines(names, text.where(F.col("value") != first).withColumn("file", F.col("_metadata.file_name"))))
    return made


def _first_line(spark: SparkSession, file: SourceFile) -> str:
    rows = _strict(spark).text(file.uri).limit(1).collect()
    if not rows or not rows[0].value.strip():
        raise FleetError(f"{safe(file.uri)} begins with an empty line, not with names of columns: fetch it again")
    first: str = rows[0].value
    return first


def _zip_lines(spark: SparkSession, source: str, file: SourceFile) -> list[Lines]:
    if file.size > ZIP_BYTES_MAX:
        raise FleetError(f"{safe(file.uri)} is more than {ZIP_BYTES_MAX >> 20} MiB: unpack it and give what was in it")
    # Without hints, which Spark would try to read, and without Arrow, which a driver may not have, as it would warn.
    unpack = F.udf(lambda content: zip_lines(content), _ZIPPED, useArrow=False)
    content = _strict(spark).format("binaryFile").load(file.uri).select("content")
    members = content.select(F.explode(unpack("content")).alias("m")).select("m.*").persist()
    try:
        heads = members.select("name", "wrong", F.get("lines", F.lit(0)).alias("first")).orderBy("name").collect()
        return [_member(members, source, file, row) for row in heads]
    finally:
        members.unpersist()


def _member(members: DataFrame, source: str, file: SourceFile, head: Any) -> Lines:
    where = safe(f"{file.uri}{'!' if head.name else ''}{head.name}")
    if head.wrong is not None:
        raise FleetError(f"{where} {safe(head.wrong)}")
    if head.first is None:
        raise FleetError(f"{where} is empty: fetch the archive again")
    names = unnamed(header(source, head.first, where))
    # Each line but the first is a row: the first of another file with other columns is not among these.
    lines = members.where(F.col("name") == head.name).select(
        F.explode("lines").alias("value"), F.col("name").alias("file")
    )
    return Lines(names, lines.where(F.col("value") != head.first))


def rows_of(lines: Lines, wanted: Iterable[str]) -> DataFrame:
    """The wanted columns as text, those that the files lack as null, and ``file``."""
    ddl = ", ".join(f"`{name.replace('`', '``')}` STRING" for name in lines.names)
    options: Mapping[str, str] = {"escape": '"', "mode": "PERMISSIVE", "maxCharsPerColumn": "-1"}
    parsed = lines.text.select("file", F.from_csv("value", F.lit(ddl), options).alias("row"))
    columns = [
        (F.col(f"row.`{name.replace('`', '``')}`") if name in lines.names else F.lit(None).cast("string")).alias(name)
        for name in wanted
    ]
    return parsed.select("file", *columns)


def _strict(spark: SparkSession) -> Any:
    """A reader that does not pass over what cannot be read: half of a torn file would be half of a day."""
    return spark.read.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")


def described(files: Sequence[SourceFile]) -> str:
    """For the progress: how many, and how much."""
    return f"{plural(len(files), 'file')}, {sum(file.size for file in files):,} bytes"
