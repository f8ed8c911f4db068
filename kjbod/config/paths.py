"""Paths of a configuration, by their text alone: nothing here asks a disk. Pure."""

import posixpath


def is_below(path: str, directory: str) -> bool:
    """Whether a path is that of the directory or leads into it, by the text of both."""
    path, directory = posixpath.normpath(path), posixpath.normpath(directory)
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")
