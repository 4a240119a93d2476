"""What runs around a sandbox's gVisor, by `python -I -S` and without anything of this package but `sandbox/inside`.

A guard takes the place that PID 1 has in a sandbox of the `local` provider, and speaks its protocol: its namespaces,
its disk and its socket to the host are the same. It runs runsc in them, and is never seen from inside.
"""
