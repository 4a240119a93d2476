"""API keys over the wire, which calls them tokens."""
