#!/bin/sh
# An agent in plain POSIX sh that nobody can wrap in recall exec: it takes the lease by itself.
#
#   examples/posix.sh LETTERS      prints each word of the file LETTERS once, however often it is killed
set -eu
letters=$1

# --holder-pid: the lease ends with this shell, however that ends. If the lease cannot be had, eval fails.
eval "$(recall resume postman --export --holder-pid $$ --wait 60s)"
trap 'recall release --quiet' EXIT

# A run of our own: the steps of this file of letters. (recall exec would have set it.)
RECALL_RUN=letters-$(cksum < "$letters" | cut -d ' ' -f 1)
export RECALL_RUN

# What was delivered decides what an interrupted step did. grep cannot tell by a file that is not there (status 2).
touch "$DELIVERED"

recall state set --goal "deliver $letters" > /dev/null

while read -r word; do
    recall run --class external --tool deliver --step "deliver-$word" --wait 30s \
        --resolver "grep -qx '$word' \"\$DELIVERED\"" -- sh -c 'printf "%s\n" "$0" >> "$DELIVERED"' "$word"
done < "$letters"
recall state set --progress "all delivered" > /dev/null
