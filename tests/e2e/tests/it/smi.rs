//! What NVIDIA's own monitor shows and may do in a slice: the genuine nvidia-smi over the simulated driver. It is not ours to
//! ship; `cargo xtask test` fetches it where a package of it can be had, and without it these tests say so and check nothing.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use divvy_e2e::{Dialog, GIB, Home};
use divvy_testkit::Bounded as _;

fn nvidia_smi() -> Option<PathBuf> {
    let program = std::env::var_os("DIVVY_TEST_NVIDIA_SMI").map(PathBuf::from);
    let program = program.filter(|program| program.is_file());
    if program.is_none() {
        eprintln!("skipped: DIVVY_TEST_NVIDIA_SMI does not name NVIDIA's nvidia-smi");
    }
    program
}

/// Instances whose jobs get each form of the limiter that can be had here.
fn homes() -> Vec<(&'static str, Home)> {
    let may_mount = Command::new("unshare")
        .args(["--mount", "mount", "--make-rslave", "/"])
        .stderr(Stdio::null())
        .wait_bounded()
        .is_ok_and(|status| status.success());
    if !may_mount {
        eprintln!(
            "skipped in part: this machine lets nobody mount, so no job can have the wrapper"
        );
    }
    let forms = if may_mount {
        &["preload", "wrapper"][..]
    } else {
        &["preload"]
    };
    let home = |form: &&'static str| (*form, Home::new("a100-80gb:2").variable("DIVVY_FORM", form));
    forms.iter().map(home).collect()
}

/// Holds memory in the slice while nvidia-smi looks in all the ways there are, each answer under a heading.
const LOOKS: &str = r#"
mkfifo "$3/said" || exit 9
"$2" hold --bytes 1073741824 --until-file "$3/done" >"$3/said" &
holder=$!
exec 3<"$3/said"
read held <&3 || exit 8
echo "== holder"; echo $holder
look() { echo "== $1"; shift; "$@" || echo "failed with $?"; }
look table "$1"
look gpus "$1" --query-gpu=memory.total,memory.used,memory.free,utilization.gpu --format=csv,noheader,nounits
look apps "$1" --query-compute-apps=pid,used_memory,name --format=csv,noheader,nounits
look list "$1" -L
look full "$1" -q
look pmon "$1" pmon -c 1
look dmon "$1" dmon -c 1
look reset "$1" --gpu-reset -i 0
look mode "$1" -i 0 -c 3
look persistence "$1" -i 0 -pm 0
look mig "$1" -i 0 -mig 1
touch "$3/done"
wait $holder
"#;

/// What stands under a heading.
#[track_caller]
fn under<'a>(said: &'a str, heading: &str) -> &'a str {
    let start = said
        .split_once(&format!("== {heading}\n"))
        .unwrap_or_else(|| panic!("no {heading} in {said}"));
    start.1.split("== ").next().unwrap_or_default()
}

#[test]
fn in_a_slice_nvidia_smi_shows_the_slice_and_outside_it_shows_all() {
    let Some(smi) = nvidia_smi() else { return };
    for (form, home) in homes() {
        let _daemon = home.daemon(&[]);
        let probe = home.program("cudarc_probe");
        let overhead = home.items(&["gpus"])[0]["context_overhead_bytes"]
            .as_u64()
            .expect("a figure");
        // Somebody else on the same GPU, outside every slice.
        let mut outside = home.outside(&probe);
        outside.args([
            "hold",
            "--bytes",
            &(2 * GIB).to_string(),
            "--until-file",
            &home.gate("stranger"),
        ]);
        let mut stranger = Dialog::start(outside.env("CUDA_VISIBLE_DEVICES", "0"));
        let _ = stranger.listen();

        let folder = home.scratch().join("looks");
        std::fs::create_dir(&folder).expect("a folder");
        let (smi, folder) = (smi.to_str().expect("text"), folder.to_str().expect("text"));
        let words = [
            "run",
            "--gpu-memory",
            "4G",
            "--",
            "sh",
            "-c",
            LOOKS,
            "sh",
            smi,
            &probe,
            folder,
        ];
        let said = home.divvy(&words).ok();
        assert_eq!(said.stderr, "", "{form}");
        let said = said.stdout;
        let holder = under(&said, "holder").trim();
        let used = (GIB + overhead) >> 20;

        let gpus: Vec<Vec<u64>> = under(&said, "gpus")
            .lines()
            .map(|line| {
                line.split(", ")
                    .map(|figure| figure.parse().expect("a figure"))
                    .collect()
            })
            .collect();
        assert_eq!(gpus.len(), 2, "{form}: {gpus:?}");
        let slices: Vec<_> = gpus.iter().filter(|gpu| gpu[0] == 4096).collect();
        assert_eq!(slices.len(), 1, "{form}: {gpus:?}");
        assert_eq!(slices[0][..3], [4096, used, 4096 - used], "{form}");

        let table = under(&said, "table");
        let row = table
            .lines()
            .find(|line| line.contains(holder))
            .unwrap_or_else(|| panic!("{form}: {table}"));
        assert!(
            row.contains(&format!("{used}MiB")) && row.contains("cudarc_probe"),
            "{form}: {row}"
        );
        assert!(
            table.contains(&format!("{used}MiB /  4096MiB")),
            "{form}: {table}"
        );
        let stranger_pid = stranger.pid().to_string();
        for heading in ["table", "apps", "full", "pmon"] {
            let text = under(&said, heading);
            assert!(
                !text
                    .split_whitespace()
                    .any(|word| word.trim_end_matches(',') == stranger_pid),
                "{form}: {heading}: {text}"
            );
            assert!(text.contains(holder), "{form}: {heading}: {text}");
            assert!(!text.contains("failed with"), "{form}: {heading}: {text}");
        }
        assert!(
            under(&said, "apps").starts_with(&format!("{holder}, {used}, ")),
            "{form}"
        );
        assert_eq!(under(&said, "list").lines().count(), 2, "{form}");
        assert!(
            under(&said, "dmon")
                .lines()
                .filter(|line| !line.starts_with('#'))
                .count()
                >= 2,
            "{form}"
        );

        for heading in ["mode", "persistence", "mig"] {
            let text = under(&said, heading);
            assert!(
                text.contains("Insufficient Permissions") && text.contains("failed with"),
                "{form}: {heading}: {text}"
            );
        }
        let reset = under(&said, "reset");
        assert!(
            !reset.contains("successfully") && reset.contains("failed with"),
            "{form}: {reset}"
        );

        // Outside, everything.
        let look = |words: &[&str]| {
            let output = home
                .outside(smi)
                .args(words)
                .output_bounded()
                .expect("it runs");
            String::from_utf8(output.stdout).expect("text")
        };
        let apps = look(&[
            "--query-compute-apps=pid,used_memory",
            "--format=csv,noheader,nounits",
        ]);
        assert!(apps.contains(&stranger_pid), "{form}: {apps}");
        let mode = || {
            look(&[
                "-i",
                "0",
                "--query-gpu=compute_mode",
                "--format=csv,noheader",
            ])
        };
        assert_eq!(mode().trim(), "Default", "{form}: a job has changed it");
        if rustix::process::geteuid().is_root() {
            let said = look(&["-i", "0", "-c", "3"]);
            assert_eq!(mode().trim(), "Exclusive_Process", "{form}: {said}");
        }
        assert!(look(&[]).contains("81920MiB"), "{form}");
        home.open("stranger");
        assert_eq!(stranger.finish(), 0);
    }
}
