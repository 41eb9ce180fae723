//! Versions: of this program, and of the HTTP API. Each answer of a daemon names both.

/// Version of the HTTP API: the number in `/v1`.
pub const API: u32 = 1;

/// Header of each answer: `0.1.0+1a2b3c4 (protocol 1)`.
pub const HEADER: &str = "divvy-version";

/// Returns the version of this program, with the commit that it was built from where the build named one in
/// `DIVVY_COMMIT`: `0.1.0+1a2b3c4`.
pub fn program() -> String {
    let package = env!("CARGO_PKG_VERSION");
    match option_env!("DIVVY_COMMIT") {
        Some(commit) if !commit.is_empty() => format!("{package}+{commit}"),
        _ => package.to_owned(),
    }
}

/// Returns the value of [`HEADER`] of this program.
pub fn described() -> String {
    format!("{} (protocol {API})", program())
}

/// Names both versions, if the daemon's differs from this program's. `daemon`: the value of [`HEADER`]; daemons before
/// 0.1.0+ did not send it.
pub fn difference(daemon: Option<&str>) -> Option<String> {
    let ours = described();
    match daemon {
        Some(daemon) if daemon == ours => None,
        Some(daemon) => Some(format!("this divvy is {ours}, the daemon is {daemon}")),
        None => Some(format!(
            "this divvy is {ours}, the daemon is an earlier build that does not name its version"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_version_is_named() {
        assert_eq!(difference(Some(&described())), None);
        let other = difference(Some("9.9.9 (protocol 2)")).unwrap();
        assert_eq!(
            other,
            format!(
                "this divvy is {}, the daemon is 9.9.9 (protocol 2)",
                described()
            )
        );
        assert!(difference(None).unwrap().contains("earlier build"));
    }
}
