#!/bin/sh
# Run the command that the name of this link says: bench/relay is that of relay.py.
here=$(dirname "$0")
exec "$here/../.venv/bin/python" "$here/start.py" "$0" "$@"
