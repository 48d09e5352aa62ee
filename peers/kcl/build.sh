#!/bin/sh
# Builds the Java KCL peer for one KCL version and prints the folder that holds its jars (a classpath of FOLDER/*).
#
#   build.sh [VERSION] [DIR]      VERSION: 3.5.1 (default), 3.4.2, 2.7.2
#                                 DIR: default $SHARDFLEET_PEERS/kcl/VERSION, where scripts/peers.sh has its things as well
#                                 (~/.cache/shardfleet/peers where SHARDFLEET_PEERS is not set)
#
# Idempotent: each state of the sources has its own folder DIR/jars-CHECKSUM, so a rebuild never takes jars away from a
# worker that runs; folders of other states go after a day. Needs a JDK 11+ and Maven.
# MVN_ARGS is passed to Maven (for instance MVN_ARGS=-o to stay offline).
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
version=${1:-3.5.1}
dir=${2:-${SHARDFLEET_PEERS:-$HOME/.cache/shardfleet/peers}/kcl/$version}
sum=$(cat "$here/pom.xml" "$here"/src/main/java/shardfleet/peer/*.java | cksum | cut -d' ' -f1)
jars=$dir/jars-$sum
mkdir -p "$dir"

exec 9>"$dir/.lock"
flock 9                                   # two jobs may ask for the same version at once
if [ ! -f "$jars/kcl-peer.jar" ]; then
    find "$dir" -maxdepth 1 -name 'jars-*' -mtime +0 -exec rm -rf {} +
    rm -rf "$jars.new"
    work=$(mktemp -d)
    trap 'rm -rf "$work" "$jars.new"' EXIT
    mvn -q -B -Dstyle.color=never ${MVN_ARGS:-} -f "$here/pom.xml" -Dkcl.version="$version" -Dpeer.build="$work" \
        package dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$jars.new" >&2
    mv "$work/kcl-peer.jar" "$jars.new/"
    rm -rf "$jars"
    mv "$jars.new" "$jars"
fi
echo "$jars"
