"""Run mdedupe: ``python -m services.mdedupe --props FILE``."""

from common import main
from services.mdedupe.service import run
from services.mdedupe.settings import Settings

main(Settings, run)
