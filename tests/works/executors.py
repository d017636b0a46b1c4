"""Executors of others, as ``--executor`` makes them."""

import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any


def process_pool() -> Executor:
    """Return Python's own pool of processes."""
    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


def dask_cluster() -> Any:
    """Return the executor of a Dask cluster with two worker processes."""
    import dask
    from distributed import Client, LocalCluster

    # An action that has killed its worker is not for Dask to run again: whether it is, the work's own retry says.
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    return Client(cluster).get_executor()
