"""Run mdedupe: ``python -m services.mdedupe --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.mdedupe.service import run
from services.mdedupe.settings import Settings

main("mdedupe", Settings, run)
