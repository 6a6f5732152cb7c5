"""What has no connection: errors, names of keys, encodings, URLs, secrets, the log."""
