# A placeholder for your own program.
if command -v nvidia-smi > /dev/null; then
    exec nvidia-smi
fi
exec divvy --version
