"""Run mdispatch: ``python -m services.mdispatch --props FILE``."""

from common.main import main
from services.mdispatch.service import run
from services.mdispatch.settings import Settings

main("mdispatch", Settings, run)
