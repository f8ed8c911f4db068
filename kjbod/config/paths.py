"""Paths of a configuration, by their text alone: nothing here asks a disk. Pure."""


def is_below(path: str, directory: str) -> bool:
    """Whether a path is that of the directory or leads into it, by the text of both, which begin with ``/``."""
    names, outer = _names(path), _names(directory)
    return names[: len(outer)] == outer


def _names(path: str) -> list[str]:
    """Names of a path, without what goes nowhere or back (``os.path.normpath``)."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return names
