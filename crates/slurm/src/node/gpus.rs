//! The driver's GPUs by the number of their device file: `/proc/driver/nvidia/gpus/BUS/information`.

use std::fs;
use std::path::Path;

const FOLDER: &str = "/proc/driver/nvidia/gpus";

/// UUID of the GPU with this device file, `/dev/nvidia3`.
///
/// # Errors
/// In words, when the driver has no such GPU.
pub fn uuid_of(minor: u32) -> Result<String, String> {
    uuid_in(Path::new(FOLDER), minor)
}

fn uuid_in(folder: &Path, minor: u32) -> Result<String, String> {
    let gpus = fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = gpus.filter_map(|gpu| fs::read_to_string(gpu.path().join("information")).ok());
    let mut found = texts.filter_map(|text| {
        let field = |name: &str| {
            let mut lines = text.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.trim().strip_prefix(':'))?;
            Some(value.trim().to_owned())
        };
        (field("Device Minor")?.parse() == Ok(minor)).then(|| field("GPU UUID"))?
    });
    found.next().ok_or_else(|| {
        format!(
            "gres.conf names /dev/nvidia{minor}, and the driver has no GPU with this file ({})",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_found_by_the_number_of_its_device_file() {
        let folder = tempfile::tempdir().unwrap();
        for (bus, minor, uuid) in [("0000:07:00.0", 1, "GPU-b"), ("0000:0f:00.0", 0, "GPU-a")] {
            let gpu = folder.path().join(bus);
            fs::create_dir(&gpu).unwrap();
            let text = format!(
                "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 30\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
            );
            fs::write(gpu.join("information"), text).unwrap();
        }
        assert_eq!(uuid_in(folder.path(), 0).unwrap(), "GPU-a");
        assert_eq!(uuid_in(folder.path(), 1).unwrap(), "GPU-b");
        let error = uuid_in(folder.path(), 2).unwrap_err();
        assert!(error.contains("/dev/nvidia2"), "{error}");
    }
}
