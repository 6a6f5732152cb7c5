"""Comparison of Penstock with other systems at the same work, in one run and in turns: ``make bench-peers``."""
