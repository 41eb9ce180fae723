//! The stat of a path in a container that has not been started, as the engine reports it.
//!
//! Docker and Podman answer the same call (`HEAD /containers/ID/archive`) with the same header, and mean two things by
//! it. Of a link that leads nowhere Docker tells like of any other; Podman answers that nothing is there and tells of
//! it in the header all the same, which the library does not pass on: so the call is made here. Docker names a target
//! of links alone, Podman one of everything.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::Docker;
use bollard::container::PathStatResponse;
use bollard::errors::Error;
use hyper::{HeaderMap, Method, StatusCode};

use super::raw_api::{call, escaped};

/// The header: JSON in base64, of Docker with the usual letters, of Podman with those for addresses (RFC 4648, 5).
const STAT: &str = "X-Docker-Container-Path-Stat";

/// The symlink bit of a mode (`ModeSymlink` of Go's io/fs, as engines report modes).
const LINK: u32 = 1 << 27;

/// What lies at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathKind {
    Missing,
    /// A file or a folder.
    FileOrDir,
    /// A link, to this path from the container's root once all links of its end are followed.
    Symlink(String),
}

/// Asks the engine behind the socket.
///
/// # Errors
/// When it fails. If the container is not there, the path counts as absent.
pub async fn stat_path(
    socket: &Path,
    docker: &Docker,
    container: &str,
    path: &str,
) -> Result<PathKind, Error> {
    let target = format!("/containers/{container}/archive?path={}", escaped(path));
    let answer = call(socket, docker, Method::HEAD, &target).await?;
    read(answer.status, &answer.headers)
}

/// Whether Podman takes a path for a pattern of many (Go's path/filepath, `Match`), and answers about another, or that
/// nothing is there.
pub fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '[', '\\'])
}

/// A pattern that matches this path alone: one letter of its last part in brackets. Podman answers the very path of a
/// mount with the mount's source; for a pattern it inspects the image. `None` if the last part has no letter that can
/// stand there.
pub fn bracketed(path: &str) -> Option<String> {
    let last = path.rfind('/').map_or(0, |slash| slash + 1);
    let usual = |letter: char| !matches!(letter, ']' | '-' | '^');
    let at = last + path[last..].rfind(usual)?;
    let letter = path[at..].chars().next()?;
    let after = &path[at + letter.len_utf8()..];
    (!is_pattern(path)).then(|| format!("{}[{letter}]{after}", &path[..at]))
}

fn read(status: StatusCode, headers: &HeaderMap) -> Result<PathKind, Error> {
    if !status.is_success() && status != StatusCode::NOT_FOUND {
        return Err(Error::DockerResponseServerError {
            status_code: status.as_u16(),
            message: String::new(),
        });
    }
    let stat = headers.get(STAT).map(|value| {
        let usual = |letter: &u8| match letter {
            b'-' => b'+',
            b'_' => b'/',
            letter => *letter,
        };
        let letters: Vec<u8> = value.as_bytes().iter().map(usual).collect();
        let text = STANDARD.decode(letters).ok();
        let stat = text.and_then(|text| serde_json::from_slice(&text).ok());
        stat.ok_or_else(|| Error::HttpHeaderNotFoundError(STAT.to_owned()))
    });
    match stat.transpose()? {
        Some(PathStatResponse {
            file_mode,
            link_target,
            ..
        }) if file_mode & LINK != 0 => Ok(PathKind::Symlink(link_target)),
        Some(_) if status.is_success() => Ok(PathKind::FileOrDir),
        None if status.is_success() => Err(Error::HttpHeaderNotFoundError(STAT.to_owned())),
        _ => Ok(PathKind::Missing),
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::URL_SAFE;
    use hyper::header::HeaderValue;

    use super::*;

    fn answered(status: u16, stat: Option<&str>) -> Result<PathKind, Error> {
        let mut headers = HeaderMap::new();
        if let Some(stat) = stat {
            let value = HeaderValue::from_str(&STANDARD.encode(stat)).unwrap();
            headers.insert("x-docker-container-path-stat", value);
        }
        read(StatusCode::from_u16(status).unwrap(), &headers)
    }

    fn stat(mode: u32, target: &str) -> String {
        format!(
            r#"{{"name":"x","size":7,"mode":{mode},"mtime":"2026-01-02T03:04:05Z","isDir":false,"linkTarget":"{target}"}}"#
        )
    }

    #[test]
    fn a_link_is_known_by_its_mode_whatever_the_engine_answers_besides() {
        let link = stat(134_218_239, "/usr/lib");
        let leads = PathKind::Symlink("/usr/lib".to_owned());
        // Podman's answer where it leads nowhere is the second.
        for status in [200, 404] {
            assert_eq!(answered(status, Some(&link)).unwrap(), leads);
        }
        // Docker names no target of a file, Podman the file.
        for target in ["", "/bin/sh"] {
            let file = answered(200, Some(&stat(493, target)));
            assert_eq!(file.unwrap(), PathKind::FileOrDir);
        }
        assert_eq!(answered(404, None).unwrap(), PathKind::Missing);
    }

    #[test]
    fn an_engine_that_fails_says_nothing_about_the_path() {
        let failed = answered(500, Some(&stat(493, "")));
        assert_eq!(
            super::super::engine::status(&failed.unwrap_err()),
            Some(500)
        );
        assert!(answered(200, None).is_err());
        let mut headers = HeaderMap::new();
        headers.insert(
            "x-docker-container-path-stat",
            HeaderValue::from_static("no base64"),
        );
        assert!(read(StatusCode::OK, &headers).is_err());
    }

    #[test]
    fn either_engines_letters_are_read() {
        let mut headers = HeaderMap::new();
        let link = stat(134_218_239, "/???~~~");
        for engine in [STANDARD.encode(&link), URL_SAFE.encode(&link)] {
            headers.insert(
                "x-docker-container-path-stat",
                HeaderValue::from_str(&engine).unwrap(),
            );
            let found = read(StatusCode::OK, &headers).unwrap();
            assert_eq!(found, PathKind::Symlink("/???~~~".to_owned()));
        }
        assert_ne!(STANDARD.encode(&link), URL_SAFE.encode(&link));
    }

    #[test]
    fn a_path_is_asked_for_by_a_pattern_of_its_own() {
        for (path, pattern) in [
            ("/etc/ld.so.preload", "/etc/ld.so.preloa[d]"),
            ("/x/数据", "/x/数[据]"),
            ("/x/a-", "/x/[a]-"),
            ("/x/a^]", "/x/[a]^]"),
        ] {
            assert_eq!(bracketed(path).as_deref(), Some(pattern));
        }
        for none in ["/x/-", "/x/", "/x/a*", "/x?/a", "/x/a[b", "/x/a\\b"] {
            assert_eq!(bracketed(none), None, "{none}");
        }
    }
}
