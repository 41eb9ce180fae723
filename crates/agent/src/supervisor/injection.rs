//! The injection mode of the limiter: a wrapper bind-mounted over the driver's libraries, which is stronger, or a
//! preload, which needs no rights.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_api::standalone::SliceMount;

use super::bind_mounts::{BindMountError, WrapperMounts};
use super::resolve_program::LaunchError;
use crate::host::error::error_chain;
use crate::host::run_as::Identity;
use crate::job_dir::injection::{InjectedLimiter, InjectionMode, InjectionPolicy, Wrapper};

/// Lays the wrapper in this process's mount namespace if it shall and can, and takes out of `env` what is for the
/// preload.
///
/// # Errors
/// When the form that must be cannot be.
///
/// Of another user's job the environment does not say where the driver's files are (`Cover::installed`), and they are
/// opened as that user.
pub fn inject(
    wish: &InjectionPolicy,
    env: &mut BTreeMap<String, String>,
    user: Option<&Identity>,
) -> Result<InjectedLimiter, LaunchError> {
    let preload = |because: String, failed| InjectedLimiter {
        form: InjectionMode::Preload,
        because: Some(because),
        failed,
    };
    let wrapper = match wish {
        InjectionPolicy::Preload { because } => return Ok(preload(because.clone(), false)),
        InjectionPolicy::Best(wrapper) | InjectionPolicy::Wrapper(wrapper) => wrapper,
    };
    match wrapper_mounts(wrapper, env, user).and_then(|cover| cover.apply(user)) {
        Ok(()) => {
            without(env, "LD_PRELOAD", &wrapper.preload);
            Ok(InjectedLimiter {
                form: InjectionMode::Wrapper,
                because: None,
                failed: false,
            })
        }
        Err(error) if matches!(wish, InjectionPolicy::Wrapper(_)) => Err(LaunchError {
            code: 125,
            message: format!(
                "cannot put the limiter in front of the driver: {}",
                error_chain(&error)
            ),
        }),
        Err(error) => {
            let failed = !matches!(error, BindMountError::NotRoot);
            Ok(preload(error_chain(&error), failed))
        }
    }
}

/// The mounts that [`inject`] would make for a program; empty where the program gets the preload.
pub fn listed_mounts(
    wish: &InjectionPolicy,
    library_path: Option<&str>,
    user: Option<&Identity>,
) -> (InjectedLimiter, Vec<SliceMount>) {
    let env = library_path.map(|path| ("LD_LIBRARY_PATH".to_owned(), path.to_owned()));
    let env: BTreeMap<String, String> = env.into_iter().collect();
    let found = match wish {
        InjectionPolicy::Preload { because } => Err(because.clone()),
        InjectionPolicy::Best(wrapper) | InjectionPolicy::Wrapper(wrapper) => {
            wrapper_mounts(wrapper, &env, user).map_err(|error| error_chain(&error))
        }
    };
    let (form, because, mounts) = match found {
        Ok(mounts) => (InjectionMode::Wrapper, None, mounts.steps()),
        Err(because) => (InjectionMode::Preload, Some(because), Vec::new()),
    };
    let limiter = InjectedLimiter {
        form,
        because,
        failed: false,
    };
    (limiter, mounts)
}

fn wrapper_mounts(
    wrapper: &Wrapper,
    env: &BTreeMap<String, String>,
    user: Option<&Identity>,
) -> Result<WrapperMounts, BindMountError> {
    match user {
        Some(_) => WrapperMounts::installed(wrapper),
        None => WrapperMounts::find(wrapper, env.get("LD_LIBRARY_PATH").map(String::as_str)),
    }
}

/// The form that a job of this process's own user would get, without laying anything: what can only be found out by
/// mounting is not.
pub fn expected_injection(wish: &InjectionPolicy, library_path: Option<&str>) -> InjectedLimiter {
    let because = match wish {
        InjectionPolicy::Preload { because } => Some(because.clone()),
        InjectionPolicy::Best(wrapper) | InjectionPolicy::Wrapper(wrapper) => {
            WrapperMounts::find(wrapper, library_path)
                .err()
                .map(|error| error_chain(&error))
        }
    };
    InjectedLimiter {
        form: match because {
            Some(_) => InjectionMode::Preload,
            None => InjectionMode::Wrapper,
        },
        because,
        failed: false,
    }
}

/// Takes one path out of a list of paths.
pub fn without(env: &mut BTreeMap<String, String>, name: &str, path: &Path) {
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
            slice_by_file: false,
            simulated: None,
        }
    }

    fn environment() -> BTreeMap<String, String> {
        BTreeMap::from([("LD_PRELOAD".into(), "/lib/libdivvy_preload.so:/a.so".into())])
    }

    #[test]
    fn a_wrapper_that_cannot_be_is_a_preload_or_no_start_at_all() {
        let mut env = environment();
        let limiter = inject(&InjectionPolicy::Best(wrapper()), &mut env, None).unwrap();
        assert_eq!(limiter.form, InjectionMode::Preload);
        assert!(limiter.because.is_some());
        assert_eq!(env, environment());
        let refused = inject(&InjectionPolicy::Wrapper(wrapper()), &mut env, None).unwrap_err();
        assert_eq!(refused.code, 125);
        assert_eq!(env, environment());
    }

    #[test]
    fn a_job_that_requests_the_preload_gets_it_and_the_reason() {
        let wish = InjectionPolicy::Preload {
            because: "DIVVY_FORM says so".into(),
        };
        let limiter = inject(&wish, &mut environment(), None).unwrap();
        assert_eq!(
            serde_json::to_string(&limiter).unwrap(),
            r#"{"form":"preload","because":"DIVVY_FORM says so"}"#
        );
        let read: InjectedLimiter = serde_json::from_str(r#"{"form":"wrapper"}"#).unwrap();
        assert_eq!(
            (read.form, read.because, read.failed),
            (InjectionMode::Wrapper, None, false)
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
            account: None,
        };
        let told = |user| format!("{:?}", wrapper_mounts(&wrapper(), &env, user));
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
