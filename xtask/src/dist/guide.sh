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
    # Folders that it makes are for all users.
    "divvy admin") (umask 077 && "$@") ;;
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
# Each user can read the message, and its commands work.
[ "$(stat -c %a /etc/motd.d)" = 755 ] || fail "users cannot read the message"
for user in ben kim; do
    sed -n 's/^  \(divvy .*\) -- .*/\1 -- true/p' /etc/motd.d/divvy >/tmp/commands
    [ "$(wc -l </tmp/commands)" = 2 ] || fail "the message has other commands"
    (cd /tmp && runuser -u "$user" -- sh -e /tmp/commands)
done
# What does not exist is a warning.
cp /etc/divvy/config.toml /root/correct.toml
sed -i 's/"@vision"\]/"@vision", "@visoin"]/' /etc/divvy/config.toml
divvy config check 2>&1 | grep 'config.toml:[0-9]*:[0-9]*: projects.vision.members: the user database has no group visoin'
divvy config reload 2>&1 | grep 'no group visoin'
env DIVVY_SIM=a100-80gb:8 divvy doctor | grep 'no group visoin'
cp /root/correct.toml /etc/divvy/config.toml
divvy config reload
# A folder in which users can replace the file.
chmod 777 /etc/divvy
if divvy config reload; then fail "a file was loaded from a folder of all users"; fi
chmod 755 /etc/divvy
# A unit of an earlier time.
cp /usr/lib/systemd/system/divvy.service /etc/systemd/system/
apt-get install --reinstall --yes /root/divvy_*.deb 2>&1 | grep 'rm /etc/systemd/system/divvy.service && '
env DIVVY_SIM=a100-80gb:8 divvy doctor | grep '/etc/systemd/system/divvy.service hides'
rm /etc/systemd/system/divvy.service
systemctl daemon-reload
systemctl restart divvy
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
# An upgrade with it.
daemon=$(systemctl show -p MainPID --value divvy)
apt-get install --reinstall --yes /root/divvy_*.deb 2>&1 | grep 'the daemon of the former version serves on'
[ "$(systemctl show -p MainPID --value divvy)" = "$daemon" ] || fail "the upgrade stopped the daemon"
divvy queues | grep quarter
sed -i '$d' /etc/divvy/config.toml
# An upgrade with a drop-in that has a flag of a former version.
printf '[Service]\nExecStart=\nExecStart=/usr/bin/divvy daemon --system --grace 30s\n' >/etc/systemd/system/divvy.service.d/flags.conf
systemctl daemon-reload
apt-get install --reinstall --yes /root/divvy_*.deb >/tmp/upgrade 2>&1
grep -e '--grace is the key grace of the file' /tmp/upgrade
grep 'the daemon of the former version serves on' /tmp/upgrade
[ "$(systemctl show -p MainPID --value divvy)" = "$daemon" ] || fail "the upgrade stopped the daemon"
rm /etc/systemd/system/divvy.service.d/flags.conf
systemctl daemon-reload
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
for left in /usr/bin/divvy /usr/lib/divvy /var/lib/divvy /run/divvy /etc/divvy /etc/motd.d/divvy; do
    [ ! -e "$left" ] || fail "$left is left"
done
