"""Run himporter: ``python -m services.himporter --props FILE``."""

from common import main
from common.extras import needed

with needed("web", "himporter"):
    from services.himporter.service import Importer
    from services.himporter.settings import Settings

importer = Importer()
main(Settings, importer.run, importer.lifespan)
