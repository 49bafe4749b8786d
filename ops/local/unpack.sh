#!/bin/sh
# Unpack RabbitMQ, Erlang and HAProxy, with all that they need, into a root folder of a user's own. Nothing
# is installed, and no root is needed: only Debian's or Ubuntu's apt-get, and user namespaces. 340 MB.
#
#   ops/local/unpack.sh FOLDER
#   export MESSAGEBUS_LOCAL_ROOT=FOLDER
#   make up
set -eu
[ $# = 1 ] || { echo "usage: ops/local/unpack.sh FOLDER" >&2; exit 2; }
if ! unshare --map-root-user --mount true 2> /dev/null; then
    echo "this system forbids user namespaces: ask the administrator for them, or for the packages" >&2
    exit 2
fi
mkdir -p "$1"
folder=$(readlink -f "$1")
work=$folder.debs
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
# The user's own lists: the system's may be missing, or old.
options="-q -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache"
# What every Debian has, and no package names as its dependency.
essential='base-files bash coreutils dash findutils grep hostname mawk sed util-linux'

echo "reading the lists of packages"
# shellcheck disable=SC2086 # words
apt-get $options update > "$work/log" 2>&1 || { tail -n 3 "$work/log" >&2; exit 1; }
# shellcheck disable=SC2086
packages=$(apt-cache $options depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances rabbitmq-server haproxy $essential | grep '^[a-z0-9]' | sort -u)
cd "$work"
echo "fetching $(echo "$packages" | wc -l) packages"
# shellcheck disable=SC2086
apt-get $options download $packages > log 2>&1 || { tail -n 3 log >&2; exit 1; }
for package in *.deb; do
    echo "unpacking ${package%%_*}"
    dpkg -x "$package" "$folder"
done
# Where enter.sh mounts the user's own.
mkdir -p "$folder/tmp" "$folder/proc" "$folder/dev"
touch "$folder/etc/hosts"
rm -rf "$work"
echo "done: export MESSAGEBUS_LOCAL_ROOT=$folder"
