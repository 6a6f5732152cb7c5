"""Run router: ``python -m router --props FILE``."""

from common import main
from router.service import run
from router.settings import Settings

main(Settings, run)
