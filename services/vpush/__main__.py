"""Run vpush: ``python -m services.vpush --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.vpush.service import run
from services.vpush.settings import Settings

main("vpush", Settings, run)
