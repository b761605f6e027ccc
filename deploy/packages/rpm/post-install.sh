# $1 is how many versions are installed now: 1 at an installation, 2 at an upgrade.
systemd-sysusers forebay.conf
systemd-tmpfiles --create forebay.conf || :
# Not a file of the package: an upgrade leaves it as it is.
if [ ! -e /etc/forebay/forebay.toml ]; then
    install -D -m 0644 /usr/share/forebay/forebay.toml /etc/forebay/forebay.toml
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    if [ "$1" -ge 2 ]; then
        # Mounts go on with the program that they have, since what is open in them would end with it.
        systemctl try-restart forebay-worker.service forebay-coordinator.service || :
    fi
fi
