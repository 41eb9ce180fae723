use std::path::{Path, PathBuf};

use super::super::flags::{FLAGS, FlagRule, UserRule};
use super::super::{ContainerOptionError, check_submitter, options, without_env, words};
use super::*;

fn judged(line: &str) -> Result<(), ContainerOptionError> {
    let groups = [(1002, "lab".to_owned()), (100, "users".to_owned())];
    let folders = [PathBuf::from("/data"), PathBuf::from("/home/lee")];
    let submitter = Submitter {
        uid: 1001,
        gid: 1002,
        name: "lee",
        groups: &groups,
        folders: &folders,
        cwd: Path::new("/home/lee/project"),
    };
    check_submitter(&words::split(line).unwrap(), &submitter)
}

/// Flags that every caller may give whose containers have the engine's rights, and a submitter may not.
const REFUSED: &[&str] = &[
    "-u 0",
    "-u root",
    "--user 0:0",
    "--user=root:root",
    "-u app",
    "-u 1001:0",
    "-u 1001:100",
    "-u lee:docker",
    "-u 01001",
    "-u +1001",
    "-u :0",
    "-u ''",
    "-u 4294968297",
    "--group-add 0",
    "--group-add docker",
    "--group-add 0100",
    "--group-add users,docker",
    "-v /etc:/e",
    "-v /etc/shadow:/s",
    "-v /home/lee2:/h",
    "-v /home:/h",
    "-v /data/../etc:/e",
    "-v /data/../../data2:/d",
    "-v ../../ana:/a",
    "-v /srv/docker:/d",
    "--mount type=bind,src=/etc,dst=/e",
    "--mount type=bind,source=/data/../etc,target=/e,readonly",
    "-v cache:/cache",
    "--mount source=cache,target=/cache",
    "--mount type=volume,src=cache,dst=/cache",
    "-v /data:/d:z",
    "-v /data:/d:ro,Z",
    "-v /data:/d -v /data/x:/d/x",
    "-v /data:/d --tmpfs /d/t",
    "-v /data:/d -v /d/volume",
    "-v /data/passwd:/etc/passwd",
    "-v /data/group:/etc/./group",
    "--tmpfs /t:uid=0",
    "--tmpfs /t:suid",
    "--tmpfs /t:dev,size=1m",
    "--tmpfs /t:mpol=bind",
    "--network mine",
    "--net db_internal",
    "--ipc shareable",
    "-p 80:80",
    "-p 8080:80",
    "-p 80",
    "-p 0.0.0.0:8080:80",
    "-p 127.0.0.1:80:80",
    "-p 192.168.1.1:8080:80",
    "-p [::1]:1023:80",
    "-P",
    "--publish-all",
    "--sysctl net.ipv4.ip_unprivileged_port_start=0",
    "--ulimit rtprio=99",
    "--ulimit nice=40",
    "--ulimit nproc=100000",
    "--ulimit sigpending=1000000",
    "--cpu-shares 262144",
    "-c 2000",
    "-l traefik.enable=true",
    "--label a=b",
    "-w /proc/self/fd/7",
    "-w /x/../proc/1/cwd",
    "-w relative",
    "-w /dev/fd",
];

const TAKEN: &[&str] = &[
    "",
    "-u 1001",
    "-u lee",
    "-u 1001:1002",
    "-u lee:lab",
    "--group-add users --group-add 100",
    "-v /data:/data -v /home/lee:/home/lee:ro",
    "-v ./sets:/sets",
    "-v ../other:/other",
    "-v /data/a/../b:/b",
    "--mount type=bind,src=/data/x,dst=/x,readonly",
    "-v /scratch",
    "--tmpfs /t:size=1g,mode=1777,noexec",
    "--mount type=tmpfs,target=/u,tmpfs-size=1m",
    "--tmpfs /t -v /data:/t/data",
    "--network host",
    "--net none",
    "--ipc private",
    "-p 127.0.0.1:8888:8888 -p 127.0.0.1::6006 -p [::1]:7000:7000",
    "--ulimit memlock=-1 --ulimit stack=67108864 --ulimit nofile=4096:8192",
    "--cpu-shares 512 --cpus 2 -m 8g --shm-size 8g --pids-limit 100",
    "-it --rm --init --entrypoint sh -h box -w /work -e A=1 --read-only",
    "--cap-drop ALL --security-opt no-new-privileges --cgroupns private",
    "--restart no --pull never --stop-signal INT --no-healthcheck",
];

#[test]
fn a_submitter_has_no_right_of_the_engine_that_the_user_lacks() {
    for line in REFUSED {
        let refused = judged(line).expect_err(line);
        assert!(refused.is_escape(), "{line}: {refused}");
        assert!(!refused.hint().is_empty(), "{line}");
        // Callers with the engine's rights may give it.
        let words = words::split(line).unwrap();
        assert!(options(&words).is_ok(), "{line}");
        // The words that the daemon stores are judged alike.
        let stored = without_env(&words).unwrap().join(" ");
        assert!(judged(&stored).is_err(), "{stored}");
    }
}

#[test]
fn what_gives_no_right_is_taken() {
    for line in TAKEN {
        assert_eq!(judged(line), Ok(()), "{line}");
    }
}

#[test]
fn what_is_refused_for_all_is_refused_for_a_submitter() {
    for flag in FLAGS {
        let is_refused = matches!(flag.rule, FlagRule::Refuse { .. });
        let for_users = matches!(flag.users, UserRule::Refused);
        assert_eq!(is_refused, for_users, "--{}", flag.long);
        if is_refused {
            let word = format!("--{}=x", flag.long);
            assert!(
                judged(&word).is_err_and(|error| error.is_escape()),
                "{word}"
            );
        }
    }
}

#[test]
fn a_refusal_names_the_folders_that_are_opened() {
    let refused = judged("-v /etc:/e").unwrap_err();
    assert_eq!(
        refused.to_string(),
        "--volume=/etc:/e is refused: /etc is below no folder for mounts"
    );
    assert_eq!(refused.hint(), "mount a folder below /data, /home/lee");
}

#[test]
fn every_flag_of_the_table_has_a_case_here() {
    let cases = || REFUSED.iter().chain(TAKEN);
    for flag in FLAGS {
        let judge = matches!(flag.users, UserRule::Judge(_) | UserRule::Admins { .. });
        let long = format!("--{}", flag.long);
        let short = flag.short.map(|letter| format!("-{letter}"));
        let names = |line: &str| {
            words::split(line)
                .unwrap()
                .iter()
                .any(|word| word.starts_with(&long) || short.as_deref() == Some(word))
        };
        assert!(!judge || cases().any(|line| names(line)), "{long}");
    }
}
