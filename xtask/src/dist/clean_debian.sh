#!/bin/sh
# In a clean Debian root: installs /tmp/one.deb, runs jobs, upgrades to /tmp/two.deb while a job runs, removes and purges.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C HOME=/root

timed() {
    begin=$(date +%s%N)
    "$@" >/tmp/log 2>&1 || {
        cat /tmp/log
        exit 1
    }
    echo "$1 $2: $((($(date +%s%N) - begin) / 1000000)) ms"
}

timed dpkg --install /tmp/one.deb
divvy run --sim a100-80gb:1 -g 0.5 -- true
divvy submit --sim a100-80gb:1 -g 0.5 --name long -- sh -c 'until test -e /tmp/go; do sleep 0.1; done; exit 7'
until divvy ps | grep -qi 'running'; do sleep 0.1; done

timed dpkg --install /tmp/two.deb
dpkg --status divvy | grep '^Version'
divvy daemon --stop
touch /tmp/go
divvy daemon --sim a100-80gb:1 --detached
code=0
divvy wait long || code=$?
echo "the job of the first version ended with $code"
test "$code" = 7
divvy run --sim a100-80gb:1 -g 0.5 -- true
divvy daemon --stop

# What the system's daemon and an administrator leave.
mkdir -p /var/lib/divvy /run/divvy /etc/divvy
touch /var/lib/divvy/state.db /etc/divvy/config.toml
timed dpkg --remove divvy
test -e /var/lib/divvy/state.db
test -e /etc/divvy/config.toml
timed dpkg --purge divvy
rm -rf /root/.local /tmp/* /dev/shm/divvy-0
