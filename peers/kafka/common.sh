# Shared by the scripts of this folder; sourced, not run.
# The caller has set HERE (this folder). Everything listens on and talks to 127.0.0.1 only.

: "${KAFKA_VERSION:=4.3.1}"
PEER_CACHE="${SHARDFLEET_PEERS:-$HOME/.cache/shardfleet/peers}/kafka-$KAFKA_VERSION"

die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }
note() { [ -n "${PEER_VERBOSE:-}" ] && printf '%s\n' "$*" >&2; return 0; }
now_ms() { date +%s%3N; }

need_port() { case "${1:-}" in ''|*[!0-9]*) die "$2 must be a port number, got '${1:-}'";; esac
  { [ "$1" -ge 1 ] && [ "$1" -le 65535 ]; } || die "$2 must be 1 to 65535, got $1"; }

# The jars, resolved on first use. Sets CP, and CDS: with an archive of loaded classes (build.sh --warm) the program
# named $1 starts in half the CPU time. -Xlog:disable keeps the JVM's remarks on the archive out of stdout.
need_jars() {
  "$HERE/build.sh" >/dev/null || die "build.sh failed"
  CP="$PEER_CACHE/judge.jar:$PEER_CACHE/libs/*"
  CDS=()
  if [ -n "${PEER_CDS_DUMP:-}" ]; then CDS=(-Xlog:disable "-XX:ArchiveClassesAtExit=$PEER_CDS_DUMP/$1.jsa")
  elif [ -r "$PEER_CACHE/$1.jsa" ]; then CDS=(-Xlog:disable "-XX:SharedArchiveFile=$PEER_CACHE/$1.jsa"); fi
}

# JVM flags that all three programs share: quick start, little memory.
JVM_FLAGS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:MaxMetaspaceSize=192m -XX:+ExitOnOutOfMemoryError -Djava.awt.headless=true"

# pid_of DIR NAME: prints the pid when that process is ours and alive. A reused pid does not count: the
# command line must carry -Dpeer.dir=DIR and -Dpeer.name=NAME.
pid_of() {
  local f="$1/$2.pid" p
  [ -r "$f" ] || return 1
  p=$(cat "$f" 2>/dev/null); case "$p" in ''|*[!0-9]*) return 1;; esac
  tr '\0' '\n' <"/proc/$p/cmdline" 2>/dev/null | grep -qxF -- "-Dpeer.dir=$1" || return 1
  tr '\0' '\n' <"/proc/$p/cmdline" 2>/dev/null | grep -qxF -- "-Dpeer.name=$2" || return 1
  printf '%s\n' "$p"
}

proc_state() { sed 's/^.*) //' "/proc/$1/stat" 2>/dev/null | cut -c1; }
rss_kib() { awk '/^VmRSS:/{print $2}' "/proc/$1/status" 2>/dev/null; }
gone() { local s; s=$(proc_state "$1"); [ -z "$s" ] || [ "$s" = Z ]; }

# wait_gone PID SECONDS
wait_gone() {
  local end=$(( $(now_ms) + $2 * 1000 ))
  until gone "$1"; do [ "$(now_ms)" -lt "$end" ] || return 1; sleep 0.05; done
}

# stop_pid DIR NAME SECONDS: SIGTERM, then SIGKILL after the deadline (and status 1).
stop_pid() {
  local p; p=$(pid_of "$1" "$2") || { rm -f "$1/$2.pid"; return 0; }
  kill -CONT "$p" 2>/dev/null; kill -TERM "$p" 2>/dev/null
  if wait_gone "$p" "$3"; then rm -f "$1/$2.pid"; return 0; fi
  kill -KILL "$p" 2>/dev/null; wait_gone "$p" 10; rm -f "$1/$2.pid"
  printf '%s: %s did not stop in %s s and was killed\n' "$(basename "$0")" "$2" "$3" >&2
  return 1
}

port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port: a port of 127.0.0.1 on which nothing listens, below the range from which the system takes the source ports
# of outgoing connections (a listener inside that range can find its port taken by any client on the machine).
free_port() {
  local low p n
  low=$(cut -f1 /proc/sys/net/ipv4/ip_local_port_range 2>/dev/null || true)
  { [ -n "$low" ] && [ "$low" -gt 21000 ]; } || low=32768
  for n in $(seq 1 200); do
    p=$((20000 + (RANDOM * 32768 + RANDOM) % (low - 20000)))
    port_open "$p" || port_open "$((p + 1))" || { printf '%s\n' "$p"; return 0; }
  done
  return 1
}

# kafka_answers PORT: sends a Metadata v4 request (no topics) and checks that at least one broker comes back.
kafka_answers() {
  local hex
  hex=$(timeout 2 bash -c '
    exec 3<>"/dev/tcp/127.0.0.1/$0" || exit 1
    # size 19 | key 3 | version 4 | correlation 7 | client id "peer" | empty topic array | auto create false
    printf "\x00\x00\x00\x13\x00\x03\x00\x04\x00\x00\x00\x07\x00\x04peer\x00\x00\x00\x00\x00" >&3
    head -c 16 <&3 | od -An -v -tx1 | tr -d " \n"' "$1" 2>/dev/null) || return 1
  # size(4) correlation(4) throttle(4) broker count(4)
  [ "${#hex}" -eq 32 ] && [ "${hex:8:8}" = 00000007 ] && [ "${hex:24:8}" != 00000000 ]
}

# http_code PORT PATH
http_code() {
  timeout 5 bash -c '
    exec 3<>"/dev/tcp/127.0.0.1/$0" || exit 1
    printf "GET %s HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n" "$1" >&3
    head -n 1 <&3' "$1" "$2" 2>/dev/null | awk '{print $2}'
}
