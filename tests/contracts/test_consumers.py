"""The contract, over each consumer."""

import pytest

from tests.contracts import drivers
from tests.contracts.consumer import Contract


class TestLists(Contract):
    driver = drivers.OverLists


@pytest.mark.slow
class TestBlockingLists(Contract):
    driver = drivers.OverBlockingLists


@pytest.mark.slow
class TestWork(Contract):
    driver = drivers.OverWork


class TestJobs(Contract):
    driver = drivers.OverJobs


@pytest.mark.slow
class TestLimitedJobs(Contract):
    driver = drivers.OverLimitedJobs


@pytest.mark.slow
class TestJobsInThreads(Contract):
    driver = drivers.OverJobsInThreads


@pytest.mark.slow
class TestJobsInProcesses(Contract):
    driver = drivers.OverJobsInProcesses


@pytest.mark.slow
class TestBatchesOfJobs(Contract):
    driver = drivers.OverBatchesOfJobs


class TestTasks(Contract):
    driver = drivers.OverTasks


@pytest.mark.slow
class TestBlockingTasks(Contract):
    driver = drivers.OverBlockingTasks


@pytest.mark.slow
class TestBareTasks(Contract):
    driver = drivers.OverBareTasks


@pytest.mark.slow
class TestBus(Contract):
    driver = drivers.OverBus


class TestReliableBus(Contract):
    driver = drivers.OverReliableBus


@pytest.mark.slow
class TestExclusiveBus(Contract):
    driver = drivers.OverExclusiveBus


@pytest.mark.slow
class TestFederatedBus(Contract):
    driver = drivers.OverFederatedBus


class TestOutbox(Contract):
    driver = drivers.OverOutbox
