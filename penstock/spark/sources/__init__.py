"""Sources of Spark in Redis, one module for each type."""
