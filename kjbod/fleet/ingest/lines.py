"""From the text of an inbox to parsed lines: one flat row for each line, of samples and of events alike, parsed once.

Columns of a line that begin with ``_`` are about it; the others are those of its stream, null where it is of the other.

========== ===========================================================================================================
column     meaning
========== ===========================================================================================================
_uri       the file, as Spark has it, ``file:/x`` for ``file:///x``
_bytes     its size
_stream    samples or events: the folder of the inbox that it is in
_trailer   whether it is the file's last line, and its ``_t_rows``, ``_t_crc``, ``_t_partial``
_problem   why it is no good one; null where it is
_text      the line, where it is no good one
_line      its CRC-32
_length    its bytes
_more      columns that this version does not know, as a JSON object; null where there are none
========== ===========================================================================================================
"""

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet import read
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS, Event, Sample, columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_BYTES_MAX = 16 << 20
"""Longer lines are not there: Hadoop's reader drops them piece by piece, so that no line fills the memory. Such a file
has fewer lines than its trailer says. Lines up to here count, and those that are longer than
:data:`kjbod.fleet.read.LINE_BYTES_MAX` are set aside one by one."""
MAX_FILE_AGE = "36500d"
"""How much older than the newest file one may be: any age. Spark passes over older ones without a word."""
_SEVERAL_SLASHES = "^file:/+"


def folders_of(inbox: str) -> str:
    """The pattern of an inbox's folders: those that are not there yet, and whatever else is there, are passed over."""
    return f"{inbox}/{{{','.join(STREAMS)}}}"


def reading_options(line_bytes_max: int = READ_BYTES_MAX) -> dict[str, str]:
    """Options of Spark's text source for report files."""
    return {
        "recursiveFileLookup": "true",
        "pathGlobFilter": read.FILE_PATTERN,
        "lineSep": "\n",
        "mapreduce.input.linerecordreader.line.maxlength": str(line_bytes_max),
    }


def arriving(spark: "SparkSession", inbox: str, files_max: int) -> "DataFrame":
    """The columns of :func:`line_columns`: lines of finished files, as a stream, so many files at a time.

    A file is known again by its whole path, not by its name: a file of samples and one of events have the same name."""
    options = {"maxFilesPerTrigger": str(files_max), "maxFileAge": MAX_FILE_AGE}
    stream = spark.readStream.format("text").schema("value STRING").options(**reading_options(), **options)
    return stream.load(folders_of(inbox)).select(*line_columns())


def line_columns() -> list[Column]:
    """``value, _line, _length, _uri, _bytes`` of a line that Spark has read: ``value`` is the beginning of a line that
    is too long, the others are of all of it."""
    binary = F.col("value").cast("binary")
    cut = F.substring(binary, 1, read.LINE_BYTES_MAX).cast("string")
    value = F.when(F.octet_length("value") > read.LINE_BYTES_MAX, cut).otherwise(F.col("value"))
    return [value.alias("value"), *sums(), *file_columns()]


def file_columns() -> list[Column]:
    """``_uri, _bytes`` of a line that Spark has read."""
    return [plain(F.col("_metadata.file_path")).alias("_uri"), F.col("_metadata.file_size").alias("_bytes")]


def plain(uri: Column) -> Column:
    """A URI in the one form in which it is compared."""
    return F.regexp_replace(uri, _SEVERAL_SLASHES, "file:/")


def stream_of(uri: Column, prefix: str) -> Column:
    """The stream of a file below ``prefix``, the inbox's URI in that form."""
    return F.when(uri.startswith(f"{prefix}/{SAMPLES}/"), SAMPLES).otherwise(EVENTS)


