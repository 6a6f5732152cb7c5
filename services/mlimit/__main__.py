"""Run mlimit: ``python -m services.mlimit --props FILE``."""

from common import main
from services.mlimit.service import run
from services.mlimit.settings import Settings

main(Settings, run)
