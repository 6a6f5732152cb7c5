"""Run mdispatch: ``python -m services.mdispatch --props FILE``."""

from common import main
from services.mdispatch.service import run
from services.mdispatch.settings import Settings

main(Settings, run)
