"""Raw values of drive histories, unpacked as an agent unpacks those of its own disks."""

import re

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

from kjbod.smart_raw import PACKED

_RAW = re.compile(r"smart_([0-9]+)_raw|r_([0-9]+)")


def count_of(published: str, raw: Column) -> Column:
    """Return the counts in the raw values of a published column (:func:`kjbod.smart_raw.unpacked`)."""
    found = _RAW.fullmatch(published)
    known = None if found is None else PACKED.get(int(found[1] or found[2]))
    return raw if known is None else F.when(raw > known.above, raw.bitwiseAND(known.mask)).otherwise(raw)
