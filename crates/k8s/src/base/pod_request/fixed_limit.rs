//! ClearML's images with a fixed limit, `clearml/fractional-gpu:u22-cu12.3-8gb`: the tag says how much GPU memory there is.

/// The images, as a regular expression for the API server (RE2): the repository, with or without a registry before it.
pub(crate) const IMAGES: &str =
    "^([^@]*/)?clearml/fractional-gpu:[A-Za-z0-9_.-]*-[1-9][0-9]{0,2}gb(@.*)?$";
const REPOSITORY: &str = "clearml/fractional-gpu";

/// MiB of GPU memory of the image; `None` for any other.
pub(super) fn limit(image: &str) -> Option<u64> {
    let tagged = image.split_once('@').map_or(image, |(tagged, _)| tagged);
    let (repository, tag) = tagged.rsplit_once(':')?;
    let before = repository.strip_suffix(REPOSITORY)?;
    let is_tag = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if !(before.is_empty() || before.ends_with('/')) || !tag.bytes().all(is_tag) {
        return None;
    }
    let (_, size) = tag.rsplit_once('-')?;
    let digits = size.strip_suffix("gb")?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let plain = plain && (1..=3).contains(&digits.len()) && !digits.starts_with('0');
    plain
        .then(|| digits.parse::<u64>().ok())
        .flatten()
        .map(|gib| gib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_repository_has_a_limit_and_its_tag_says_which() {
        for (image, gib) in [
            ("clearml/fractional-gpu:u22-cu12.3-8gb", 8),
            ("docker.io/clearml/fractional-gpu:u22-cu12.3-2gb", 2),
            (
                "registry.example:5000/mirror/clearml/fractional-gpu:u20-cu11.7-12gb",
                12,
            ),
            ("clearml/fractional-gpu:u22-cu12.3-4gb@sha256:0123", 4),
        ] {
            assert_eq!(limit(image), Some(gib << 10), "{image}");
        }
        for image in [
            "clearml/fractional-gpu",
            "clearml/fractional-gpu:latest",
            "clearml/fractional-gpu:u22-cu12.3-0gb",
            "clearml/fractional-gpu:u22-cu12.3-08gb",
            "clearml/fractional-gpu:u22-cu12.3-9999gb",
            "clearml/fractional-gpu:8gb",
            "notclearml/fractional-gpu:u22-cu12.3-8gb",
            "clearml/fractional-gpu-tools:u22-cu12.3-8gb",
            "other/image:u22-cu12.3-8gb",
            "clearml/fractional-gpu@sha256:clearml/fractional-gpu:a-8gb",
            "",
        ] {
            assert_eq!(limit(image), None, "{image}");
        }
    }
}
