"""Sinks of Spark in Redis, one module for each type, and idempotent commits of batches."""
