#!/usr/bin/env bash
# Moves every file of a git repository to the v2 API, one commit each, and mails one report at the end.
#
#   recall exec migrator --run v2 -- examples/migrate/migrate.sh REPOSITORY
#
# Whatever kills it, start it again: what is done is not done twice. --run gives the steps a name for ever;
# without it, a start after one that ended well would be a new migration. It needs SMTP_PORT (a mail server on
# 127.0.0.1) and MAILBOX (where that server keeps what it accepted: the resolver looks there).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$1"

# A commit carries the step's key, so running it again finds it: idempotent. --wait is for the command of a
# runner that was killed alone: it may still be at work, and nothing is begun beside it.
for file in api/*.txt; do
    name=$(basename "$file" .txt)
    recall run --class idempotent --step "migrate-$name" --wait 30s -- "$here/migrate_file.sh" "$file"
done

# A mail that was sent cannot be taken back, and nobody filters the second one: external. Interrupted, only
# the mail server knows whether it was accepted, so the resolver asks there. Empty: a person is asked.
recall run --class external --step report --resolver "${RESOLVER-$here/was_sent.sh}" --wait 30s -- \
    python3 "$here/send_report.py" "$(git rev-list --count HEAD)"
