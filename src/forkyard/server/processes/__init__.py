"""Processes of sandboxes over web sockets: started, attached to, fed, read, resized and killed."""
