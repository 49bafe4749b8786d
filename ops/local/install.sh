#!/bin/sh
# Install what is missing: Debian packages, then .venv from requirements.lock. Says nothing when
# nothing is missing. Exit code 2, with one message and nothing done, when that needs root and there
# is no way to it.
#
#   ops/local/install.sh                    all that the project needs
#   ops/local/install.sh --also PACKAGE...  Debian packages that only some of its commands want
set -eu
script=$(readlink -f "$0")
cd "${script%/ops/local/install.sh}"

policy=/usr/sbin/policy-rc.d
policy_mark='# made by messagebus for the time of one installation'

main() {
    python=$(find_python)
    # shellcheck disable=SC2046 # one word per package
    set -- $(missing_packages)
    [ $# = 0 ] || install_as_root "$@"
    # Two of us at once: the second waits here and finds the work done.
    exec 9< .
    flock 9
    venv_is_current || build_venv
    package_is_current || install_package
}

# Python 3.11 or later, but never the one of the .venv that we may be about to remove.
find_python() {
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        found=$(command -v "$name") || continue
        [ "${found#"$(pwd)/.venv/"}" = "$found" ] || continue
        if "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "$found"
            return
        fi
    done
}

# Major version of the Java that PySpark will find, from a file that comes with each: Java itself
# takes longer to tell than this whole script.
java_version() {
    java=$(command -v "${JAVA_HOME:+$JAVA_HOME/bin/}java") || return 0
    release=$(readlink -f "$java")
    release=${release%/bin/java}/release
    if [ -r "$release" ]; then
        sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$release"
    else
        "$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p'
    fi
}

missing_packages() {
    [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || echo rabbitmq-server
    [ -x /usr/sbin/haproxy ] || echo haproxy
    java=$(java_version)
    [ "${java:-0}" -ge 17 ] || echo openjdk-17-jre-headless
    [ -n "$python" ] || echo python3
    venv_is_current || "${python:-false}" -c 'import ensurepip, venv' 2> /dev/null || echo python3-venv
}

install_as_root() {
    if ! command -v apt-get > /dev/null; then
        echo "missing, and no apt-get here to install it: $*" >&2
        exit 2
    elif [ "$(id -u)" = 0 ]; then
        root=
    elif sudo -n true 2> /dev/null; then
        root='sudo -n'
    elif [ -t 0 ] && command -v sudo > /dev/null; then
        root=sudo
    else
        echo "missing: $*; as root: apt-get install $*" >&2
        exit 2
    fi
    echo "installing Debian packages: $*"
    $root sh "$script" --packages "$@"
    python=$(find_python)
    if [ -z "$python" ]; then
        echo "Python 3.11 or later is needed, and this system has no package of it" >&2
        exit 2
    fi
}

# As root. Packages start their services when they are installed; a policy of 101 forbids that. What
# we install is not started at the next boot either: it would take the ports of the local cluster. A
# service that was there before is none of our business.
install_packages() {
    had_epmd=$(command -v epmd) || true
    if [ ! -e $policy ] || grep -qF "$policy_mark" $policy; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 130' INT TERM HUP
        printf '#!/bin/sh\n%s\nexit 101\n' "$policy_mark" > $policy
        chmod 755 $policy
    fi
    log=$(mktemp)
    if ! { apt_install "$@" || apt_again "$@"; } > "$log" 2>&1 < /dev/null; then
        echo "apt-get install $* failed:" >&2
        tail -n 5 "$log" >&2
        exit 1
    fi
    rm -f "$log"
    for package in "$@"; do
        case $package in
            rabbitmq-server)
                keep_off rabbitmq-server
                [ -n "$had_epmd" ] || keep_off epmd.service epmd.socket
                ;;
            haproxy | postgresql | redis-server | redis-sentinel) keep_off "$package" ;;
            mariadb-server) keep_off mariadb ;;
        esac
    done
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
}

# Lists that are missing or old, or an earlier installation that was interrupted.
apt_again() {
    dpkg --configure -a || true
    apt-get -q update
    apt_install "$@"
}

keep_off() {
    if command -v systemctl > /dev/null; then
        systemctl disable "$@" > /dev/null 2>&1 || true
    elif command -v update-rc.d > /dev/null; then
        update-rc.d "$1" disable > /dev/null 2>&1 || true
    fi
}

# Whatever python3 comes first on the path today: a .venv whose own has gone cannot be executed.
venv_stamp() {
    sha256sum < requirements.lock | cut -d ' ' -f 1
}

venv_is_current() {
    [ -x .venv/bin/python ] && [ "$(cat .venv/.stamp 2> /dev/null)" = "$(venv_stamp)" ]
}

# What builds the packages that come as source is pinned like all else; with build isolation pip would
# fetch its newest instead. The stamp comes last: a build that was interrupted has none and is begun
# anew.
build_venv() {
    echo "building .venv from requirements.lock"
    rm -rf .venv
    "$python" -m venv .venv
    pinned '(packaging|pbr|setuptools|wheel)' > .venv/build.lock
    pip_install --require-hashes --no-deps -r .venv/build.lock
    pip_install --require-hashes --no-build-isolation --use-pep517 -r requirements.lock
    install_package
    venv_stamp > .venv/.stamp
}

# Commands and plug-ins of the package are known by its installation only. A .venv that is a link is
# another checkout's, whose package stays.
package_is_current() {
    [ -L .venv ] || sha256sum --check --status .venv/.package 2> /dev/null
}

install_package() {
    pip_install --no-deps --no-build-isolation --editable .
    # The distributions beside it are imported from the checkout as they are.
    pwd > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
    sha256sum pyproject.toml > .venv/.package
}

# The lines of requirements.lock about packages whose whole name matches.
pinned() {
    awk -v start="^$1==" '$0 ~ start { on = 1 } on { print } on && !/\\$/ { on = 0 }' requirements.lock
}

pip_install() {
    .venv/bin/python -m pip --quiet --disable-pip-version-check --no-input install "$@"
}

# Packages that are not installed, of those named.
install_also() {
    python=$(find_python)
    # shellcheck disable=SC2046 # one word per package
    set -- $(for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || echo "$package"
    done)
    [ $# = 0 ] || install_as_root "$@"
}

if [ "${1:-}" = --packages ]; then
    shift
    install_packages "$@"
elif [ "${1:-}" = --also ]; then
    shift
    install_also "$@"
else
    main
fi
