# Boots systemd as PID 1 of namespaces of its own, with a folder as its root, and runs /checks.sh there as a service.
# Arguments: the folder, a folder for results (/results in the root), the root of cgroup v2, a script that fills the folder, and
# the arguments of that script. It is sourced in the namespaces, with $root and $out, and puts /checks.sh there.
# /checks.sh makes /results/booted when it starts, and writes its exit code into /results/end. /results/log has its output.
set -eu
root=$1 out=$2 cgroups=$3 fill=$4
if [ "${IN_NAMESPACES-}" != yes ]; then
    group=$cgroups/divvy-test-systemd-$$
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
    IN_NAMESPACES=yes exec unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child --propagation private \
        sh "$0" "$@"
fi
shift 4
system=$root/etc/systemd/system
. "$fill"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in dev run tmp; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
for node in null zero full random urandom tty; do
    mknod -m 666 "$root/dev/$node" c $(stat -c '%Hr %Lr' "/dev/$node")
done
mkdir "$root/dev/pts" "$root/dev/shm"
chmod 1777 "$root/tmp" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
rm -f "$root/etc/fstab"
mkdir -p "$system/multi-user.target.wants" "$root/results" "$root/old"
# What a container has no use for.
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket \
    systemd-udevd-kernel.socket systemd-logind.service systemd-timesyncd.service systemd-sysctl.service \
    systemd-modules-load.service systemd-remount-fs.service systemd-random-seed.service systemd-resolved.service \
    systemd-networkd.service getty.target systemd-update-utmp.service; do
    ln -sf /dev/null "$system/$unit"
done
ln -sf /lib/systemd/system/multi-user.target "$system/default.target"
printf '[Service]\nType=oneshot\nExecStart=/bin/sh /checks.sh\nStandardOutput=file:/results/log\nStandardError=file:/results/log\nTimeoutStartSec=infinity\n' \
    >"$system/checks.service"
ln -s ../checks.service "$system/multi-user.target.wants/checks.service"
mount --bind "$out" "$root/results"
cd "$root"
pivot_root . old
umount -l /old
export container=divvy-test
exec /lib/systemd/systemd --log-target=null --show-status=false >/dev/null 2>&1 </dev/null
