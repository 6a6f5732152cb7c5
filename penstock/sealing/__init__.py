"""Encrypt messages with data keys of their owners; ``keyring`` has the entry point ``Keyring``.

Each owner has a random data key for each epoch. Redis stores it wrapped with the master key, which is in a file or in
Vault and never in Redis. Deleting the data keys of an owner makes all of its messages unreadable.
"""
