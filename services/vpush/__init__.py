"""vpush: a list moved to another server, in order and once."""
