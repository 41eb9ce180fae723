//! The address of the page, and the line that brings it to a laptop.

use std::fs;

use serde::Serialize;

/// What `divvy web` prints.
#[derive(Clone, Debug, Serialize)]
pub struct WebAddress {
    /// With the token behind `#`, which a browser sends to no server.
    pub url: String,
    pub port: u16,
    pub token: String,
    /// Command for a laptop: it makes the port of the same number there.
    pub ssh: String,
    /// Whether the page may change jobs.
    pub actions: bool,
}

impl WebAddress {
    pub fn new(port: u16, token: String, actions: bool) -> Self {
        let name = |path: &str| {
            fs::read_to_string(path)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let host = match name("/proc/sys/kernel/hostname") {
            host if host.is_empty() => "HOST".to_owned(),
            host => host,
        };
        let user = ["USER", "LOGNAME"]
            .iter()
            .find_map(|name| std::env::var(name).ok());
        Self {
            url: format!("http://127.0.0.1:{port}/#{token}"),
            port,
            token,
            ssh: ssh_line(port, user.as_deref(), &host),
            actions,
        }
    }
}

/// `ssh -N -L 8080:127.0.0.1:8080 ana@lab1`
fn ssh_line(port: u16, user: Option<&str>, host: &str) -> String {
    // A name that a shell would take apart is none that ssh takes.
    let is_plain = |name: &&str| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !name.is_empty() && !name.starts_with('-') && name.bytes().all(is_of_name)
    };
    let user = user
        .filter(is_plain)
        .map_or_else(String::new, |user| format!("{user}@"));
    let host = Some(host).filter(is_plain).unwrap_or("HOST");
    format!("ssh -N -L {port}:127.0.0.1:{port} {user}{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_for_a_laptop_is_one_that_a_shell_takes() {
        for (user, host, line) in [
            (Some("ana"), "lab1", "ana@lab1"),
            (None, "lab1.example", "lab1.example"),
            (Some("a b"), "lab1", "lab1"),
            (Some("$(id)"), "lab1", "lab1"),
            (Some("-oProxyCommand=x"), "lab1", "lab1"),
            (Some("ana"), "-oProxyCommand=x", "ana@HOST"),
            (Some("ana"), "", "ana@HOST"),
        ] {
            assert_eq!(
                ssh_line(8080, user, host),
                format!("ssh -N -L 8080:127.0.0.1:8080 {line}")
            );
        }
    }

    #[test]
    fn the_token_is_behind_the_sign_that_no_server_sees() {
        let address = WebAddress::new(8080, "secret".into(), false);
        assert_eq!(address.url, "http://127.0.0.1:8080/#secret");
        assert!(!address.ssh.contains("secret"));
    }
}
