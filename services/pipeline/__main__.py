"""Run pipeline: ``python -m services.pipeline --props FILE``."""

import common.held  # noqa: F401
from common.extras import needed

with needed("spark", "pipeline"):
    from common.main import main
    from services.pipeline.service import run, sparks
    from services.pipeline.settings import Settings

main("pipeline", Settings, run, sparks)
