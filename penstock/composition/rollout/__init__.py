"""Changes of a composition while it runs: what ``penstock apply`` does, step by step."""

from pathlib import Path
from typing import Final

LUA: Final = Path(__file__).parent / "lua"
