"""Run vpush: ``python -m services.vpush --props FILE``."""

from functools import partial

from common import main
from services.vpush.service import run
from services.vpush.settings import Settings
from services.vpush.window import SendWindow

main(Settings, partial(run, window=SendWindow()))
