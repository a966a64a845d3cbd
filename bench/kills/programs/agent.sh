#!/usr/bin/env bash
# The agent as a script, under recall exec: agent.sh ordinary|durable|resolved
# WORLD_TOOL is the command that carries the tools out, and that blocks where the script is to be killed.
set -euo pipefail

ordinary() { # what is done is what the working state tells
    local tool past
    past=$(recall state show --json | sed -n 's/.*"progress": "\(.*\)".*/\1/p')
    for tool in lookup invoice email; do
        [[ $past == *$tool* ]] && continue
        $WORLD_TOOL call "$tool" > /dev/null
        past+=" $tool"
        recall state set --progress "$past" 2> /dev/null
        $WORLD_TOOL reach "$tool" returned
    done
}

step() { # step TOOL CLASS [OPTION...]
    local tool=$1 class=$2 result
    shift 2
    result=$(recall run --class "$class" --step "$tool" --tool "$tool" --wait 30s "$@" -- \
        sh -c 'exec $WORLD_TOOL call "$0" "$RECALL_IDEMPOTENCY_KEY"' "$tool")
    if [[ $result != "$tool is done" ]]; then
        echo "$tool is said to have returned '$result'" >&2
        exit 1
    fi
    $WORLD_TOOL reach "$tool" returned
}

$WORLD_TOOL ready
if [[ $1 == ordinary ]]; then
    ordinary
else
    step lookup pure
    step invoice idempotent
    if [[ $1 == resolved ]]; then
        step email external --resolver '$WORLD_TOOL asked "$RECALL_IDEMPOTENCY_KEY"'
    else
        step email external
    fi
fi
