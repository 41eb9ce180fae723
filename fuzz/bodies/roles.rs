//! The file that gives roles: any text is read or refused with a hint, whatever it says root and the daemon's own user are admins, and
//! a user on its lists has the highest role that they give.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use divvy_agent::{ContainerAccess, Group, Role, Rules, UserAccount};

use super::input::Input;
use super::text::text;

const PIECES: &[&str] = &[
    "admin",
    "operator",
    "user",
    "viewer",
    "others",
    "commands",
    "containers",
    " = ",
    "=",
    "[",
    "]",
    "\"",
    "'",
    ",",
    "\n",
    "\r\n",
    " ",
    "#",
    "@",
    ".",
    "{",
    "}",
    "[admin]",
    "[[admin]]",
    "[\"ana\"]",
    "[\"@wheel\", 1002]",
    "\"none\"",
    "\"user\"",
    "\"all\"",
    "\"\"",
    "\"@\"",
    "\"\"\"",
    "'''",
    "\\",
    "\\u0000",
    "0",
    "1002",
    "-1",
    "4294967296",
    "0x3ea",
    "1_002",
    "1e3",
    "true",
    "1979-05-27",
    "ü",
    "\u{0}",
    "\u{feff}",
];

/// The lists, the highest first.
const LISTS: [(&str, Role); 4] = [
    ("admin", Role::Admin),
    ("operator", Role::Operator),
    ("user", Role::User),
    ("viewer", Role::Viewer),
];

const OTHERS: [(&str, Option<Role>); 5] = [
    ("none", None),
    ("viewer", Some(Role::Viewer)),
    ("user", Some(Role::User)),
    ("operator", Some(Role::Operator)),
    ("admin", Some(Role::Admin)),
];

/// An entry of a list, as TOML has it.
const WHO: [&str; 8] = [
    "\"ana\"",
    "'lee'",
    "\"@wheel\"",
    "\"@2001\"",
    "1001",
    "1002",
    "\"wheel\"",
    "\"1001\"",
];

/// The number of no user here, so that none is an admin as the daemon's user.
const STRANGER: u32 = 4_000_000_000;

fn accounts() -> [UserAccount; 4] {
    let account = |uid, name: &str, gid, group: &str| UserAccount {
        uid,
        gid,
        name: name.into(),
        groups: vec![Group {
            gid,
            name: group.into(),
        }],
        home: None,
    };
    [
        account(1001, "ana", 2000, "wheel"),
        account(1002, "lee", 2001, "lab"),
        account(1003, "wheel", 2002, "users"),
        account(1004, "1001", 2003, "ana"),
    ]
}

/// Whether what is written at this place of [`WHO`] means the user.
fn means(who: usize, account: &UserAccount) -> bool {
    let group = &account.groups[0];
    match who {
        0 => account.name == "ana",
        1 => account.name == "lee",
        2 => group.name == "wheel",
        3 => group.gid == 2001,
        4 => account.uid == 1001,
        5 => account.uid == 1002,
        6 => account.name == "wheel",
        _ => account.name == "1001",
    }
}

/// Reads texts as the file at `path`.
pub fn run(data: &[u8], path: &Path) {
    let mut input = Input::new(data);
    while !input.is_empty() {
        match input.byte() & 1 {
            0 => anything(&mut input, path),
            _ => lists(&mut input, path),
        }
    }
}

/// Writes a file that no other user may write, and returns its owner.
fn write(path: &Path, text: &str) -> u32 {
    fs::write(path, text).expect("a file of ours can be written");
    let mode = PermissionsExt::from_mode(0o600);
    fs::set_permissions(path, mode).expect("it is ours");
    fs::metadata(path).expect("it was written").uid()
}

fn anything(input: &mut Input<'_>, path: &Path) {
    let mut file = String::new();
    for _ in 0..=input.below(4) {
        file += &text(input, PIECES);
        file.push('\n');
    }
    let me = write(path, &file);
    match Rules::read(path, me) {
        Ok(rules) => {
            for uid in [0, me] {
                let account = UserAccount {
                    uid,
                    ..accounts()[0].clone()
                };
                assert_eq!(rules.role(&account), Some(Role::Admin), "{file:?}");
            }
            for account in accounts() {
                let role = rules.role(&account);
                assert_eq!(rules.caller(account).ok().map(|caller| caller.role), role);
            }
        }
        Err(error) => {
            let told = divvy_api::v1::Error::from(&error);
            assert!(told.message.contains(&*path.to_string_lossy()), "{told:?}");
            assert!(told.hint.is_some());
        }
    }
}

/// A file that is one, with what it says worked out besides.
fn lists(input: &mut Input<'_>, path: &Path) {
    let mut lines = Vec::new();
    let mut given: [Vec<usize>; 4] = Default::default();
    for (list, (name, _)) in given.iter_mut().zip(LISTS) {
        *list = (0..input.below(4))
            .map(|_| input.below(WHO.len() as u64) as usize)
            .collect();
        let who: Vec<&str> = list.iter().map(|at| WHO[*at]).collect();
        // An empty list and none are the same.
        if !list.is_empty() || input.byte() & 1 == 0 {
            lines.push(format!("{name} = [{}]", who.join(", ")));
        }
    }
    let (word, others) = OTHERS[input.below(5) as usize];
    lines.push(format!("others = \"{word}\""));
    let least = LISTS[input.below(4) as usize];
    let as_submitter = input.byte() & 1 == 1;
    lines.push(if as_submitter {
        format!(
            "containers = {{ role = '{}', as = 'submitter', mounts = ['/data'] }}",
            least.0
        )
    } else {
        format!("containers = '{}'", least.0)
    });
    let sees_all = input.byte() & 1 == 1;
    if sees_all {
        lines.push("commands = \"all\" # all".into());
    }
    let turn = input.below(lines.len() as u64) as usize;
    lines.rotate_left(turn);
    let file = lines.join("\n");
    let rules =
        Rules::read(path, write(path, &file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    for account in accounts() {
        let is_on = |list: &Vec<usize>| list.iter().any(|who| means(*who, &account));
        let named = given.iter().position(is_on).map(|at| LISTS[at].1);
        let role = named.or(others);
        assert_eq!(rules.role(&account), role, "{account:?} by\n{file}");
        let Ok(caller) = rules.caller(account.clone()) else {
            assert_eq!(role, None, "{account:?} by\n{file}");
            continue;
        };
        let access = rules.container_access(&caller).ok();
        assert_eq!(
            access.is_some(),
            caller.role >= least.1,
            "{account:?} by\n{file}"
        );
        let is_any = access == Some(ContainerAccess::Any);
        let has_engine = access.is_some() && (!as_submitter || caller.role >= Role::Admin);
        assert_eq!(is_any, has_engine, "{account:?} by\n{file}");
        let sees = caller.can_see(STRANGER);
        assert_eq!(sees, sees_all || caller.role >= Role::Operator, "{file}");
    }
}
