"""Run himporter: ``python -m services.himporter --props FILE``."""

import common.signals  # noqa: F401
from common.app import main
from common.extras import needed

with needed("web", "himporter"):
    from services.himporter.service import Importer
    from services.himporter.settings import Settings

importer = Importer()
main("himporter", Settings, importer.run, importer.lifespan)
