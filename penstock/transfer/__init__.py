"""Messages from list to list, on one server or to another one."""

from pathlib import Path
from typing import Final

LUA: Final = Path(__file__).parent / "lua"
