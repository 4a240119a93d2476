"""Code that runs outside the user's process: the spawner, and PID 1 of every sandbox.

It is started as `python -I -S` with an empty environment, so it holds no secrets, and it imports only the standard
library: after `pivot_root` a module that was not imported before can no longer be found.

It is imported there as `inside`, from the end of the module path: beside it are modules that are not meant.
"""

import os

PLACE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # what has to be in the module path for that
# How the program of a spawner begins, whose second argument is that place. Nothing inside is compressed, and what
# tarfile loads for that would be in the memory of every sandbox. What is loaded together lies together, and a sandbox
# copies whole pages of what it uses: first comes what is not ours, then what each sandbox uses, then the rest.
BEGIN = (
    "import sys; sys.modules.update(bz2=None, lzma=None); import ctypes, json, socket, tarfile, typing; "
    "sys.path.append(sys.argv[2]); from inside import rootfs, pid1, spawner; "
)
