#!/bin/sh
# Makes the Debian package: package.sh VENV FOLDER-OF-THIS-FILE OUT
set -eu
venv=$1 here=$2 out=$3
tree=$(mktemp -d)
version=$("$venv/bin/python" -c 'from importlib.metadata import version; print(version("messagebus-rabbitmq"))')
# The environment works with the Python that made it, and no other.
python=$("$venv/bin/python" -c 'import sys; print(f"3.{sys.version_info.minor}")')
mkdir -p "$tree/DEBIAN" "$tree/opt" "$tree/lib/systemd/system" "$tree/usr/bin" "$tree/etc/messagebus" "$out"
cp -a "$venv" "$tree/opt/messagebus"
find "$tree/opt" -name __pycache__ -prune -exec rm -rf {} +
cp -r "$here"/*.service "$here"/*.service.d "$tree/lib/systemd/system/"
ln -s /opt/messagebus/bin/messagebus "$tree/usr/bin/messagebus"
install -m 755 "$here/postinst" "$here/prerm" "$tree/DEBIAN/"
cat > "$tree/DEBIAN/control" <<END
Package: messagebus
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: The messagebus project <messagebus@example.org>
Depends: python$python, adduser
Section: net
Priority: optional
Description: agent, gateway, monitor and commands of messagebus
 Publish to any RabbitMQ broker, consume from all of them. Nothing is started:
 systemctl enable --now messagebus@agent, @gateway or @monitor does, once
 /etc/messagebus has its file of settings.
END
chmod -R u=rwX,go=rX "$tree"
dpkg-deb --root-owner-group --build "$tree" "$out" >&2
rm -rf "$tree"
