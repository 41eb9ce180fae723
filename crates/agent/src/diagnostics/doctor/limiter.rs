//! Checks of the limiter: its file, whether the loader accepts it, whether it intercepts the driver's functions.

use std::path::{Path, PathBuf};

use divvy_api::v1::Finding;

use super::machine::Machine;
use super::{Scratch, fail, ok};
use crate::config::{InjectionPreference, Programs, Simulated, loadable};
use crate::daemon::bootstrap::wrappers;
use crate::host::error::error_chain;
use crate::host::limiter_copies;
use crate::job_dir::injection::{InjectedLimiter, InjectionMode};
use crate::supervisor::injection::expected_injection;

const NOT_HELD: &str = "the limits of jobs cannot be enforced, so no job starts";

/// A copy of the limiter, with its folder, where the loader cannot name the installed file.
///
/// # Errors
/// Why the loader cannot name the file, and why there is no copy.
pub fn scratch_copy(preload: &Path) -> Result<Option<(Scratch, PathBuf)>, String> {
    let Err(unloadable) = loadable(preload, "LD_PRELOAD") else {
        return Ok(None);
    };
    let scratch = Scratch::of("limiter");
    let copied = limiter_copies::keep(&scratch.0, &[preload]);
    let copy = copied.map_err(|error| format!("{unloadable}; {}", error_chain(&error)))?;
    let copy = limiter_copies::copy_of(&copy, preload);
    loadable(&copy, "LD_PRELOAD").map_err(|error| format!("{unloadable}; {error}"))?;
    Ok(Some((scratch, copy)))
}

/// `preload` is the limiter's file, or why there is none; `loaded` the file that the loader gets, or why it gets none;
/// `limited` the machine as seen with it loaded.
pub fn findings(
    preload: &Result<PathBuf, String>,
    loaded: &Result<PathBuf, String>,
    limited: Option<&Machine>,
) -> Vec<Finding> {
    let preload = match preload {
        Ok(preload) => preload,
        Err(error) => {
            let fix =
                "install libdivvy_preload.so next to divvy, or set DIVVY_LIB_DIR to its folder";
            return vec![fail("limiter.library", error, NOT_HELD, fix)];
        }
    };
    let mut findings = vec![library(preload, loaded)];
    if let (Ok(loaded), Some(limited)) = (loaded, limited) {
        findings.extend(stands(loaded, limited));
    }
    findings
}

/// The form that a job of this user gets, or why `DIVVY_FORM` cannot be followed.
pub fn form(
    divvy: &Path,
    preload: &Path,
    simulated: Option<&Simulated>,
) -> Result<InjectedLimiter, String> {
    let programs = Programs {
        divvy: divvy.to_owned(),
        preload: preload.to_owned(),
        wrappers: wrappers(divvy),
        injection_preference: InjectionPreference::from_env()?,
    };
    // No slice is read.
    let wish = programs.choose_injection(Path::new(""), simulated);
    let own = std::env::var("LD_LIBRARY_PATH").ok();
    let simulated = simulated.map(|simulated| simulated.lib.display().to_string());
    let limiter = expected_injection(&wish, simulated.as_deref().or(own.as_deref()));
    match (programs.injection_preference, limiter.form) {
        (InjectionPreference::Wrapper, InjectionMode::Preload) => {
            let why = limiter.because.unwrap_or_default();
            Err(format!(
                "DIVVY_FORM=wrapper is set, but the wrapper is not available: {why}"
            ))
        }
        _ => Ok(limiter),
    }
}

