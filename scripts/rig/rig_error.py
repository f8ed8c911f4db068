"""Errors of the rig."""

from kjbod.errors import KjbodError


class RigError(KjbodError):
    """The rig cannot do what was asked of it here: one line that says what is missing and how to get it."""
