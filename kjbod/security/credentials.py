"""Credentials of SCRAM as the metadata have them (``ScramImage``, KIP-554)."""

from collections.abc import Callable

from kjbod.metadata.image import MetadataImage
from kjbod.scram import MECHANISMS
from kjbod.security.sasl_server import ScramCredential


def credentials_of(image: Callable[[], MetadataImage]) -> Callable[[str, str], ScramCredential | None]:
    """Looks a user up in the image as it is then."""

    def find(mechanism: str, user: str) -> ScramCredential | None:
        record = image().scram.get((MECHANISMS[mechanism].id, user))
        if record is None:
            return None
        return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)

    return find
