"""What tests of several folders use: servers, stubs, cases, and functions that wait or compare."""
