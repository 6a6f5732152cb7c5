"""outbox: lists exchanged with other sites, without a broker and kept on disk."""
