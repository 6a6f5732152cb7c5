"""What Spark reads from Redis: one module a type."""
