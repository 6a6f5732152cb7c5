"""Run mpush: ``python -m services.mpush --props FILE``."""

import common.held  # noqa: F401
from common.main import main
from services.mpush.service import run
from services.mpush.settings import Settings

main("mpush", Settings, run)
