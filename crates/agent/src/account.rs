//! Users as the machine's user database has them: NSS, so that directory services count too.

use nix::unistd::{Gid, Group as Entry, Uid, User, getgrouplist};

/// A user, and the groups they are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    /// Their number where they have no name.
    pub name: String,
    pub groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub gid: u32,
    pub name: String,
}

impl Account {
    /// The user of this number, who calls with this group.
    pub fn of(uid: u32, gid: u32) -> Self {
        let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
        let mut gids = vec![gid];
        gids.extend(groups(uid, gid));
        gids.sort_unstable();
        gids.dedup();
        Self {
            uid,
            gid,
            name: user.map_or_else(|| uid.to_string(), |user| user.name),
            groups: gids.into_iter().map(Group::of).collect(),
        }
    }
}

impl Group {
    fn of(gid: u32) -> Self {
        let entry = Entry::from_gid(Gid::from_raw(gid)).ok().flatten();
        Self {
            gid,
            name: entry.map_or_else(|| gid.to_string(), |entry| entry.name),
        }
    }
}

/// The groups that a program of this user has: those of the database, and `gid`.
pub fn groups(uid: u32, gid: u32) -> Vec<u32> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    let name = user.and_then(|user| std::ffi::CString::new(user.name).ok());
    let listed = name.and_then(|name| getgrouplist(&name, Gid::from_raw(gid)).ok());
    listed.map_or_else(
        || vec![gid],
        |gids| gids.into_iter().map(Gid::as_raw).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_a_number_without_a_name_is_its_own() {
        let root = Account::of(0, 0);
        assert_eq!(root.name, "root");
        assert!(root.groups.iter().any(|group| group.gid == 0));
        let nobody = Account::of(3_999_999_999, 3_999_999_998);
        assert_eq!(nobody.name, "3999999999");
        assert_eq!(nobody.groups.len(), 1);
        assert_eq!(groups(3_999_999_999, 7), [7]);
    }
}
