"""What each service and library promises, kept through one kill and one restart of the server, by content."""
