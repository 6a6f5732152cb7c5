"""Replace the process of ``penstock run`` by a service, with Python's search path for our packages.

Our packages ``services`` and ``common`` have names that others use, too. Those in the current folder are not ours,
unless Penstock is installed there.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Final, NoReturn

from penstock.base.errors import PenstockError

ROOT: Final = Path(__file__).parent.parent.parent
"""The folder of Penstock, ``services`` and ``common``."""
OWN_PACKAGES: Final = ("common", "services")
DISTRIBUTION: Final = "penstock"


def exec_module(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this process by ``python -m module`` with ``arguments``; signals and exit status are the module's.

    Raise ``PenstockError`` if Python would import other packages instead of ours.
    """
    require_own_packages()
    environ = {**os.environ, **python_path(os.environ, sys.path if sys.flags.safe_path else sys.path[1:])}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environ)


def python_path(environ: Mapping[str, str], found: Iterable[str]) -> dict[str, str]:
    """Return a PYTHONPATH that puts our packages first; {} if they are found first without it.

    ``found`` is Python's own search path, without the current folder.
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


def search_path(environ: Mapping[str, str]) -> str:
    """Return a PATH on which the programs beside this Python come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])


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
