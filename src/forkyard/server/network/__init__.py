"""What sandboxes of the server reach: policies over HTTP, kept in their records, and headers nobody is told."""
