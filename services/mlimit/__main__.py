"""Run mlimit: ``python -m services.mlimit --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.mlimit.service import run
from services.mlimit.settings import Settings

main("mlimit", Settings, run)
