"""What services with messages in flight share."""

from pathlib import Path
from typing import Final

LUA: Final = Path(__file__).parent / "lua"
