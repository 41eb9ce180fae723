//! The bearer token of the TCP listener, where there are no peer credentials.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use divvy_api::v1::{Error, ErrorCode};
use divvy_web::token::Token as Secret;

use crate::auth::Caller;

/// A token with fewer bytes could be guessed: this is 128 bits as hexadecimal digits.
const SHORTEST: usize = 32;

/// More is not a token. Tokens have 64 digits, so this leaves room for a user's own; a larger file is something else.
const LONGEST: u64 = 4096;

/// The token, and the user that it stands for.
#[derive(Clone)]
pub struct Token {
    secret: Secret,
    pub caller: Caller,
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("cannot read the token file {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("other users can read or write the token file {path} (mode {mode:o})")]
    Open { path: PathBuf, mode: u32 },
    #[error("the token file {path} belongs to uid {owner}, but this daemon runs as uid {me}")]
    Owner { path: PathBuf, owner: u32, me: u32 },
    #[error("the token in {path} is not one line of {SHORTEST} to {LONGEST} visible characters")]
    Wrong { path: PathBuf },
}

impl From<&TokenError> for Error {
    fn from(error: &TokenError) -> Self {
        Self::new(ErrorCode::Usage, crate::host::error::error_chain(error))
            .hint("create one: (umask 077; head -c 32 /dev/urandom | base64 -w 0 > FILE)")
    }
}

impl Token {
    /// The token in this file; its holder is `caller`.
    ///
    /// # Errors
    /// When others can read it, it is not the daemon's own, or it could be guessed.
    pub fn read(path: &Path, caller: Caller) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read {
            path: path.to_owned(),
            source,
        };
        // A pipe in its place must not hang the daemon.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(nonblock)
            .open(path)
            .map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me && meta.uid() != 0 {
            return Err(TokenError::Owner {
                path: path.to_owned(),
                owner: meta.uid(),
                me,
            });
        }
        if meta.mode() & 0o077 != 0 {
            return Err(TokenError::Open {
                path: path.to_owned(),
                mode: meta.mode() & 0o7777,
            });
        }
        let mut text = Vec::new();
        file.take(LONGEST + 2)
            .read_to_end(&mut text)
            .map_err(failed)?;
        let secret = text.trim_ascii().to_owned();
        let is_visible = secret.iter().all(u8::is_ascii_graphic);
        if secret.len() < SHORTEST || text.len() as u64 > LONGEST || !is_visible {
            return Err(TokenError::Wrong {
                path: path.to_owned(),
            });
        }
        let secret = Secret::of(secret);
        Ok(Self { secret, caller })
    }

    /// Whether the request shows it.
    pub fn is_shown(&self, headers: &HeaderMap) -> bool {
        self.secret.is_shown(headers)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use axum::http::header::AUTHORIZATION;

    use super::*;
    use crate::auth::{Role, Rules};
    use crate::host::account::UserAccount;
    use divvy_api::daemon::RoleOptions;

    fn caller() -> Caller {
        Rules::with(RoleOptions::default(), 0)
            .caller(UserAccount::lookup(0, 0).unwrap())
            .unwrap()
    }

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn only_the_whole_token_is_the_token() {
        let secret = "0123456789abcdef0123456789abcdef";
        let (_dir, path) = file(&format!("{secret}\n"), 0o600);
        let token = Token::read(&path, caller()).unwrap();
        assert_eq!(token.caller.role, Role::Admin);
        let is = |text: &str| {
            let value = text.parse().unwrap();
            token.is_shown(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert!(is(&format!("Bearer {secret}")));
        for wrong in [
            String::new(),
            secret.to_owned(),
            format!("Bearer {}", &secret[1..]),
            format!("Bearer {secret}0"),
        ] {
            assert!(!is(&wrong), "{wrong}");
        }
        assert!(!token.is_shown(&HeaderMap::new()));
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_refused() {
        let good = "0123456789abcdef0123456789abcdef";
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644] {
            let (_dir, path) = file(good, mode);
            let refused = Token::read(&path, caller());
            assert!(matches!(refused, Err(TokenError::Open { .. })), "{mode:o}");
        }
        for wrong in [
            "",
            "short",
            &good[1..],
            &good.replace('8', " "),
            &good.repeat(200),
        ] {
            let (_dir, path) = file(wrong, 0o600);
            let refused = Token::read(&path, caller());
            assert!(matches!(refused, Err(TokenError::Wrong { .. })), "{wrong}");
        }
        let missing = Token::read(Path::new("/no/such/token"), caller());
        assert!(matches!(missing, Err(TokenError::Read { .. })));
    }
}
