"""What the toolset of `stock` imports, from beside it."""

TOO_FEW = "there are not so many"
