"""Run mdispatch: ``python -m services.mdispatch --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from services.mdispatch.service import run
from services.mdispatch.settings import Settings

main("mdispatch", Settings, run)
