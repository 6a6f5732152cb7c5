"""Figures of ``penstock.jobs``, beside hfxbus 2.2.0 and bare clients that send the same commands."""

from bench.jobs.plan import plan

__all__ = ["plan"]
