"""A worker of one driver as a process, from the fork server: ``python -m tests.contracts.worker DRIVER ORDER``."""

import asyncio
import inspect
import json
import sys

from tests.contracts.drivers import DRIVERS
from tests.contracts.handling import Order

if __name__ == "__main__":
    driver, order = DRIVERS[sys.argv[1]], Order(**json.loads(sys.argv[2]))
    if inspect.iscoroutinefunction(driver.work):
        asyncio.run(driver.work(order))
    else:
        driver.work(order)
