//! The name of the user whose agent this is.

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

/// The names of a user's groups, by `/etc/passwd` and `/etc/group`; of this process's user also those that it has.
pub fn groups(user: &str) -> Vec<String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (passwd, group) = (read("/etc/passwd"), read("/etc/group"));
    let mut ids = Vec::new();
    if name() == user {
        let own = rustix::process::getgroups().unwrap_or_default();
        ids.extend(own.into_iter().map(|gid| gid.as_raw()));
        ids.push(rustix::process::getgid().as_raw());
    }
    groups_in(&passwd, &group, user, ids)
}

/// `ids`: of groups that are known to be the user's.
fn groups_in(passwd: &str, group: &str, user: &str, mut ids: Vec<u32>) -> Vec<String> {
    ids.extend(passwd.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let gid = fields.get(3)?.parse::<u32>().ok()?;
        (fields.first() == Some(&user)).then_some(gid)
    }));
    let named = group.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [group, _, id, members] = fields[..] else {
            return None;
        };
        let its = id.parse().is_ok_and(|id| ids.contains(&id))
            || members.split(',').any(|member| member == user);
        its.then(|| group.to_owned())
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_groups_are_the_first_one_and_those_that_list_it() {
        let passwd = "root:x:0:0::/:/bin/sh\nana:x:1000:100::/home/ana:/bin/sh\n";
        let group = "users:x:100:\nvision:x:200:lee,ana\nnlp:x:300:lee\nextra:x:400:\nodd\n";
        let of = |user: &str, ids: &[u32]| groups_in(passwd, group, user, ids.to_vec());
        assert_eq!(of("ana", &[]), ["users", "vision"]);
        assert_eq!(of("ana", &[400]), ["users", "vision", "extra"]);
        assert_eq!(of("lee", &[]), ["vision", "nlp"]);
        assert!(of("kim", &[]).is_empty());
    }

    #[test]
    fn a_user_is_found_by_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\n# odd line\nme:x:1000:1000::/home/me:/bin/sh\n";
        assert_eq!(find(passwd, 1000).as_deref(), Some("me"));
        assert_eq!(find(passwd, 7), None);
    }
}
