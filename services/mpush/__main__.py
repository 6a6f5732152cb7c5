"""Run mpush: ``python -m services.mpush --props FILE``."""

from common import main
from services.mpush.service import run
from services.mpush.settings import Settings

main(Settings, run)