/// What there is to say about it. Each form is well: the stronger one takes rights that most users do not have.
pub fn form_finding(form: &Result<InjectedLimiter, String>) -> Finding {
    const CHECK: &str = "limiter.form";
    match form {
        Err(error) => fail(
            CHECK,
            error,
            "no job starts",
            "unset DIVVY_FORM, or set it to preload",
        ),
        Ok(limiter) => ok(
            CHECK,
            match (limiter.form, &limiter.because) {
                (InjectionMode::Wrapper, _) => {
                    "jobs get the wrapper, in the place of the driver's libraries".to_owned()
                }
                (InjectionMode::Preload, Some(why)) => {
                    format!("jobs get the preload; the stronger wrapper is not available: {why}")
                }
                (InjectionMode::Preload, None) => "jobs get the preload".to_owned(),
            },
        ),
    }
}

fn library(preload: &Path, loaded: &Result<PathBuf, String>) -> Finding {
    const CHECK: &str = "limiter.library";
    match loaded {
        Ok(loaded) if loaded == preload => ok(CHECK, preload.display().to_string()),
        Ok(_) => ok(
            CHECK,
            format!("{}; jobs load a copy of it", preload.display()),
        ),
        Err(error) => fail(
            CHECK,
            error,
            NOT_HELD,
            "move the libraries to a folder whose path has no blank, `:` or `$`, and set DIVVY_LIB_DIR to it",
        ),
    }
}

/// Whether a program's allocations go to the limiter; nothing where there is no driver to stand before.
fn stands(preload: &Path, limited: &Machine) -> Option<Finding> {
    const CHECK: &str = "limiter.loads";
    let same = |file: &PathBuf| file == preload || file.canonicalize().is_ok_and(|f| f == preload);
    let cuda = limited.cuda.as_ref().ok()?;
    Some(match &cuda.allocations {
        Some(file) if same(file) => ok(
            CHECK,
            "programs with the limiter loaded call it before the driver",
        ),
        found => {
            let found = found
                .as_ref()
                .map_or_else(|| "no file".to_owned(), |file| file.display().to_string());
            let said = limited.said.lines().next().unwrap_or_default();
            let said = if said.is_empty() {
                String::new()
            } else {
                format!("; {said}")
            };
            fail(
                CHECK,
                format!("with the limiter loaded, allocations still go to {found}{said}"),
                NOT_HELD,
                &format!(
                    "ldd {}; the limiter needs glibc and libgcc_s.so.1",
                    preload.display()
                ),
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::FindingStatus;

    use super::super::machine::Cuda;
    use super::*;

    fn machine(allocations: Option<&str>) -> Machine {
        let cuda = Cuda {
            file: None,
            allocations: allocations.map(PathBuf::from),
            devices: Ok(1),
        };
        Machine {
            cuda: Ok(cuda),
            nvml: Err(String::new()),
            said: "ERROR: ld.so: object cannot be preloaded".to_owned(),
        }
    }

    #[test]
    fn a_limiter_that_the_loader_skipped_is_a_failure_in_the_loaders_words() {
        let preload = Path::new("/opt/libdivvy_preload.so");
        let well = stands(preload, &machine(Some("/opt/libdivvy_preload.so"))).unwrap();
        assert_eq!(well.status, FindingStatus::Ok);
        let skipped = stands(preload, &machine(Some("/usr/lib/libcuda.so.1"))).unwrap();
        assert_eq!(skipped.status, FindingStatus::Fail);
        assert!(
            skipped.found.contains("cannot be preloaded"),
            "{}",
            skipped.found
        );
    }

    #[test]
    fn a_limiter_that_the_loader_can_name_neither_here_nor_as_a_copy_is_a_failure() {
        let installed = Path::new("/my apps/x.so");
        let copy = scratch_copy(installed).map(|copy| copy.map(|(_, copy)| copy));
        let why = copy.unwrap_err();
        let found = library(installed, &Err(why));
        assert_eq!(found.status, FindingStatus::Fail);
        assert!(found.found.contains("its space"), "{}", found.found);
        let plain = Path::new("/opt/x.so");
        assert!(matches!(scratch_copy(plain), Ok(None)));
        let found = library(installed, &Ok(plain.to_owned()));
        assert_eq!(found.status, FindingStatus::Ok);
    }
}
