"""Drivers: programs that run in a peer's own environment, where only this folder of ours can be imported.

A producer reads lines of one number and sends that many messages of 32 bytes. A client reads lines of two numbers,
requests to send and requests in flight (always one), and prints the median wait as JSON. ``BENCH_URL`` is the server;
``BENCH_MARKS`` is a file that gets one byte, a mark, for each message that has arrived.
"""
