"""What every sandbox has in common whose PID 1 is ours, whatever makes its walls: namespaces, a container, gVisor.

`sandbox` is the protocol, `live` what exists while one runs, `channel` the socket to its PID 1 (see `inside`).
"""
