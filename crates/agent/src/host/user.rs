//! The user name of the daemon.

/// By `/etc/passwd`, else `$USER`, else the number.
pub fn name() -> String {
    let uid = rustix::process::getuid().as_raw();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    find(&passwd, uid)
        .or_else(|| std::env::var("USER").ok())
        .unwrap_or_else(|| uid.to_string())
}

fn find(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\n# odd line\nme:x:1000:1000::/home/me:/bin/sh\n";
        assert_eq!(find(passwd, 1000).as_deref(), Some("me"));
        assert_eq!(find(passwd, 7), None);
    }
}
