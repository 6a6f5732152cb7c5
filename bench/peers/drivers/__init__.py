"""Programs that run in a peer's own environment, where nothing of ours but this folder can be imported.

A producer reads lines of a number and hands over so many messages of 32 bytes. A client reads lines of two, how many
requests and how many at a time (always one), and prints the median wait as JSON. ``BENCH_URL`` names the server,
``BENCH_MARKS`` a file that gets one byte a message that has come through.
"""
