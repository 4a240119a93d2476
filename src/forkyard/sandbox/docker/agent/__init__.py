"""What runs inside a container, by `python -I -S` and without anything of this package but `sandbox/inside`.

It is PID 1 of a container as of a sandbox of the `local` provider, and speaks the same protocol over a socket that is
mounted into the container. The Python that runs it is this machine's, mounted as well: an image needs none.
"""

HERE = "/.forkyard"
"""Where the machine's Python and this code are mounted, until PID 1 has what it needs of them."""
