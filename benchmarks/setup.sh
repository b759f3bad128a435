#!/usr/bin/env bash
# Installs what the benchmark needs and is missing: Debian packages, jars from Maven Central, and a
# virtual environment with CometMQ (this checkout) and the peers' Python clients.
# Ends with what is there, and what could not be installed; a peer that is missing is left out.
#   usage: benchmarks/setup.sh [FOLDER]     default: ~/.cache/cometmq-bench (COMETMQ_BENCH_HOME)
set -uo pipefail
cd "$(dirname "$0")/.."
home=${1:-${COMETMQ_BENCH_HOME:-$HOME/.cache/cometmq-bench}}
mkdir -p "$home"
home=$(cd "$home" && pwd)
failed=()

attempt() { # attempt WHAT COMMAND...: go on without it, but say so
  local what=$1
  shift
  printf '== %s\n' "$what"
  "$@" >"$home/setup.log" 2>&1 || { failed+=("$what"); tail -n 5 "$home/setup.log"; }
}

# package:command that it brings
for pair in redis-server:redis-server rabbitmq-server:/usr/lib/rabbitmq/bin/rabbitmq-server \
  openjdk-17-jdk-headless:javac maven:mvn linux-perf:perf iproute2:ip util-linux:unshare; do
  package=${pair%%:*} command=${pair#*:}
  command -v "$command" >/dev/null && continue
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    failed+=("$package (not root, or no apt-get)")
    continue
  fi
  [ -n "${updated:-}" ] || { apt-get update -qq >/dev/null 2>&1; updated=yes; }
  # The benchmark starts brokers itself, on free ports and empty folders.
  attempt "Debian package $package" env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
    apt-get install -y -qq --no-install-recommends "$package"
done

for peer in kafka rocketmq; do
  mkdir -p "$home/$peer/lib" "$home/$peer/classes" "$home/$peer/home"
  if ! compgen -G "$home/$peer/lib/*.jar" >/dev/null; then
    attempt "jars of $peer" mvn -q -B -f "benchmarks/java/$peer/pom.xml" \
      dependency:copy-dependencies "-DoutputDirectory=$home/$peer/lib" -DincludeScope=runtime
  fi
done
attempt "RocketMQ's client" javac -d "$home/rocketmq/classes" -cp "$home/rocketmq/lib/*" \
  benchmarks/java/Job.java benchmarks/java/RocketWork.java

[ -x "$home/venv/bin/python" ] || attempt "virtual environment" python3 -m venv "$home/venv"
attempt "CometMQ and the peers' clients" "$home/venv/bin/pip" install -q -e '.[bench]'

echo
for what in "${failed[@]}"; do echo "could not install: $what"; done
COMETMQ_BENCH_HOME=$home "$home/venv/bin/python" -m benchmarks --list | tail -n 7
echo "run it: COMETMQ_BENCH_HOME=$home $home/venv/bin/python -m benchmarks"
