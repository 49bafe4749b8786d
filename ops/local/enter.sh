#!/bin/sh
# Run a program of a root folder, another Debian's, as if it were this system's: enter.sh ROOT FOLDER PROGRAM [ARGUMENT...]
# FOLDER, /proc, /dev and /etc/hosts are ours in there. The mounts are those of this process alone (`unshare
# --mount` comes before), so nothing is left of them when it ends; and it becomes the program, so its pid stays.
set -eu
root=$1 folder=$2
shift 2
# Not into the root folder's own /tmp: it would keep an empty folder of each cluster of a test.
mount -t tmpfs tmpfs "$root/tmp"
mkdir -p "$root$folder"
mount --bind "$folder" "$root$folder"
for there in /dev /proc /etc/hosts; do
    mount --rbind "$there" "$root$there"
done
exec /usr/sbin/chroot "$root" /usr/bin/env -C "$folder" "$@"
