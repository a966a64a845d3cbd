#!/usr/bin/env bash
# The resolver of the report: exit 0 it was sent, 1 it was not, 2 cannot tell.

# The sender is gone, but the server may still be busy with what it sent. This one serves one conversation
# after the other, so when it answers, it is done with that one. (A mail provider's API has its own way to
# ask for a Message-ID; if it is only eventually right, exit 2 until enough time has passed.)
exec 3<>"/dev/tcp/127.0.0.1/$SMTP_PORT" || exit 2
read -r -t 20 greeting <&3 && [[ $greeting == 220* ]] || exit 2
printf 'QUIT\r\n' >&3

grep -rqsF "Message-ID: <$RECALL_IDEMPOTENCY_KEY@" "$MAILBOX"
