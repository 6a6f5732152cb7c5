"""Service that archives the event streams of many namespaces with Spark."""
