//! Every way to the driver's functions against both forms of the limiter. Some go past a form: that is asserted too, and the
//! table on the reference page is made from this one.
//!
//! The wrapper lies where `divvy` lays it: over the driver's file, in a mount namespace. Where this machine lets nobody mount,
//! it lies in a folder of its own instead, and what only mounts do is not tried.

use std::path::{Path, PathBuf};
use std::process::Command;

use std::sync::LazyLock;

use divvy_testkit::Bounded as _;
use divvy_testkit::{filled, programs};

use crate::support::{
    CONTEXT, Form, MIB, ROOM, Rig, compiled, deep_library, driver_folder, preload, wrapper_folder,
    wrappers,
};

/// Whether a program that goes this way is held to its slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Held,
    /// It is not.
    Past,
    /// It gets no memory at all.
    Refused,
    /// The driver has nothing for it, limited or not.
    Nothing,
}
use Cell::{Held, Nothing, Past, Refused};

/// What a program does, and how it comes out under each form.
struct Row {
    does: &'static str,
    way: Way,
    preload: Cell,
    wrapper: Cell,
}

#[derive(Clone, Copy)]
enum Way {
    /// `ways.c`, compiled and linked with these flags.
    Linked(&'static str),
    /// `ways.c` with this word, and the path of the library that goes with it.
    Word(&'static str, Option<fn() -> String>),
    /// Another preload of these flags behind ours, and in front.
    Beside(&'static [&'static str]),
    Before(&'static [&'static str]),
    /// With nothing in the environment but what stands for the hardware and for the loader's cache.
    Cleared,
    /// With a slice in the environment that is not its own.
    Renamed,
    /// By the loader's own path, which takes the program as an argument.
    Loader,
    /// As a set-user-ID program, for which the loader ignores the environment.
    Privileged,
}

impl Way {
    /// Whether it comes out otherwise where nothing is mounted.
    fn is_about_mounts(self) -> bool {
        matches!(
            self,
            Way::Word("path", _) | Way::Cleared | Way::Renamed | Way::Privileged
        )
    }
}

/// The driver as it is installed: a file with its version in its name, and links to it.
fn installed() -> PathBuf {
    let simulator = programs::folder().join("libdivvy_sim.so");
    let built = simulator.metadata().and_then(|file| file.modified());
    let built = built.expect("the simulator is built");
    filled("installed", (&simulator, built), |folder| {
        std::fs::copy(&simulator, folder.join(VERSIONED)).expect("a copy");
        std::fs::copy(&simulator, folder.join(COPIED)).expect("a copy");
        for (link, target) in [("libcuda.so.1", VERSIONED), ("libcuda.so", "libcuda.so.1")] {
            std::os::unix::fs::symlink(target, folder.join(link)).expect("a link");
        }
    })
}
const VERSIONED: &str = "libcuda.so.99.1";
const COPIED: &str = "libcuda.so.2";

/// The C library's, of this machine's architecture.
#[cfg(target_arch = "x86_64")]
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "/lib/ld-linux-aarch64.so.1";

/// Where `divvy` puts the driver's file and the slice, and what it mounts.
const MOUNTS: &str = r#"
mount --make-rslave / && mkdir -p /run/divvy-job && mount -t tmpfs divvy /run/divvy-job || exit 9
touch /run/divvy-job/libcuda_real.so.1 && mkdir /run/divvy-job/slice || exit 9
mount --bind "$1" /run/divvy-job/libcuda_real.so.1 && mount --bind "$2" "$1" || exit 9
mount --bind "$3" /run/divvy-job/slice || exit 9
shift 3; exec "$@"
"#;

/// Whether this machine lets us mount.
static MAY_MOUNT: LazyLock<bool> = LazyLock::new(|| {
    let script =
        "mount --make-rslave / && mkdir -p /run/divvy-job && mount -t tmpfs divvy /run/divvy-job";
    let tried = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .output_bounded();
    let may = tried.is_ok_and(|tried| tried.status.success());
    if !may {
        eprintln!(
            "skipped in part: this machine lets nobody mount, so the wrapper lies in a folder of its own"
        );
    }
    may
});

fn driver_file() -> String {
    installed().join(VERSIONED).display().to_string()
}

/// A file of its own, as a container or a package may bring one.
fn copied_driver() -> String {
    installed().join(COPIED).display().to_string()
}

