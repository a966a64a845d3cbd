# A run of four steps below `recall exec`, with turns between them: what a shell script for an agent looks like.
# Killed, the next exec goes on with the same run: done steps replay, interrupted ones ask $RESOLVER.
say() { printf '%s\n' "$1" >> "$ACKS"; }

outside="$(dirname "$0")/outside.py"
run="$RECALL_RUN"
resolver=()
[ -n "$RESOLVER" ] && resolver=(--resolver "$RESOLVER")
say "{\"what\": \"exec\", \"run\": \"$run\"}"

for number in 1 2 3 4; do
    class=external
    [ "$number" = 3 ] && class=idempotent
    uid="$WORKER.$number"
    recall turns add --role assistant "[[$uid]] step $number comes next"
    code=$?
    if [ $code = 0 ]; then
        say "{\"what\": \"record\", \"uid\": \"$uid\", \"kind\": \"turn\"}"
    else
        say "{\"what\": \"refused\", \"code\": \"exit $code\"}"
    fi
    recall run --class "$class" --step "job-$number" --tool "mail-$class" "${resolver[@]}" -- \
        "$PYTHON" -S "$outside" call "$OUTSIDE" "$run/job-$number" "$class"
    code=$?
    say "{\"what\": \"ran\", \"run\": \"$run\", \"step\": \"job-$number\", \"code\": $code}"
    [ $code = 0 ] || exit "$code"
done
recall milestone "[[$WORKER.done]]" && say "{\"what\": \"record\", \"uid\": \"$WORKER.done\", \"kind\": \"working_state\"}"
