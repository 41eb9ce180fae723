# Boots systemd as PID 1 of its own namespaces over an overlay of this machine's root, and runs checks.sh there.
# Arguments: a folder for results, the folder of the programs, that of the units, that of the checks, the root of cgroup v2.
set -eu
out=$1 programs=$2 units=$3 checks=$4 cgroups=$5
if [ "${6-}" != inside ]; then
    group=$cgroups/divvy-test-systemd-$$
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
    exec unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child --propagation private \
        sh "$0" "$out" "$programs" "$units" "$checks" "$cgroups" inside
fi
mkdir "$out/memory"
mount -t tmpfs -o size=1g tmpfs "$out/memory"
root=$out/memory/root
mkdir "$out/memory/upper" "$out/memory/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$out/memory/upper,workdir=$out/memory/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in dev run tmp; do mount -t tmpfs -o mode=755 tmpfs "$root/$folder"; done
for node in null zero full random urandom tty; do
    mknod -m 666 "$root/dev/$node" c $(stat -c '%Hr %Lr' "/dev/$node")
done
mkdir "$root/dev/pts" "$root/dev/shm"
chmod 1777 "$root/tmp"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mkdir -p "$root/usr/lib/divvy" "$root/results"
cp "$programs/divvy" "$root/usr/bin/divvy"
cp "$programs"/libdivvy_*.so "$root/usr/lib/divvy/"
cp "$checks" "$root/checks.sh"
system=$root/etc/systemd/system
rm -rf "$system" "$root/etc/fstab"
mkdir -p "$system/divvy.service.d" "$system/multi-user.target.wants"
cp "$units"/divvy*.service "$units"/divvy*.socket "$system/"
printf '[Service]\nEnvironment=DIVVY_SIM=a100-80gb:2\nRestartSec=50ms\n' >"$system/divvy.service.d/test.conf"
# What a container has no use for.
for unit in systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket \
    systemd-udevd-kernel.socket systemd-logind.service systemd-timesyncd.service systemd-sysctl.service \
    systemd-modules-load.service systemd-remount-fs.service systemd-random-seed.service systemd-resolved.service \
    systemd-networkd.service getty.target systemd-update-utmp.service; do
    ln -sf /dev/null "$system/$unit"
done
ln -s /lib/systemd/system/multi-user.target "$system/default.target"
printf '[Service]\nType=oneshot\nExecStart=/bin/sh /checks.sh\nStandardOutput=file:/results/log\nStandardError=file:/results/log\nTimeoutStartSec=infinity\n' \
    >"$system/checks.service"
ln -s ../checks.service "$system/multi-user.target.wants/checks.service"
mount --bind "$out" "$root/results"
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
export container=divvy-test
exec /lib/systemd/systemd --log-target=null --show-status=false >/dev/null 2>&1 </dev/null
