"""Run mbalance: ``python -m services.mbalance --props FILE``."""

from common import main
from services.mbalance.service import run
from services.mbalance.settings import Settings

main(Settings, run)
