"""Lines of the CSV files in a zip archive, which Spark cannot read by itself.

It runs where Spark's executors run, on one whole archive at a time: so an archive may only be of a bounded size.
"""

import io
import zipfile
import zlib

ZIP_BYTES_MAX = 64 << 20
UNPACKED_BYTES_MAX = 512 << 20
"""What one archive may unpack to: an executor holds it in memory, and an archive may lie about being small."""


def zip_lines(content: bytes) -> list[tuple[str, str | None, list[str]]]:
    """Name, what is wrong with it (None: nothing) and lines of each ``*.csv`` of an archive; a nameless one where it is
    the archive that is wrong. What macOS adds to archives is passed over."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [info for info in archive.infolist() if _is_csv(info.filename)]
            if not members:
                return [("", "has no .csv file in it", [])]
            if sum(info.file_size for info in members) > UNPACKED_BYTES_MAX:
                said = f"unpacks to more than {UNPACKED_BYTES_MAX >> 20} MiB: unpack it and give what was in it"
                return [("", said, [])]
            # Of a member no more comes out than the archive says that there is.
            return [(info.filename, *_lines(archive.read(info))) for info in members]
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        return [("", f"cannot be unpacked: {error}", [])]


def _lines(content: bytes) -> tuple[str | None, list[str]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "is not text in UTF-8", []
    # Not str.splitlines: a name may have other signs in it that it takes for ends of lines.
    return None, [line.removesuffix("\r") for line in text.split("\n") if line.strip()]


def _is_csv(name: str) -> bool:
    return name.lower().endswith(".csv") and not name.startswith("__MACOSX/") and "/." not in f"/{name}"
