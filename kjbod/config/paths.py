"""Compare paths of a configuration by their text alone, without any disk access. Pure."""


def is_below(path: str, directory: str) -> bool:
    """Return whether a path is the directory or below it. Both texts begin with ``/``."""
    names, outer = _names(path), _names(directory)
    return names[: len(outer)] == outer


def _names(path: str) -> list[str]:
    """Return the names of a path, without ``.``, ``..`` and empty ones (``os.path.normpath``)."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return names
