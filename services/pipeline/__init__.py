"""What happened to messages, kept for good: the event streams of many namespaces, archived by Spark."""
