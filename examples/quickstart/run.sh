#!/usr/bin/env bash
# The main job on embedded defaults: a broker, a file through it and back, a kill -9 in between.
# Needs `mq` on the PATH; works in a folder of its own and removes it.
set -euo pipefail
command -v mq > /dev/null || { echo "mq is not on the PATH; run: pip install ." >&2; exit 1; }
folder=$(mktemp -d)
cd "$folder"
trap 'kill %% 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$folder"' EXIT

start() { # start a broker on a free port and learn its address
  mq run --data data --listen tcp://127.0.0.1:0 --json > started.json &
  broker=$!
  for _ in $(seq 300); do [ -s started.json ] && break; sleep 0.1; done
  [ -s started.json ] || { echo "the broker did not start; what it said is above" >&2; exit 1; }
  MQ_CONNECT=$(python3 -c 'import json; print(json.load(open("started.json"))["addresses"][0])')
  export MQ_CONNECT
}

seq 1 100000 > sent.txt
start
mq topic create numbers --queues 1
mq produce numbers sent.txt
# Waiting for that very process keeps the shell from reporting the kill that was meant.
{ kill -9 "$broker" && wait "$broker"; } 2>/dev/null || true
rm started.json
start
mq consume numbers > received.txt
cmp sent.txt received.txt
echo "100,000 lines in, kill -9, restart, the same 100,000 lines out"
