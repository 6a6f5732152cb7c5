"""Run mbalance: ``python -m services.mbalance --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.mbalance.service import run
from services.mbalance.settings import Settings

main("mbalance", Settings, run)
