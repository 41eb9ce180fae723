//! Account files of a submitter's container: the image's `/etc/passwd` and `/etc/group`, with the submitter added.
//!
//! Divvy mounts them, so that programs find the submitter's name. The engine does not read them: it looks groups up in
//! the image's own files, by name and by number alike. An image with a group named `1001` would give its number to
//! each user with the group 1001 (tried with Docker 20.10.24), so such an image is refused.

use std::path::Path;

use divvy_core::docker::submitter::GROUP;

use crate::host::account::UserAccount;

/// The two files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountFiles {
    pub passwd: Vec<u8>,
    pub group: Vec<u8>,
}

impl AccountFiles {
    /// The files of an image, with lines for the user and its groups where they have none.
    pub fn with_user(passwd: &[u8], group: &[u8], user: &UserAccount, home: &Path) -> Self {
        let mut files = Self {
            passwd: ended(passwd),
            group: ended(group),
        };
        if !has_number(passwd, user.uid) {
            let (name, uid, gid) = (&user.name, user.uid, user.gid);
            let line = format!("{name}:x:{uid}:{gid}::{}:/bin/sh\n", home.display());
            files.passwd.extend(line.into_bytes());
        }
        for one in &user.groups {
            // A group without a name would have its number as a name.
            if !has_number(group, one.gid) && one.name != one.gid.to_string() {
                let line = format!("{}:x:{}:\n", one.name, one.gid);
                files.group.extend(line.into_bytes());
            }
        }
        files
    }
}

/// The name of a group that is a number, and not the group's own.
pub fn numeric_group(group: &[u8]) -> Option<String> {
    lines(group).find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = String::from_utf8_lossy(fields.next()?).trim().to_owned();
        let number = fields.nth(1).map(String::from_utf8_lossy);
        let digits = name.trim_start_matches(['+', '-']);
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let is_own = number.is_some_and(|number| number.trim() == name);
        (is_number && !is_own).then_some(name)
    })
}

/// Why an image with such a group is refused.
pub fn numeric_group_refusal(image: &str, name: &str) -> String {
    format!(
        "the image {image} cannot run as its submitter: a group in its {GROUP} is named {name:?}, and the container \
         engine takes that for a number"
    )
}

fn has_number(file: &[u8], number: u32) -> bool {
    let number = number.to_string();
    lines(file).any(|line| line.split(|byte| *byte == b':').nth(2) == Some(number.as_bytes()))
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split(|byte| *byte == b'\n' || *byte == b'\r')
}

fn ended(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_owned();
    if file.last().is_some_and(|last| *last != b'\n') {
        file.push(b'\n');
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::account::Group;

    fn user() -> UserAccount {
        let group = |gid, name: &str| Group {
            gid,
            name: name.to_owned(),
        };
        UserAccount {
            uid: 1001,
            gid: 1002,
            name: "lee".to_owned(),
            groups: vec![group(1002, "lab"), group(100, "users"), group(77, "77")],
            home: None,
        }
    }

    fn added(passwd: &str, group: &str) -> (String, String) {
        let files = AccountFiles::with_user(
            passwd.as_bytes(),
            group.as_bytes(),
            &user(),
            Path::new("/home/lee"),
        );
        (
            String::from_utf8(files.passwd).unwrap(),
            String::from_utf8(files.group).unwrap(),
        )
    }

    #[test]
    fn the_submitter_is_added_where_the_image_does_not_know_the_numbers() {
        let (passwd, group) = added("root:x:0:0::/root:/bin/sh", "users:x:100:\n");
        assert_eq!(
            passwd,
            "root:x:0:0::/root:/bin/sh\nlee:x:1001:1002::/home/lee:/bin/sh\n"
        );
        assert_eq!(group, "users:x:100:\nlab:x:1002:\n");
        let known = "app:x:1001:0::/app:/bin/sh\n";
        assert_eq!(added(known, "").0, known);
        assert_eq!(added("", "").1, "lab:x:1002:\nusers:x:100:\n");
    }

    #[test]
    fn a_group_whose_name_is_another_number_is_found() {
        let of = |group: &str| numeric_group(group.as_bytes());
        for group in [
            "root:x:0:\n1001:x:42:\n",
            " 1001 :x:0:",
            "+1001:x:0:",
            "1001:x:0:\r\nroot:x:0:",
            "1001",
            "0999:x:999:",
            "-1:x:0:",
        ] {
            assert!(of(group).is_some(), "{group:?}");
        }
        for group in [
            "",
            "root:x:0:\nlab1:x:7:\n1a:x:8:",
            "1001:x:1001:",
            "#1:x:2:",
        ] {
            assert_eq!(of(group), None, "{group:?}");
        }
    }
}
