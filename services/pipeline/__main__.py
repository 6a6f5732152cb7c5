"""Run pipeline: ``python -m services.pipeline --props FILE``."""

import common.signals  # noqa: F401
from common.extras import needed

with needed("spark", "pipeline"):
    from common.app import main
    from services.pipeline.service import run, sparks
    from services.pipeline.settings import Settings

main("pipeline", Settings, run, sparks)
