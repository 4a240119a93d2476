#!/bin/bash
# Hidden from the agent: enters the sandbox when the agent is done.
set -e
[ "$(python3 src/median.py 3 1 2)" = 2.0 ]
[ "$(python3 src/median.py 4 1 3 2)" = 2.5 ]
