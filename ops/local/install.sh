#!/bin/sh
# Install what is missing of what a command needs, and show what is being done. Says nothing when
# nothing is missing. Exit code 2, with one line and nothing done, when that needs root and there is no
# way to it.
#
#   ops/local/install.sh PART...
#
#   build    .venv with what builds our wheel: needs a Python 3.11 or later and nothing else
#   ops      .venv with what a local cluster and the playbooks need
#   python   .venv with all of requirements.lock but Spark
#   spark    .venv with PySpark, and Java 17
#   brokers  RabbitMQ and HAProxy; not where $MESSAGEBUS_LOCAL_ROOT has them
#   another  word is the name of a Debian package
set -eu
script=$(readlink -f "$0")
cd "${script%/ops/local/install.sh}"

policy=/usr/sbin/policy-rc.d
policy_mark='# made by messagebus for the time of one installation'

main() {
    python=$(find_python)
    # shellcheck disable=SC2046 # one word per package
    missing=$(missing_packages "$@")
    # shellcheck disable=SC2086
    [ -z "$missing" ] || install_as_root $missing
    parts=$(parts_of "$@")
    [ -n "$parts" ] || return 0
    # Two of us at once: the second waits here and finds the work done.
    exec 9< .
    flock 9
    # shellcheck disable=SC2086
    has_parts $parts || add_parts $parts
    [ "$parts" = build ] || package_is_current || install_package
}

# The parts of requirements.lock among these words.
parts_of() {
    for word in "$@"; do
        case $word in build | ops | python | spark) printf '%s ' "$word" ;; esac
    done | sed 's/ $//'
}

# Python 3.11 or later, but never the one of the .venv that we may be about to remove.
find_python() {
    # An activated .venv comes first on the path, and would hide the system's.
    PATH=$(echo "$PATH" | sed "s#$(pwd)/.venv/bin:##g")
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
    if [ -n "$(parts_of "$@")" ]; then
        [ -n "$python" ] || echo python3
        venv_is_current || "${python:-false}" -c 'import ensurepip, venv' 2> /dev/null || echo python3-venv
    fi
    for word in "$@"; do
        case $word in
            build | ops | python) ;;
            spark)
                java=$(java_version)
                [ "${java:-0}" -ge 17 ] || echo openjdk-17-jre-headless
                ;;
            brokers)
                root=${MESSAGEBUS_LOCAL_ROOT:-}
                [ -x "$root/usr/lib/rabbitmq/bin/rabbitmq-server" ] || echo rabbitmq-server
                [ -x "$root/usr/sbin/haproxy" ] || echo haproxy
                ;;
            *) dpkg-query -W -f '${Status}' "$word" 2> /dev/null | grep -q 'ok installed' || echo "$word" ;;
        esac
    done
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
        echo "missing: $*. Ask the administrator for: apt-get install --no-install-recommends $*." \
            "Without root: docs/operations/without-root.md" >&2
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
    watched apt_install "$@" 2> /dev/null || watched apt_again "$@"
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

# Run a command with its last line of output and the seconds shown: on a terminal as one line that
# moves, else a line each five seconds. Where it fails, the end of its output is shown.
watched() {
    log=$(mktemp)
    began=$(date +%s)
    "$@" > "$log" 2>&1 < /dev/null &
    job=$!
    trap 'kill $job 2> /dev/null; exit 130' INT TERM HUP
    turn=0
    while kill -0 "$job" 2> /dev/null; do
        sleep 0.5
        turn=$((turn + 1))
        line=$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-90)
        if [ -t 1 ]; then
            printf '\r\033[K%4d s  %s' $(($(date +%s) - began)) "$line"
        elif [ $((turn % 10)) = 0 ]; then
            printf '%4d s  %s\n' $(($(date +%s) - began)) "$line"
        fi
    done
    [ ! -t 1 ] || printf '\r\033[K'
    status=0
    wait "$job" || status=$?
    job=
    [ $status = 0 ] || { echo "failed: $*"; tail -n 8 "$log"; } >&2
    rm -f "$log"
    return $status
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

# `python` includes `build` and `ops`, and `ops` includes `build`.
has_parts() {
    venv_is_current || return 1
    there=" $(cat .venv/.parts 2> /dev/null | tr '\n' ' ') "
    for part in "$@"; do
        case "$part $there" in
            *" $part "* | "ops "*" python "* | "build "*" python "* | "build "*" ops "*) ;;
            *) return 1 ;;
        esac
    done
}

# What builds the packages that come as source is pinned like all else; with build isolation pip would
# fetch its newest instead. There is no stamp meanwhile: what is interrupted is begun anew.
add_parts() {
    venv_is_current || { rm -rf .venv && "$python" -m venv .venv; }
    rm -f .venv/.stamp
    for part in build $(echo "$@" | sed 's/build//'); do
        "$python" -m ops.locked "$part" > .venv/part.lock
        echo "$part: $(grep -c == .venv/part.lock) Python packages of requirements.lock, into .venv"
        watched pip_install --require-hashes --no-deps --no-build-isolation --use-pep517 \
            -r .venv/part.lock
        echo "$part" >> .venv/.parts
    done
    venv_stamp > .venv/.stamp
}

# Commands and plug-ins of the package are known by its installation only. A .venv that is a link is
# another checkout's, whose package stays.
package_is_current() {
    [ -L .venv ] || sha256sum --check --status .venv/.package 2> /dev/null
}

install_package() {
    pip_install --quiet --no-deps --no-build-isolation --editable .
    # Kits are imported from the checkout, whatever folder a command runs in.
    pwd > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/checkout.pth"
    sha256sum pyproject.toml > .venv/.package
}

pip_install() {
    .venv/bin/python -m pip --disable-pip-version-check --no-input install --progress-bar off "$@"
}

if [ "${1:-}" = --packages ]; then
    shift
    install_packages "$@"
else
    main "$@"
fi
