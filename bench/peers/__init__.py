"""The same work through Penstock and through others, in one run and in turns: ``make bench-peers``."""
