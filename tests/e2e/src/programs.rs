//! Programs that are not built here: the Python of the private environment and its clients, and programs that a test writes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use divvy_testkit::Bounded as _;

/// The Python of the private environment with the third-party clients.
///
/// # Panics
/// When `DIVVY_TEST_PYTHON` does not name one.
#[must_use]
pub fn python() -> PathBuf {
    let named = std::env::var_os("DIVVY_TEST_PYTHON").map(PathBuf::from);
    let Some(python) = named.filter(|path| path.is_file()) else {
        panic!(
            "DIVVY_TEST_PYTHON does not name a Python with tests/e2e/requirements.txt installed; run `cargo xtask test`, \
             which makes one, or set it to target/clients-venv/bin/python"
        );
    };
    python
}

/// Makes a program of these bytes, with the folders above it. Another process writes it: what this one has open for writing, a program
/// that another thread starts at that moment has open too, and a file that is open for writing cannot be started (ETXTBSY).
///
/// # Panics
/// When it cannot be made.
pub fn write_program(path: &Path, bytes: impl AsRef<[u8]>) {
    let mut install = Command::new("install")
        .args(["-D", "--mode", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install(1) is there");
    let mut input = install.stdin.take().expect("it is a pipe");
    input.write_all(bytes.as_ref()).expect("install(1) reads");
    drop(input);
    let status = install.wait_bounded().expect("a child can be waited for");
    assert!(status.success(), "{} cannot be made", path.display());
}

/// Path of a Python client in `tests/e2e/clients`, as an argument.
#[must_use]
pub fn client_script(name: &str) -> String {
    format!("{}/clients/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Whether this machine makes namespaces by these words of unshare(1). Where it does not, a test says so and checks nothing.
#[must_use]
pub fn can_unshare(words: &[&str]) -> bool {
    let tried = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .wait_bounded();
    let can = tried.is_ok_and(|status| status.success());
    if !can {
        eprintln!("SKIPPED: this machine refuses `{}`", words.join(" "));
    }
    can
}
