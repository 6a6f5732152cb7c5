"""Run vpush: ``python -m services.vpush --props FILE``."""

from functools import partial

import common.signals  # noqa: F401
from common.app import main
from services.vpush.service import run
from services.vpush.settings import Settings
from services.vpush.window import SendWindow

main("vpush", Settings, partial(run, window=SendWindow()))
