#!/bin/sh
# Entry point of a container whose one process is an agent. The store is a volume: /var/lib/recall.
#
#   ENTRYPOINT ["/entrypoint.sh"]
#   CMD ["/usr/local/bin/agent"]
#
# "exec" makes recall the first process: it gets the SIGTERM of a drained pod, lets the agent finish within
# the grace (less than the pod's terminationGracePeriodSeconds), and reaps what the agent leaves behind.
# Killed without warning, the next container takes over when the lease expires: a pod that ran elsewhere
# cannot be proven dead, so --wait is longer than --ttl.
set -eu
export RECALL_DIR="${RECALL_DIR:-/var/lib/recall}"
exec recall exec "${AGENT:-agent}" --ttl "${TTL:-30s}" --wait "${WAIT:-90s}" --grace "${GRACE:-25s}" -- "$@"
