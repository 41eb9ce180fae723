# The root of the guide is a Debian with the package and the commands (tests/systemd/boot.sh). The machine has no GPU.
mount --bind "$root" "$root"
mkdir -p "$system/divvy.service.d"
printf '[Service]\nEnvironment=DIVVY_SIM=a100-80gb:8\n' >"$system/divvy.service.d/simulated.conf"
