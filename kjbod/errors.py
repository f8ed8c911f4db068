"""Errors that kjbod raises on purpose.

Any other exception is a bug. An error that a user can cause has one line with problem, place and remedy; the command
line prints that line and exits with :attr:`KjbodError.exit_code`.
"""

EXIT_FAILURE = 1
"""Exit code of Kafka's tools, and of a broker that cannot start."""
EXIT_CONFIG = 78
"""``EX_CONFIG`` of sysexits.h: a restart cannot help. The units list it in ``RestartPreventExitStatus``."""
EXIT_DISK_FAILURE = 74
"""``EX_IOERR`` of sysexits.h: the agent stopped because of failed log directories."""


class KjbodError(Exception):
    """Base class of all kjbod errors: one line of text for the user."""

    exit_code = EXIT_FAILURE


class ConfigError(KjbodError):
    """The configuration cannot be used; ``problems`` holds every mistake, one line each."""

    exit_code = EXIT_CONFIG

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class LoginUnavailable(KjbodError):  # noqa: N818 - a state of others
    """A resource for a login is temporarily unavailable."""


class StorageError(KjbodError):
    """A log directory, its ``meta.properties`` or a metadata log cannot be used in its current state."""


class LogCorruptError(StorageError):
    """A metadata log or snapshot is damaged outside its torn tail; the text has file and position.

    Args:
        message: text with the remedy if the log is the only copy.
        found: text without that remedy, for readers of a copy.
    """

    def __init__(self, message: str, found: str | None = None) -> None:
        super().__init__(message)
        self.found = message if found is None else found


class ProtocolError(KjbodError):
    """Base of the two kinds of protocol errors."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol. The connection ends, the program continues."""


class LocalProtocolError(ProtocolError):
    """Our own protocol violation, found before it was sent: a bug."""


class UnsupportedVersionError(ProtocolError):
    """No version of an API is known to both sides, or a field has no place in the version to send."""
