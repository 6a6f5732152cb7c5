#!/usr/bin/env bash
# Summarise months of weather: fetch a task, do it, acknowledge it. Needs bash, curl, sed, tr and awk.
#
# QUEUE_URL, QUEUE_WORKER_TOKEN, QUEUE_WORKER (its name), QUEUE_LEASE and QUEUE_WORK_SECONDS as in worker.py.
# QUEUE_SLOW_SECONDS is how long its first task takes instead: longer than its lease, if it is to lose it.
set -uo pipefail
export LC_ALL=C
queue="${QUEUE_URL:-http://localhost:8080}/queues/summary"
name="${QUEUE_WORKER:-bash}" lease="${QUEUE_LEASE:-30}"
usual="${QUEUE_WORK_SECONDS:-0}" pause="${QUEUE_SLOW_SECONDS:-${QUEUE_WORK_SECONDS:-0}}"
stopping=
trap 'stopping=1; kill "$!" 2>/dev/null' TERM INT

# Send a body; print the answer, and its status on the last line. The token is in no command line, which others may see.
post() {
  curl --silent --max-time 30 --write-out '\n%{http_code}' --data "$2" \
    --header @<([[ ${QUEUE_WORKER_TOKEN:-} ]] && printf 'Authorization: Bearer %s\n' "$QUEUE_WORKER_TOKEN") "$queue/$1"
}

# Print the string or number of a field, of the first of that name outside of strings. Ours have no escapes.
field() { sed -nE "s/^.*[{,]\"$1\": ?\"?([^\",}]*).*$/\1/p" <<<"$task"; }

# Print the fields of the summary of rows: date, rain, highest temperature and more.
summarise() {
  tr ' ' '\n' | awk -F, 'NF > 2 { days++; sum += $3; if (days == 1 || $3 > max) max = $3 + 0; if ($2 > 0) rainy++ }
    END { if (days) printf "\"days\":%d,\"mean\":%.2f,\"max\":%.1f,\"rainy\":%d", days, sum / days, max, rainy }'
}

while [[ ! $stopping ]]; do
  exec 3< <(post fetch "{\"workerId\":\"$name\",\"timeToRecover\":$lease,\"wait\":20}")
  wait "$!" # a signal ends this wait, and the trap the request
  task=$(cat <&3)
  if [[ ${task##*$'\n'} != 200 ]]; then
    [[ ${task##*$'\n'} == 204 || $stopping ]] || sleep 0.5 # away, or it does not know the token yet
    continue
  fi
  token=$(field taskToken) attempt=$(field attempt) month=$(field month)
  rows=$(sed -nE 's/^.*"rows": ?"([^"]*)".*$/\1/p' <<<"$task")
  sleep "$pause"
  pause=$usual
  summary=$(summarise <<<"$rows")
  max=$(sed -nE 's/.*"max":(-?[0-9]+).*/\1/p' <<<"$summary")
  if [[ ! $summary ]]; then
    outcome='"error":{"type":"NoRows","message":"no rows of '$month'"}'
  elif ((max >= 33 && attempt == 1)); then
    outcome='"error":{"type":"LookTwice","message":"'$month' is hot: look twice"}'
  else
    outcome="\"result\":{\"month\":\"$month\",$summary,\"worker\":\"$name\"}"
  fi
  answer=$(trap '' TERM INT && post ack "{\"taskToken\":\"$token\",$outcome}")
  [[ ${answer##*$'\n'} == 200 ]] || echo "$month: ${answer##*$'\n'}, ${token%.*} is not acknowledged"
done
