#!/usr/bin/env bash
# Other people's software that the tests run against: kinesis-local (an independent Kinesis) and a Python with boto3 and
# aws-kinesis-agg (an independent producer). Nothing of it is needed to build or to use shardfleet.
#
#   scripts/peers.sh install               installs what is missing; does nothing, offline too, when all is there
#   scripts/peers.sh path python           the Python interpreter that has the packages of peers/requirements.txt
#   scripts/peers.sh path kinesis-local    main.js of kinesis-local, for node
#
# Everything goes under $SHARDFLEET_PEERS, ~/.cache/shardfleet/peers by default; to remove it, remove that folder.
# Versions are pinned in peers/. Packages come from wherever npm and pip are set up to fetch them.
set -euo pipefail

repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
pins="$repository/peers"
root="${SHARDFLEET_PEERS:-${HOME:?HOME is not set; set it or SHARDFLEET_PEERS}/.cache/shardfleet/peers}"
npm_folder="$root/npm"
venv="$root/python"
node_min=18
python_min="3.10"

say() { printf 'peers: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

usage() {
  sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# The stamp is written last, and is a copy of the pins: a half-finished or outdated installation never matches.
kinesis_local_is_there() {
  [[ -f "$npm_folder/node_modules/kinesis-local/main.js" ]] &&
    cmp -s "$npm_folder/stamp" "$pins/package-lock.json"
}

python_is_there() {
  cmp -s "$venv/stamp" "$pins/requirements.txt" && "$venv/bin/python" -c '' 2>/dev/null
}

require_node() {
  command -v node >/dev/null ||
    die "node is missing: install Node.js $node_min or later (Debian: apt-get install nodejs npm; macOS: brew install node)"
  local major
  major="$(node -p 'process.versions.node.split(".")[0]')"
  ((major >= node_min)) || die "node $major is too old: install Node.js $node_min or later"
}

require_npm() {
  command -v npm >/dev/null ||
    die "npm is missing: it comes with Node.js, or apart from it (Debian: apt-get install npm)"
}

require_python() {
  command -v python3 >/dev/null ||
    die "python3 is missing: install Python $python_min or later (Debian: apt-get install python3 python3-venv; macOS: brew install python)"
  python3 -c "import sys; sys.exit(sys.version_info < (${python_min/./, }))" ||
    die "python3 is too old ($(python3 -V)): Python $python_min or later is needed"
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    die "python3 has no venv module: install it (Debian: apt-get install python3-venv)"
}

install_kinesis_local() {
  if kinesis_local_is_there; then return; fi
  require_npm
  say "installing kinesis-local into $npm_folder"
  rm -rf "$npm_folder"
  mkdir -p "$npm_folder"
  cp "$pins/package.json" "$pins/package-lock.json" "$npm_folder/"
  # No package of ours needs its install scripts.
  (cd "$npm_folder" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2) ||
    die "npm could not install kinesis-local; its message is above. Without a network, copy $root from a machine that has it"
  cp "$pins/package-lock.json" "$npm_folder/stamp"
}

install_python() {
  if python_is_there; then return; fi
  require_python
  say "installing boto3 and aws-kinesis-agg into $venv"
  rm -rf "$venv"
  python3 -m venv "$venv" || die "python3 -m venv failed; its message is above (Debian: apt-get install python3-venv)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$pins/requirements.txt" >&2 ||
    die "pip could not install peers/requirements.txt; its message is above. Without a network, copy $root from a machine that has it"
  "$venv/bin/python" -c 'import aws_kinesis_agg.aggregator, boto3' ||
    die "the installed packages do not load; remove $venv and try again"
  cp "$pins/requirements.txt" "$venv/stamp"
}

install() {
  require_node # to run kinesis-local, not only to install it
  if kinesis_local_is_there && python_is_there; then return; fi
  mkdir -p "$root"
  # Two installations at once would delete each other's folders. Where flock is missing (macOS), don't run two at once.
  exec 9>"$root/lock"
  if command -v flock >/dev/null; then
    flock -w 600 9 || die "another installation has held $root/lock for ten minutes"
  fi
  install_kinesis_local
  install_python
  say "all there, under $root"
}

path() {
  case "$1" in
    kinesis-local)
      kinesis_local_is_there || die "kinesis-local is not installed, or in another version: run scripts/peers.sh install"
      printf '%s\n' "$npm_folder/node_modules/kinesis-local/main.js"
      ;;
    python)
      python_is_there || die "the peers' Python is not installed, or has other versions: run scripts/peers.sh install"
      printf '%s\n' "$venv/bin/python"
      ;;
    *) die "nothing is called $1: python and kinesis-local are known" ;;
  esac
}

case "$#:${1:-}" in
  1:install) install ;;
  2:path) path "$2" ;;
  *) usage ;;
esac
