"""Run mpush: ``python -m services.mpush --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.mpush.service import run
from services.mpush.settings import Settings

main("mpush", Settings, run)