def parsed(text: "DataFrame", prefix: str) -> "DataFrame":
    """``value, _uri, _bytes``, and ``_line, _length`` where ``value`` may not be the whole line → the columns above."""
    if "_length" not in text.columns:
        text = text.select("*", *sums())
    is_sample = F.col("_stream") == SAMPLES
    kinds = {SAMPLES: Sample, EVENTS: Event}
    rows = text.withColumn("_stream", stream_of(F.col("_uri"), prefix))
    rows = rows.withColumns(
        {
            stream: F.when(
                is_sample if stream == SAMPLES else ~is_sample,
                F.from_json("value", read.row_schema(kind), read.PARSE_OPTIONS),
            )
            for stream, kind in kinds.items()
        }
    )
    rows = rows.withColumn("trailer", F.when(is_sample, read.is_trailer(SAMPLES)).otherwise(read.is_trailer(EVENTS)))
    problems = {stream: read.problem_of(kind, stream) for stream, kind in kinds.items()}
    rows = rows.withColumn("_problem", F.when(is_sample, problems[SAMPLES]).otherwise(problems[EVENTS]))
    known = {stream: frozenset(columns(kind)) for stream, kind in kinds.items()}
    names = dict.fromkeys([*columns(Sample), *columns(Event)])
    is_good = F.col("_problem").isNull() & ~F.col("trailer")
    return rows.select(
        "_uri",
        "_bytes",
        "_stream",
        F.col("trailer").alias("_trailer"),
        *(_of_trailer(name).alias(alias) for alias, name in _TRAILER.items()),
        "_problem",
        F.when(F.col("_problem").isNotNull(), F.make_valid_utf8("value")).alias("_text"),
        "_line",
        "_length",
        F.when(is_good, more(known, F.col("_stream"))).alias("_more"),
        *(F.coalesce(*(F.col(f"{s}.{name}") for s in STREAMS if name in known[s])).alias(name) for name in names),
    )


_TRAILER = {"_t_rows": "rows", "_t_crc": "crc32", "_t_partial": "partial"}


def _of_trailer(name: str) -> Column:
    return F.when(F.col("trailer"), F.coalesce(*(F.col(f"{stream}.{name}") for stream in STREAMS)))


def sums() -> list[Column]:
    """``_line, _length`` of a whole ``value``."""
    return [
        F.crc32(F.col("value").cast("binary")).alias("_line"),
        F.octet_length("value").cast("bigint").alias("_length"),
    ]


def more(known: Mapping[str, frozenset[str]], stream: Column) -> Column:
    """``_more`` of ``value``, parsed as the column of its stream's name; ``known``: the columns of each stream that may
    be. To look at a line closely costs as much as parsing it: only one that has more names than known columns is, and
    only one that has more colons than known names is asked for its names. Of one that is no strict JSON it is the whole
    line: nothing is lost, and what is known is there twice.
    """

    def of_stream(found: Mapping[str, Column]) -> Column:
        first, *others = found.items()
        return reduce(lambda column, one: F.when(stream == one[0], one[1]).otherwise(column), others, first[1])

    keys = F.json_object_keys("value")
    there = {
        s: read.joined(Column.__add__, [F.col(f"{s}.{n}").isNotNull().cast("int") for n in sorted(names)])
        for s, names in known.items()
    }
    nested = {s: _names_in_maps(s, names) for s, names in known.items()}
    there_are_more = F.size(keys) > of_stream(there)
    colons = F.size(F.split("value", ":")) - 1  # to replace them and look how long the rest is takes twice as long
    there_may_be_more = colons > of_stream(there) + of_stream(nested)
    names = {s: F.array(*map(F.lit, sorted(names))) for s, names in known.items()}
    unknown = F.array_except(keys, of_stream(names))
    values = F.try_parse_json("value").cast("MAP<STRING,VARIANT>")
    kept = F.map_filter(values, lambda name, _: F.array_contains(unknown, name))
    # What from_json takes and is no strict JSON (a name twice, NaN, quotes, half of a surrogate) has no values to pick.
    whole = F.make_valid_utf8("value")
    picked = F.when(there_are_more & (F.size(unknown) > 0), F.coalesce(F.to_json(kept), whole))
    return F.when(there_may_be_more, F.when(keys.isNull(), whole).otherwise(picked))


def _names_in_maps(stream: str, names: frozenset[str]) -> Column:
    kinds = columns(Sample) | columns(Event)
    maps = sorted(name for name in names if kinds[name].startswith("MAP"))
    return read.joined(Column.__add__, [F.coalesce(F.size(F.col(f"{stream}.{n}")), F.lit(0)) for n in maps])