/// In a preload's process there is no such file, and the driver's own is as good.
fn put_aside() -> String {
    "/run/divvy-job/libcuda_real.so.1".into()
}

fn deep() -> String {
    deep_library().display().to_string()
}

const fn row(does: &'static str, way: Way, preload: Cell, wrapper: Cell) -> Row {
    Row {
        does,
        way,
        preload,
        wrapper,
    }
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("is linked to `libcuda.so.1`, bound lazily", Way::Linked("-Wl,-z,lazy"), Held, Held),
    row("is linked to `libcuda.so.1`, bound at start", Way::Linked("-Wl,-z,now"), Held, Held),
    row("`dlopen`s it and looks up by `dlsym`", Way::Word("handle", None), Held, Held),
    row("looks up by `RTLD_DEFAULT`", Way::Word("default", None), Held, Held),
    row("looks up by `RTLD_NEXT`", Way::Word("next", None), Held, Held),
    row("looks up by `dlvsym`", Way::Word("version", None), Nothing, Nothing),
    row("asks `cuGetProcAddress`, also for itself", Way::Word("address", None), Held, Held),
    row("`dlopen`s `libcuda.so`", Way::Word("unversioned", None), Held, Held),
    row("looks up in 64 threads at once", Way::Word("threads", None), Held, Held),
    row("has another preload that overrides `dlsym` by a jump", Way::Beside(&["-DTAIL"]), Held, Held),
    row("has another preload that overrides `dlsym` by a call", Way::Beside(&[]), Held, Held),
    row("has the jumping one in front", Way::Before(&["-DTAIL"]), Past, Held),
    row("has the calling one in front", Way::Before(&[]), Past, Held),
    row("opens a linked library with `RTLD_DEEPBIND`", Way::Word("deep", Some(deep)), Past, Held),
    row("opens a library with `RTLD_DEEPBIND` that looks up by `dlsym`", Way::Word("deep-lookup", Some(deep)), Past, Held),
    row("opens the driver in a namespace of its own (`dlmopen`)", Way::Word("namespace", None), Past, Held),
    row("`dlopen`s the driver's file by its path", Way::Word("path", Some(driver_file)), Held, Held),
    row("`dlopen`s a copy of the driver's file", Way::Word("path", Some(copied_driver)), Held, Past),
    row("`dlopen`s the driver's file from where it was put aside", Way::Word("path", Some(put_aside)), Held, Past),
    row("clears its environment", Way::Cleared, Past, Held),
    row("names another slice in its environment", Way::Renamed, Refused, Held),
    row("is started by the loader's path (`ld.so PROGRAM`)", Way::Loader, Held, Held),
    row("is a set-user-ID program", Way::Privileged, Past, Held),
];

impl Way {
    fn command(self, rig: &Rig, form: Form) -> Command {
        let ways = || compiled("ways.c", "ways", &[]);
        let by_word = |word: &str| {
            let mut command = held(rig, &ways(), form);
            command.arg(word);
            command
        };
        match self {
            Way::Linked(flag) => {
                let folder = format!("-L{}", driver_folder().display());
                let flags = ["-DLINKED", &folder, "-Wl,--no-as-needed", "-lcuda", flag];
                let name = format!("ways-linked{}", flag.len());
                held(rig, &compiled("ways.c", &name, &flags), form)
            }
            Way::Word(word, library) => {
                let mut command = by_word(word);
                let file = library.map(|library| library());
                let is_gone = form == Form::Preload && file.as_deref() == Some(&put_aside());
                command.args(if is_gone { Some(driver_file()) } else { file });
                command
            }
            Way::Beside(flags) => with_second(by_word("handle"), flags, form, true),
            Way::Before(flags) => with_second(by_word("handle"), flags, form, false),
            Way::Cleared => {
                let mut command = by_word("handle");
                command.env_remove("LD_PRELOAD").env_remove("DIVVY_SLICE");
                command
            }
            Way::Renamed => {
                let mut command = by_word("handle");
                command.env("DIVVY_SLICE", "/no/such/slice");
                command
            }
            Way::Loader => {
                let mut command = held(rig, Path::new(LOADER), form);
                command.arg(ways()).arg("handle");
                command
            }
            Way::Privileged => {
                // The kernel asks whether the new effective user is another than the old real one (capabilities(7)).
                let mut command = held(rig, Path::new("/usr/bin/setpriv"), form);
                command.args(["--ruid=65534", "--euid=0"]).arg(ways());
                command.args(["path", &driver_file()]);
                command
            }
        }
    }
}

