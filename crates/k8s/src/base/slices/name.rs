//! Device names: the same GPU or MIG placement always has the same name, independent of its index and its content.
//!
//! A name is what a claim's allocation says, for as long as the claim lives, over restarts of the machine too: a GPU's number
//! changes when another one is lost, its UUID does not.

use divvy_core::mig::{Attribute, MigProfile};

/// Names are DNS labels.
pub(super) const LONGEST: usize = 63;

/// `gpu-1c0e5a7b-6d0f-4c1e-9a35-0f2b8f6f4e51`. `None` for a UUID that is no part of a DNS label, which NVIDIA's are.
pub(super) fn gpu(uuid: &str) -> Option<String> {
    let bare = uuid.strip_prefix("GPU-").unwrap_or(uuid);
    let name = format!("gpu-{}", bare.to_ascii_lowercase());
    let fits = name
        .bytes()
        .all(|byte| byte == b'-' || byte.is_ascii_alphanumeric());
    (fits && name.len() <= LONGEST && !name.ends_with('-')).then_some(name)
}

/// `GPU-mig-1g-10gb-3`, after the GPU's own.
pub(super) fn place(gpu: &str, profile: MigProfile, start: u8) -> String {
    format!("{gpu}-mig-{}-{start}", profile_slug(profile))
}

/// A profile's name as part of a name: `1g-10gb`, `1g-24gb-me-all`. Shorter than that of a class, for the UUID stands before it.
pub(super) fn profile_slug(profile: MigProfile) -> String {
    let attribute = profile.attribute();
    let name = profile.to_string();
    let plain = name.strip_suffix(attribute.suffix()).unwrap_or(&name);
    let after = match attribute {
        Attribute::None => "",
        Attribute::Media => "-me",
        Attribute::Graphics => "-gfx",
        Attribute::AllMedia => "-me-all",
        Attribute::NoMedia => "-no-me",
    };
    format!("{}{after}", plain.replace('.', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_place_of_every_gpu_has_a_name_of_its_own_that_is_a_label() {
        let gpu = gpu("GPU-1C0E5A7B-6d0f-4c1e-9a35-0f2b8f6f4e51").unwrap();
        assert_eq!(gpu, "gpu-1c0e5a7b-6d0f-4c1e-9a35-0f2b8f6f4e51");
        for model in divvy_core::mig::models() {
            let mut names = std::collections::BTreeSet::new();
            for profile in &model.table.profiles {
                for start in &profile.starts {
                    let name = place(&gpu, profile.name, *start);
                    assert!(name.len() <= LONGEST, "{name}");
                    assert!(names.insert(name), "{} of {}", profile.name, model.key);
                }
            }
        }
    }

    #[test]
    fn what_would_be_no_label_is_none() {
        let long = "a".repeat(60);
        for uuid in ["GPU-", "GPU-a_b", "GPU-a b", "GPU-ä", &long] {
            assert_eq!(gpu(uuid), None, "{uuid}");
        }
    }
}
