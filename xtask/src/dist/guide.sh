# The commands of docs/admin.md in a clean Debian under systemd. The first that fails ends it; /results/end has its code.
trap 'echo $? >/results/end' EXIT
set -eu
# Where the administrator has put the package.
cd /root
export HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
touch /results/booted
ip link set lo up 2>/dev/null || true
groupadd vision
groupadd nlp
for user in ana ben cleo dan eva finn gina hugo ida jan kim lea; do
    group=vision
    case $user in [g-l]*) group=nlp ;; esac
    useradd --create-home --gid "$group" "$user"
done

step() {
    echo "+ $*"
    case "$1 ${2-}" in
    # Only these two look at the GPUs themselves.
    "divvy doctor" | "divvy selftest") env DIVVY_SIM=a100-80gb:8 "$@" ;;
    *) "$@" ;;
    esac
}
#COMMANDS#

fail() {
    echo "FAILED: $*"
    exit 1
}
systemctl is-active divvy
systemctl is-enabled divvy
divvy projects | grep vision
grep 'divvy submit' /etc/motd.d/divvy
# A user of a named project, one of the default project, and one that may not. Users cannot enter root's home.
cd /tmp
runuser -u cleo -- divvy run -q half -p vision -- true
runuser -u kim -- divvy run -q half -- true
if runuser -u kim -- divvy run -q half -p vision -- true; then fail "kim is no member of vision"; fi
# A change, and a broken one.
sed -i 's/half=0.5/quarter=0.25/' /etc/divvy/config.toml
divvy config check
systemctl reload divvy
divvy queues | grep quarter
echo 'grase = "1s"' >>/etc/divvy/config.toml
if systemctl reload divvy; then fail "a broken file was loaded"; fi
divvy queues | grep quarter
sed -i '$d' /etc/divvy/config.toml
# An upgrade while jobs of users run.
jobs=
for user in ana ben cleo dan eva finn gina hugo ida jan kim lea; do
    id=$(runuser -u "$user" -- divvy submit --parsable -g 0.25 -- sh -c 'sleep 3; exit 7')
    jobs="$jobs $user:$id"
done
daemon=$(systemctl show -p MainPID --value divvy)
apt-get install --reinstall --yes /root/divvy_*.deb
[ "$(systemctl show -p MainPID --value divvy)" != "$daemon" ] || fail "the upgrade did not restart the daemon"
for job in $jobs; do
    code=0
    runuser -u "${job%:*}" -- divvy wait "${job#*:}" || code=$?
    [ "$code" = 7 ] || fail "job ${job#*:} of ${job%:*} ended with $code"
done
divvy admin journal copy --system
# The uninstallation.
systemctl disable --now divvy
apt-get purge --yes divvy
for left in /usr/bin/divvy /usr/lib/divvy /var/lib/divvy /run/divvy /etc/divvy; do
    [ ! -e "$left" ] || fail "$left is left"
done
