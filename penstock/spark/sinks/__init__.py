"""What Spark writes to Redis: one module a type, and what makes a repeated batch change nothing."""
