//! An image with the stock agent in it: a shell, this machine's Python, and the packages of the tests' environment that
//! `clearml-agent` needs. Nothing in it asks a registry or an index for anything.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_testkit::Bounded as _;
use serde_json::Value;

use crate::engine::{Engine, linked};
use crate::{Programs, python};

/// The image's name.
pub const AGENT_IMAGE: &str = "divvy-test-clearml";

/// What the stock agent's script in the container and the agent itself call.
const SHELL: &[&str] = &[
    "bash", "sh", "cat", "sleep", "ls", "env", "id", "touch", "mkdir", "ln", "rm", "cp", "mv",
    "chmod", "chown", "which", "uname", "dirname", "basename", "head", "tail", "grep", "sed", "tr",
    "ps", "hostname", "true", "false",
];
/// The image's pip: the stock agent's script calls it twice before it begins, and all that it wants is there.
const NO_PIP: &str = "import sys\nprint('All of this is installed already:', *sys.argv[1:])\n";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// Packages that the agent needs, as its own description and theirs say. pip is none of them, see [`NO_PIP`].
const PACKAGES: &[&str] = &[
    "_distutils_hack",
    "_yaml",
    "attr",
    "attrs",
    "certifi",
    "charset_normalizer",
    "clearml_agent",
    "dateutil",
    "distlib",
    "filelock",
    "furl",
    "idna",
    "jsonschema",
    "jsonschema_specifications",
    "jwt",
    "orderedmultidict",
    "pathlib2",
    "pkg_resources",
    "platformdirs",
    "psutil",
    "pyparsing",
    "referencing",
    "requests",
    "rpds",
    "setuptools",
    "six.py",
    "typing_extensions.py",
    "urllib3",
    "virtualenv",
    "yaml",
];
/// Folders of the standard library that nothing here needs.
const LEFT_OUT_OF_PYTHON: &[&str] = &[
    "test",
    "idlelib",
    "tkinter",
    "lib2to3",
    "turtledemo",
    "site-packages",
    "ensurepip",
];

/// Makes the image in an engine that does not have it yet.
///
/// # Panics
/// When it cannot be made.
pub fn make(engine: &Engine) {
    let there = engine
        .docker(&["image", "inspect", AGENT_IMAGE])
        .wait_bounded();
    if there.is_ok_and(|status| status.success()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    lay_root(folder.path());
    engine.import(folder.path(), AGENT_IMAGE, &["ENV HOME=/root"]);
}

fn lay_root(root: &Path) {
    for folder in [
        LIBRARIES,
        "usr/bin",
        "usr/local/bin",
        "lib64",
        "etc",
        "tmp",
        "run",
        "root",
        "var/cache/apt/archives",
    ] {
        fs::create_dir_all(root.join(folder)).expect("the folder is ours");
    }
    for (link, target) in [("bin", "usr/bin"), ("lib", "usr/lib")] {
        symlink(target, root.join(link)).expect("the folder is ours");
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))
        .expect("the folder is ours");
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/bash\n")
        .expect("the folder is ours");
    for name in SHELL {
        let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(name));
        if let Some(program) = found.iter().find(|file| file.is_file()) {
            copy_program(root, program, &root.join("usr/bin").join(name));
        }
    }
    for probe in ["cudarc_probe", "nvml_probe"] {
        let program = Programs::of_this_test().path(probe);
        copy_program(root, &program, &root.join("usr/bin").join(probe));
    }
    lay_python(root);
}

/// Python where it lies here, `python3` on the search path, and the packages.
fn lay_python(root: &Path) {
    let ask = "import json, sys, sysconfig; print(json.dumps({'program': sys._base_executable, \
               'library': sysconfig.get_path('stdlib'), 'packages': sysconfig.get_path('purelib'), \
               'version': sysconfig.get_python_version()}))";
    let said = Command::new(python())
        .args(["-c", ask])
        .output_bounded()
        .expect("Python starts");
    let said: Value = serde_json::from_slice(&said.stdout).expect("it prints JSON");
    let path = |name: &str| PathBuf::from(said[name].as_str().expect("a path"));
    let version = said["version"].as_str().expect("a version");
    let program = fs::canonicalize(path("program")).expect("it is running");
    let inside = |outside: &Path| root.join(outside.strip_prefix("/").expect("an absolute path"));
    copy_program(root, &program, &inside(&program));
    for name in ["python3".to_owned(), format!("python{version}")] {
        let link = root.join("usr/bin").join(name);
        if !link.exists() {
            symlink(&program, link).expect("the folder is ours");
        }
    }
    let library = path("library");
    copy_tree(root, &library, &inside(&library), &|name| {
        // The second is the interpreter once more, to be linked with.
        !LEFT_OUT_OF_PYTHON.contains(&name) && !name.starts_with("config-")
    });
    let packages = inside(&library.join("site-packages"));
    copy_tree(root, &path("packages"), &packages, &|name| {
        PACKAGES.contains(&name) || name.ends_with(".dist-info") || name.contains("mypyc")
    });
    fs::create_dir(packages.join("pip")).expect("the folder is ours");
    fs::write(packages.join("pip/__init__.py"), "").expect("the folder is ours");
    fs::write(packages.join("pip/__main__.py"), NO_PIP).expect("the folder is ours");
}

/// Copies those entries of a folder that are wanted, with the libraries that its shared objects need.
fn copy_tree(root: &Path, from: &Path, to: &Path, wanted: &dyn Fn(&str) -> bool) {
    fs::create_dir_all(to).expect("the folder is ours");
    for entry in fs::read_dir(from).expect("a folder of Python's") {
        let path = entry.expect("it can be read").path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(name) = name.filter(|name| wanted(name)) else {
            continue;
        };
        let target = to.join(name);
        match path.is_dir() {
            true => copy_tree(root, &path, &target, &|name| name != "tests"),
            false if name.contains(".so") => copy_program(root, &path, &target),
            false => copy_module(&path, &target),
        }
    }
}

/// Copies a file with its age, which is how Python knows that a compiled one is still good.
fn copy_module(from: &Path, to: &Path) {
    let age = fs::metadata(from).and_then(|found| found.modified());
    fs::copy(from, to).expect("a module can be read");
    let copy = fs::File::options()
        .append(true)
        .open(to)
        .expect("it is ours");
    copy.set_modified(age.expect("files have an age"))
        .expect("it is ours");
}

/// Copies a program or library and what it is linked with.
fn copy_program(root: &Path, from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("it lies in a folder")).expect("the folder is ours");
    fs::copy(from, to).expect("a program can be read");
    for library in linked(from) {
        let name = library.file_name().expect("ldd names files");
        let is_loader = name
            .to_str()
            .is_some_and(|name| name.starts_with("ld-linux"));
        let folder = if is_loader { "lib64" } else { LIBRARIES };
        let target = root.join(folder).join(name);
        if !target.exists() {
            fs::copy(&library, target).expect("a library can be read");
        }
    }
}
