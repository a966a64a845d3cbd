#!/usr/bin/env bash
# A nightly backup in steps: dump, upload, tell somebody, throw away the oldest.
#
#   recall exec backup --run "$(date +%F)" --wait 10m -- examples/backup.sh SOURCE TARGET
#
# From cron (which wants \%F), start it every ten minutes of the night: the run is named after the day, so that
# each start goes on with the same night's, wherever it was killed, and finds all of it done after it finished.
set -euo pipefail
source=$1 target=$2
keep=${KEEP:-7}
night=$target/$RECALL_RUN
mkdir -p "$night"

# Packing again does no harm if what is half done is written over: idempotent. tar tells nothing on stdout.
recall run --class idempotent --tool pack --step pack -- \
    tar -C "$source" -czf "$night/data.tar.gz" --sort=name --mtime=@0 .

# The step's output is its result: on the next start it is replayed, not computed, so all of a night's steps
# see the same value.
sum=$(recall run --class pure --tool checksum --step checksum -- sha256sum "$night/data.tar.gz")
printf '%s\n' "$sum" > "$night/SHA256"

# Somebody is told once a night: external. NOTIFY gets the text on its command line; whether it got through
# is found in what it leaves behind. (grep cannot tell by a file that is not there: that is its status 2.)
touch "$target/notified"
recall run --class external --tool notify --step notify --resolver "grep -qs '^$RECALL_RUN:' '$target/notified'" -- \
    "${NOTIFY:?the program that tells somebody}" "$RECALL_RUN: ${sum%% *}"

# Which ones are too old is decided once, in a step of its own, so that a second attempt does not find others.
# Only what is named after a day is a night's: whatever else is kept there is none of ours.
old=$(recall run --class pure --tool choose --step choose -- \
    bash -c 'ls -d "$0"/????-??-??/ | sort | head -n "-$1"' "$target" "$keep")
while read -r each; do
    [[ -z $each ]] || recall run --class idempotent --tool remove --step "remove-$(basename "$each")" -- rm -rf "$each"
done <<< "$old"
