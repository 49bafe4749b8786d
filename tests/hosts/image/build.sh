#!/bin/sh
# Build what the virtual hosts boot from, out of Debian packages. As root.
#
#   build.sh FOLDER
#
# FOLDER afterwards: linux.uml (the kernel) and its C library, bare.img and ready.img (root file systems),
# id_ed25519 (root's key on every host), known_hosts.pub (their host key), versions (of the packages),
# stamp (of what all that was built from). Nothing is done where the stamp is right. root.tar.gz is what the
# packages alone make, which takes most of the time: it is used again until packages change.
# $MESSAGEBUS_HOSTS_SUITE: the Debian release of the hosts, bookworm where it is not set.
#
# The kernel is one of a later release: since Linux 6.16 the processes of User-Mode Linux hand their system
# calls over by seccomp instead of ptrace, and a broker starts in half the time.
set -eu
here=$(dirname "$(readlink -f "$0")")
root=${here%/tests/hosts/image}
suite=${MESSAGEBUS_HOSTS_SUITE:-bookworm}
kernel_suite=forky
modules='drbd lru_cache dm-mod dm-flakey sch_netem'

main() {
    out=$(mkdir -p "$1" && cd "$1" && pwd -P) # of all checkouts that share it
    exec 9> "$out/lock" # two test runs of one checkout: the second finds the work done
    flock 9
    # The kernel names the place of its C library.
    stamp=$( (echo "$out" && cat "$here"/* "$here"/guest/* 2> /dev/null) | sha256sum | cut -d ' ' -f 1)
    [ "$(cat "$out/stamp" 2> /dev/null)" != "$stamp" ] || exit 0
    "$root/ops/local/install.sh" \
        mmdebstrap e2fsprogs patchelf openssh-client iproute2 util-linux
    work=$(mktemp -d) # not below the checkout, which the packages' users may not enter
    trap 'rm -rf "$work"' EXIT
    chmod 755 "$work"
    rm -f "$out/stamp"
    kernel
    keys
    root_file_system
    furnish "$work/root"
    image bare
    chroot_install
    image ready
    echo "$stamp" > "$out/stamp"
}

words() { sed -n "s/^$1 //p" "$here/packages"; }

# Unpacked, not installed: it is a program of the tests, not of this machine, and brings its own C library.
kernel() {
    echo "deb http://deb.debian.org/debian $kernel_suite main" > "$work/kernel.list"
    mkdir -p "$work/lists/partial" "$work/unpacked"
    (cd "$work" && kernel_apt update && kernel_apt download user-mode-linux libc6) > "$work/apt.log" 2>&1 ||
        { cat "$work/apt.log" >&2; exit 1; }
    for package in user-mode-linux libc6; do
        dpkg-deb -x "$work/$package"_*.deb "$work/unpacked"
    done
    for file in libc.so.6 ld-linux-x86-64.so.2; do
        install -m 755 "$work/unpacked/usr/lib/x86_64-linux-gnu/$file" "$out/$file"
    done
    patchelf --set-interpreter "$out/ld-linux-x86-64.so.2" --set-rpath "$out" \
        --output "$out/linux.uml" "$work/unpacked/usr/bin/linux.uml"
    version=$(ls "$work/unpacked/usr/lib/uml/modules")
}

kernel_apt() {
    apt-get -q -o Dir::Etc::SourceList="$work/kernel.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root "$@"
}

keys() {
    rm -f "$out/id_ed25519" "$out/id_ed25519.pub"
    ssh-keygen -q -t ed25519 -N '' -C virtual-hosts -f "$out/id_ed25519"
    ssh-keygen -q -t ed25519 -N '' -C virtual-hosts -f "$work/host_key"
    cut -d ' ' -f 1-2 "$work/host_key.pub" > "$out/known_hosts.pub"
}

# The packages of the machine's own sources, of Debian's own for another release. What is offered is fetched
# with all that it depends on and kept as a repository of files.
root_file_system() {
    key=$(sha256sum < "$here/packages")
    if [ "$(cat "$out/root.key" 2> /dev/null)" = "$key" ]; then
        mkdir "$work/root"
        tar -C "$work/root" --numeric-owner -xzf "$out/root.tar.gz"
        return
    fi
    sources=/etc/apt/sources.list.d/debian.sources
    [ -f $sources ] || sources=/etc/apt/sources.list
    [ "$suite" = bookworm ] || sources=
    mmdebstrap --quiet --mode=root --variant=apt --skip=cleanup/reproducible,cleanup/apt \
        --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt=force-unsafe-io \
        --include="$(words base | tr ' ' ,)" \
        --customize-hook="APT_CONFIG=\$MMDEBSTRAP_APT_CONFIG apt-get -qq -y --download-only install $(words offered)" \
        --format=directory "$suite" "$work/root" ${sources:+"$sources"} > "$work/log" 2>&1 ||
        { tail -n 30 "$work/log" >&2; exit 1; }
    rm -f "$out/root.key"
    tar -C "$work/root" --numeric-owner --one-file-system -cf - . | gzip -1 > "$out/root.tar.gz"
    echo "$key" > "$out/root.key"
}

furnish() {
    mkdir -p "$1/srv/packages" "$1/lib/modules/$version/virtual-hosts"
    mv "$1"/var/cache/apt/archives/*.deb "$1/srv/packages/"
    rm -rf "$1"/var/lib/apt/lists/* "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/*
    (cd "$1/srv/packages" && index > Packages)
    echo 'deb [trusted=yes] file:/srv/packages ./' > "$1/etc/apt/sources.list"
    chroot "$1" apt-get -qq update

    cp "$work/unpacked/usr/lib/uml/modules/$version"/modules.* "$1/lib/modules/$version/"
    for module in $modules; do
        find "$work/unpacked/usr/lib/uml/modules/$version" -name "$module.ko" \
            -exec strip --strip-debug -o "$1/lib/modules/$version/virtual-hosts/$module.ko" {} \;
    done
    chroot "$1" depmod "$version"
    chroot "$1" modprobe -S "$version" --show-depends drbd > "$work/log"

    install -D -m 600 "$out/id_ed25519.pub" "$1/root/.ssh/authorized_keys"
    chmod 700 "$1/root/.ssh"
    rm -f "$1"/etc/ssh/ssh_host_*
    install -m 600 "$work/host_key" "$1/etc/ssh/ssh_host_ed25519_key"
    install -m 644 "$work/host_key.pub" "$1/etc/ssh/ssh_host_ed25519_key.pub"
    install -m 644 "$here/guest/sshd_config" "$1/etc/ssh/sshd_config"
    install -m 755 "$here/guest/init" "$1/sbin/virtual-host-init"
    install -m 755 "$here/guest/systemctl" "$1/usr/local/bin/systemctl"
    install -m 755 "$here/guest/policy-rc.d" "$1/usr/sbin/policy-rc.d"
    install -D -m 644 "$here/guest/small-machine.conf" \
        "$1/etc/systemd/system/rabbitmq-server.service.d/small-machine.conf"
    chroot "$1" dpkg-query -W -f '${Package} ${Version}\n' > "$out/versions"
}

# What dpkg-scanpackages would write, which is a package that nobody needs for this.
index() {
    for file in *.deb; do
        dpkg-deb -f "$file"
        echo "Filename: ./$file"
        echo "Size: $(stat -c %s "$file")"
        echo "SHA256: $(sha256sum "$file" | cut -d ' ' -f 1)"
        echo
    done
}

# The ready image is the bare one after `apt-get install`, which shows that this works there. A broker
# must not start without its mount: what it would find otherwise is an empty folder that is not its own.
chroot_install() {
    # shellcheck disable=SC2046 # one word per package
    DEBIAN_FRONTEND=noninteractive unshare --mount sh -c '
        mount -t proc proc "$0/proc" && exec chroot "$0" apt-get -qq -y install "$@"' \
        "$work/root" $(words ready) > "$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; exit 1; }
    rm -rf "$work/root/srv/packages"
    find "$work/root/var/lib/rabbitmq" -mindepth 1 -delete
    chown 0:0 "$work/root/var/lib/rabbitmq"
    chmod 555 "$work/root/var/lib/rabbitmq"
    install -m 644 "$here/guest/rabbitmq-env.conf" "$here/guest/advanced.config" "$work/root/etc/rabbitmq/"
    rm -f "$work/root/etc/rabbitmq/rabbitmq.conf"
    echo '[].' > "$work/root/etc/rabbitmq/enabled_plugins"
    chroot "$work/root" dpkg-query -W -f '${Package} ${Version}\n' > "$out/versions"
}

# Never written to again: each host has a file of its own with what it changed.
image() {
    size=$(du -sm "$work/root" | cut -f 1)
    rm -f "$out/$1.img"
    truncate -s "$((size + size / 4 + 400))M" "$out/$1.img"
    mke2fs -q -F -t ext4 -m 0 -J size=8 -d "$work/root" "$out/$1.img"
    chmod 444 "$out/$1.img"
}

main "$@"
