"""The ready-made policies under `presets/`, by name. The one module here that reads files.

`os.path` on the package's own folder instead of importlib.resources: the latter costs more to import than all of
the policy language, and the packages are installed as plain files.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from policies.parser import parse_policy

if TYPE_CHECKING:
    from policies.model import NetworkPolicy

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "presets")
_ENDING = ".yaml"


def names() -> tuple[str, ...]:
    """The presets there are, in alphabetical order."""
    return tuple(sorted(name.removesuffix(_ENDING) for name in os.listdir(_FOLDER) if name.endswith(_ENDING)))


def text(name: str) -> str:
    """The file of a preset, comments included. Raises KeyError with the names there are."""
    if name not in names():
        raise KeyError(f"no preset {name!r}; there are {', '.join(names())}")
    with open(os.path.join(_FOLDER, name + _ENDING), encoding="utf-8") as file:
        return file.read()


def description(name: str) -> str:
    """What a preset is for: its leading comment as one paragraph."""
    lines = []
    for line in text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].strip())
    return " ".join(lines)


def load(name: str) -> NetworkPolicy:
    """A preset as a policy. Raises KeyError for a name that isn't there."""
    return parse_policy(text(name), yaml=True)
