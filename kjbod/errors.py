"""The small tree of errors that kjbod raises on purpose.

Anything else that escapes is a bug. An error that a user can cause carries one line that says what, where and what to
do; the command line prints that line and exits with :attr:`KjbodError.exit_code`.
"""

EXIT_FAILURE = 1
"""What Kafka's tools and a broker that cannot start answer."""
EXIT_CONFIG = 78
"""``EX_CONFIG`` of sysexits.h: a restart cannot help. The units list it in ``RestartPreventExitStatus``."""
EXIT_DISK_FAILURE = 74
"""``EX_IOERR`` of sysexits.h: the agent gave up because of failed log directories."""


class KjbodError(Exception):
    """The root: one line for a person."""

    exit_code = EXIT_FAILURE


class ConfigError(KjbodError):
    """The configuration cannot be used; ``problems`` holds every mistake, one line each."""

    exit_code = EXIT_CONFIG

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LoginUnavailable(KjbodError):  # noqa: N818 - a state of others
    """Something that a login needs cannot be had now; it may be later."""


class StorageError(KjbodError):
    """A log directory, its ``meta.properties`` or a metadata log cannot be used as it is."""


class LogCorruptError(StorageError):
    """A metadata log or snapshot does not check somewhere else than in its torn tail; names file and position.

    Args:
        message: with what to do where the log is all that there is.
        found: the same without that, for who has but a copy.
    """

    def __init__(self, message: str, found: str | None = None) -> None:
        super().__init__(message)
        self.found = message if found is None else found


class ProtocolError(KjbodError):
    """Base of the two ways in which a conversation can go wrong."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what it may not send. The connection ends, the program goes on."""


class LocalProtocolError(ProtocolError):
    """We were about to send what may not be sent: a bug here."""


class UnsupportedVersionError(ProtocolError):
    """No version of an API is known to both sides, or a field has no place in the version to send."""
