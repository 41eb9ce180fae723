# Fills $root with an overlay of this machine's root, the programs, the units and the checks (tests/systemd/boot.sh).
# Arguments: the folder of the programs, that of the units, the checks.
mkdir "$out/memory"
mount -t tmpfs -o size=1g tmpfs "$out/memory"
mkdir "$out/memory/upper" "$out/memory/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$out/memory/upper,workdir=$out/memory/work" "$root"
mkdir -p "$root/usr/lib/divvy"
cp "$1/divvy" "$root/usr/bin/divvy"
cp "$1"/libdivvy_*.so "$root/usr/lib/divvy/"
rm -rf "$system"
mkdir -p "$system/divvy.service.d"
cp "$2"/divvy*.service "$2"/divvy*.socket "$system/"
printf '[Service]\nEnvironment=DIVVY_SIM=a100-80gb:2\nRestartSec=50ms\n' >"$system/divvy.service.d/test.conf"
cp "$3" "$root/checks.sh"