/// `program` in the slice, on the installed driver, with the limiter in that form.
fn held(rig: &Rig, program: &Path, form: Form) -> Command {
    if form == Form::Wrapper && !*MAY_MOUNT {
        let mut command = rig.held(program, form);
        command.env("LD_LIBRARY_PATH", wrapper_folder());
        return command;
    }
    let mut command = match form {
        Form::Preload => Command::new(program),
        Form::Wrapper => {
            let mut command = Command::new("unshare");
            let [wrapper, _] = wrappers();
            command.args(["--mount", "sh", "-c", MOUNTS, "sh", &driver_file()]);
            command.args([wrapper, rig.slice_folder(), program.to_owned()]);
            command
        }
    };
    let limited = rig.held(program, form);
    for (name, value) in limited.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("LD_LIBRARY_PATH", installed());
    command
}

fn with_second(mut command: Command, flags: &[&str], form: Form, behind: bool) -> Command {
    let name = if flags.is_empty() {
        "call.so"
    } else {
        "tail.so"
    };
    let second = compiled("second_preload.c", name, flags);
    let second = second.display().to_string();
    let list = match (form, behind) {
        (Form::Wrapper, _) => second,
        (Form::Preload, true) => format!("{}:{second}", preload().display()),
        (Form::Preload, false) => format!("{second}:{}", preload().display()),
    };
    command.env("LD_PRELOAD", list);
    command
}

/// How a row comes out.
fn measured(rig: &Rig, row: &Row, form: Form) -> Cell {
    let output = row
        .way
        .command(rig, form)
        .output_bounded()
        .expect("it runs");
    rig.settle_the_dead();
    let said = String::from_utf8_lossy(&output.stdout);
    let problem = || {
        format!(
            "{form:?}: a program that {}: {} {}",
            row.does,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
    };
    // The probe says by its exit code that a function is missing, or that there is no context, which needs memory too.
    match output.status.code() {
        Some(3) => return Nothing,
        Some(4) => return Refused,
        _ => {}
    }
    match said.trim().parse::<u64>() {
        Ok(0) => Refused,
        Ok(bytes) if bytes == ROOM => Held,
        Ok(bytes) if bytes > ROOM + CONTEXT + 64 * MIB => Past,
        _ => panic!("{}: it got {said}", problem()),
    }
}

#[test]
fn every_way_to_the_driver_comes_out_as_the_table_says() {
    let rig = Rig::new(1, ROOM);
    for row in ROWS {
        for (form, expected) in [(Form::Preload, row.preload), (Form::Wrapper, row.wrapper)] {
            let is_roots = matches!(row.way, Way::Privileged);
            let needs_root = is_roots || form == Form::Wrapper && row.way.is_about_mounts();
            if needs_root && !*MAY_MOUNT {
                continue;
            }
            let cell = measured(&rig, row, form);
            assert_eq!(cell, expected, "{form:?}: a program that {}", row.does);
        }
    }
}

#[test]
fn the_reference_page_shows_this_table() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/enforcement.md");
    const BEGIN: &str = "<!-- made from crates/shim/tests/it/matrix.rs: begin -->\n";
    const END: &str = "<!-- made from crates/shim/tests/it/matrix.rs: end -->\n";
    let said = |cell| match cell {
        Held => "held",
        Past => "**not held**",
        Refused => "gets no memory",
        Nothing => "finds nothing",
    };
    let line = |row: &Row| {
        let (does, preload, wrapper) = (row.does, said(row.preload), said(row.wrapper));
        format!("| {does} | {preload} | {wrapper} |\n")
    };
    let rows: String = ROWS.iter().map(line).collect();
    let table = format!("| a program that | preload | wrapper |\n|---|---|---|\n{rows}");
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("the page has the first marker");
    let (shown, after) = rest.split_once(END).expect("the page has the last marker");
    if std::env::var_os("DIVVY_RECORD").is_some() {
        std::fs::write(PAGE, [before, BEGIN, &table, END, after].concat()).expect("the page");
    } else {
        assert_eq!(
            shown, table,
            "run this test with DIVVY_RECORD=1 to rewrite the page"
        );
    }
}
