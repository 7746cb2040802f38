#!/bin/sh
# The server makes this the sandbox's entrypoint, with the user's command as its arguments.
/opt/opensandbox/execd &
exec "$@"
