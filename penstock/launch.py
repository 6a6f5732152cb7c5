"""How ``penstock run`` becomes a service: the module to run, and where Python may look for it.

Two packages of ours have names that others use, too: ``services`` and ``common``. Those of the current folder are never
ours, unless Penstock itself lies there.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final, NoReturn

from penstock.errors import PenstockError

ROOT: Final = Path(__file__).parent.parent
"""Where Penstock lies, and with it ``services`` and ``common``."""
OWN_PACKAGES: Final = ("common", "services")
DISTRIBUTION: Final = "penstock"
START_MODULE: Final = "common.start"
"""The module that finds out from the props file itself whose it is, and becomes that."""


def exec_module(module: str, arguments: Sequence[str]) -> NoReturn:
    """Be ``python -m module`` with ``arguments``: the same process, with its signals and its exit status.

    Raise ``PenstockError`` if Python would import somebody else's packages in place of ours.
    """
    require_own_packages()
    environ = {**os.environ, **python_path(os.environ, sys.path if sys.flags.safe_path else sys.path[1:])}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environ)


def python_path(environ: Mapping[str, str], found: Iterable[str]) -> dict[str, str]:
    """Return the PYTHONPATH with which ours are found first; nothing if they are without it.

    ``found`` is where Python looks by itself, without the current folder.
    """
    before = []
    for place in map(Path, found):
        if place.resolve() == ROOT:
            break
        before.append(place)
    else:
        before = [ROOT]
    if not any((place / name).exists() for place in before for name in OWN_PACKAGES):
        return {}
    given = environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *([given] if given else [])])}


def require_own_packages() -> None:
    """Raise ``PenstockError`` if another distribution has installed files over ours."""
    for distribution in distributions(path=[str(ROOT)]):
        name = str(distribution.name or "")
        listed = "\n" + (distribution.read_text("RECORD") or distribution.read_text("top_level.txt") or "")
        both = [package for package in OWN_PACKAGES if re.search(rf"\n{package}(?:/|\n|$)", listed)]
        if both and name.lower() != DISTRIBUTION:
            raise PenstockError(
                f"the distribution {name} {distribution.version} installs a package `{both[0]}` into {ROOT}, as "
                "Penstock does: one has overwritten files of the other; install them in two environments"
            )
    for package in OWN_PACKAGES:
        if not (ROOT / package / "__init__.py").is_file():
            raise PenstockError(f"the package `{package}` of Penstock is missing in {ROOT}: install Penstock again")
