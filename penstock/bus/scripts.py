"""The scripts of a bus."""

from pathlib import Path
from typing import Final

from penstock.core.script import Script

LUA: Final = Path(__file__).parent / "lua"


def _read(verb: str) -> Script:
    return Script.read(LUA / f"{verb}.lua")


ATTACH: Final = _read("attach")
PUSH: Final = _read("push")
MEET: Final = _read("meet")
PUSH_NOTED: Final = _read("push_noted")
POP: Final = _read("pop")
READ: Final = _read("read")
ACK: Final = _read("ack")
RESTORE: Final = _read("restore")
PUT_BACK: Final = _read("put_back")
TOUCH: Final = _read("touch")
RENEW: Final = _read("renew")
RELEASE: Final = _read("release")
CLOSE: Final = _read("close")
DESCRIBE: Final = _read("describe")
SAVE: Final = _read("save")
DISCOVER: Final = _read("discover")
FLUSH: Final = _read("flush")
SEAL: Final = _read("seal")
CARRY: Final = _read("carry")
PREPARE: Final = _read("prepare")
RECEIVE: Final = _read("receive")
HAND_OVER: Final = _read("hand_over")
TAKE_OVER: Final = _read("take_over")
RETIRE: Final = _read("retire")
FORGET: Final = _read("forget")
SWEEP: Final = _read("sweep")
UNSEAL: Final = _read("unseal")
GATHER: Final = _read("gather")
ADOPT: Final = _read("adopt")
