//! In which form the limiter gets into a job's processes: as a wrapper that lies where the driver's libraries lay, which is the
//! stronger, or as a preload, which needs no rights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::chain;
use super::cover::{Cover, CoverError};
use super::identity::Identity;
use super::lookup::LaunchError;

/// What the agent wants, in a job's spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wish {
    /// The preload, which the job's environment names, and why nothing better.
    Preload { because: String },
    /// The wrapper where it can be had, otherwise the preload.
    Best(Wrapper),
    /// The wrapper, or the job is not started.
    Wrapper(Wrapper),
}

/// Files of the wrapper form, and what stands for it elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrapper {
    pub cuda: PathBuf,
    pub nvml: PathBuf,
    /// What the environment preloads, and shall not where the wrapper is.
    pub preload: PathBuf,
    /// The slice's folder.
    pub slice: PathBuf,
    /// The folder of links to the simulated driver, where that is used.
    pub simulated: Option<PathBuf>,
}

/// A job's limiter, as its supervisor found it could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limiter {
    pub form: Form,
    /// Why it is not the stronger form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Whether that was to be expected: nobody tried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    Preload,
    Wrapper,
}

/// Lays the wrapper in this process's mount namespace if it shall and can, and takes out of `env` what is for the preload.
///
/// # Errors
/// When the form that must be cannot be.
///
/// Of another user's job the environment does not say where the driver's files are ([`Cover::installed`]), and they are opened as
/// that user.
pub fn lay(
    wish: &Wish,
    env: &mut BTreeMap<String, String>,
    user: Option<&Identity>,
) -> Result<Limiter, LaunchError> {
    let preload = |because: String, failed| Limiter {
        form: Form::Preload,
        because: Some(because),
        failed,
    };
    let wrapper = match wish {
        Wish::Preload { because } => return Ok(preload(because.clone(), false)),
        Wish::Best(wrapper) | Wish::Wrapper(wrapper) => wrapper,
    };
    match cover(wrapper, env, user).and_then(|cover| cover.lay(user)) {
        Ok(()) => {
            without(env, "LD_PRELOAD", &wrapper.preload);
            Ok(Limiter {
                form: Form::Wrapper,
                because: None,
                failed: false,
            })
        }
        Err(error) if matches!(wish, Wish::Wrapper(_)) => Err(LaunchError {
            code: 125,
            message: format!(
                "cannot put the limiter in front of the driver: {}",
                chain(&error)
            ),
        }),
        Err(error) => {
            let failed = !matches!(error, CoverError::NotRoot);
            Ok(preload(chain(&error), failed))
        }
    }
}

fn cover(
    wrapper: &Wrapper,
    env: &BTreeMap<String, String>,
    user: Option<&Identity>,
) -> Result<Cover, CoverError> {
    match user {
        Some(_) => Cover::installed(wrapper),
        None => Cover::find(wrapper, env.get("LD_LIBRARY_PATH").map(String::as_str)),
    }
}

/// The form that a job of this process's own user would get, without laying anything: what can only be found out by mounting is not.
pub fn expected(wish: &Wish, library_path: Option<&str>) -> Limiter {
    let because = match wish {
        Wish::Preload { because } => Some(because.clone()),
        Wish::Best(wrapper) | Wish::Wrapper(wrapper) => Cover::find(wrapper, library_path)
            .err()
            .map(|error| chain(&error)),
    };
    Limiter {
        form: match because {
            Some(_) => Form::Preload,
            None => Form::Wrapper,
        },
        because,
        failed: false,
    }
}

/// Takes one path out of a list of paths.
fn without(env: &mut BTreeMap<String, String>, name: &str, path: &Path) {
    let Some(list) = env.remove(name) else {
        return;
    };
    let others: Vec<&str> = list
        .split(':')
        .filter(|other| Path::new(other) != path)
        .collect();
    if !others.is_empty() {
        env.insert(name.to_owned(), others.join(":"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapper() -> Wrapper {
        Wrapper {
            cuda: "/no/such/libdivvy_cuda.so".into(),
            nvml: "/no/such/libdivvy_nvml.so".into(),
            preload: "/lib/libdivvy_preload.so".into(),
            slice: "/no/such/slice".into(),
            simulated: None,
        }
    }

    fn environment() -> BTreeMap<String, String> {
        BTreeMap::from([("LD_PRELOAD".into(), "/lib/libdivvy_preload.so:/a.so".into())])
    }

    #[test]
    fn a_wrapper_that_cannot_be_is_a_preload_or_no_start_at_all() {
        let mut env = environment();
        let limiter = lay(&Wish::Best(wrapper()), &mut env, None).unwrap();
        assert_eq!(limiter.form, Form::Preload);
        assert!(limiter.because.is_some());
        assert_eq!(env, environment());
        let refused = lay(&Wish::Wrapper(wrapper()), &mut env, None).unwrap_err();
        assert_eq!(refused.code, 125);
        assert_eq!(env, environment());
    }

    #[test]
    fn who_wants_the_preload_gets_it_and_the_reason() {
        let wish = Wish::Preload {
            because: "DIVVY_FORM says so".into(),
        };
        let limiter = lay(&wish, &mut environment(), None).unwrap();
        assert_eq!(
            serde_json::to_string(&limiter).unwrap(),
            r#"{"form":"preload","because":"DIVVY_FORM says so"}"#
        );
        let read: Limiter = serde_json::from_str(r#"{"form":"wrapper"}"#).unwrap();
        assert_eq!(
            (read.form, read.because, read.failed),
            (Form::Wrapper, None, false)
        );
    }

    #[test]
    fn another_users_environment_names_nothing_that_is_mounted_over() {
        let dir = tempfile::tempdir().unwrap();
        let libraries = ["libcuda.so.1", "libnvidia-ml.so.1"];
        for name in libraries {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let folder = dir.path().display().to_string();
        let env = BTreeMap::from([("LD_LIBRARY_PATH".into(), folder.clone())]);
        let user = Identity {
            uid: 60_105,
            gid: 60_105,
            groups: Some(Vec::new()),
        };
        let told = |user| format!("{:?}", cover(&wrapper(), &env, user));
        assert!(
            !told(Some(&user)).contains(&folder),
            "{}",
            told(Some(&user))
        );
        if rustix::process::geteuid().is_root() {
            assert!(told(None).contains(&folder), "{}", told(None));
        }
    }

    #[test]
    fn our_own_preload_is_taken_out_and_the_users_stay() {
        let mut env = environment();
        without(
            &mut env,
            "LD_PRELOAD",
            Path::new("/lib/libdivvy_preload.so"),
        );
        assert_eq!(env["LD_PRELOAD"], "/a.so");
        without(&mut env, "LD_PRELOAD", Path::new("/a.so"));
        assert!(env.is_empty());
        without(&mut env, "LD_PRELOAD", Path::new("/a.so"));
    }
}
