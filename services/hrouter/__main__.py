"""Run hrouter: ``python -m services.hrouter --props FILE``."""

from common import main
from common.extras import needed

with needed("web", "hrouter"):
    import re2  # noqa: F401

from services.hrouter.service import run
from services.hrouter.settings import Settings

main(Settings, run)
