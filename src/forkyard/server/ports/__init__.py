"""Ports of sandboxes, reached from outside by host names of their own: by everybody, or by who has a token."""
