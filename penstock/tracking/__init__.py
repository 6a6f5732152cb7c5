"""Messages in flight: their records, events, and what becomes of them."""

from pathlib import Path
from typing import Final

LUA: Final = Path(__file__).parent / "lua"
