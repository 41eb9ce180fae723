use proptest::prelude::*;

use super::*;

fn split_words(line: &str) -> Vec<String> {
    words::split(line).unwrap()
}

fn parse(line: &str) -> Options {
    options(&split_words(line)).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[track_caller]
fn refused(line: &str) -> ContainerOptionError {
    options(&split_words(line)).expect_err(line)
}

#[test]
fn a_line_is_split_at_its_image() {
    let own = [("--gpu-memory", true), ("-g", true), ("--no-wait", false)];
    let line = parse_command_line(
        &split_words(
            "--gpu-memory 8G -it --rm -v /a:/b --no-wait -e A=1 u22:latest python -c 'x y' -g",
        ),
        &own,
    )
    .unwrap();
    assert_eq!(line.own, ["--gpu-memory", "8G", "--no-wait"]);
    assert_eq!(line.arguments, ["-it", "--rm", "-v", "/a:/b", "-e", "A=1"]);
    assert_eq!(line.image, "u22:latest");
    assert_eq!(line.command, ["python", "-c", "x y", "-g"]);
    let line = parse_command_line(
        &split_words("-g=0.5 --name=x -- img"),
        &[("-g", true), ("--name", true)],
    )
    .unwrap();
    assert_eq!((line.own.len(), line.image.as_str()), (2, "img"));
    assert!(line.command.is_empty());
    for (line, error) in [
        ("-it", ContainerOptionError::NoImage),
        ("-it --", ContainerOptionError::NoImage),
        ("", ContainerOptionError::NoImage),
    ] {
        assert_eq!(
            parse_command_line(&split_words(line), &own),
            Err(error),
            "{line}"
        );
    }
    assert!(matches!(
        parse_command_line(&split_words("--nonsense img"), &own),
        Err(ContainerOptionError::Unknown { .. })
    ));
    assert!(matches!(
        parse_command_line(&split_words("-v"), &own),
        Err(ContainerOptionError::Wrong { .. })
    ));
}

#[test]
fn flags_are_read_in_every_way_of_writing_them() {
    for line in [
        "-it",
        "-i -t",
        "--interactive --tty",
        "-i=true --tty=true",
        "-ti",
    ] {
        let options = parse(line);
        assert!(options.interactive && options.tty, "{line}");
    }
    for line in [
        "-m 8g",
        "-m8g",
        "-m=8g",
        "--memory 8g",
        "--memory=8g",
        "--memory=8GiB",
    ] {
        assert_eq!(parse(line).memory, Some(8 << 30), "{line}");
    }
    assert!(!parse("--init=false").init);
    let options = parse("-itu 1000:1000 -w/work -h box --cpus 1.5 --shm-size 512m");
    assert!(options.tty && options.interactive);
    assert_eq!(options.user.as_deref(), Some("1000:1000"));
    assert_eq!(options.workdir.as_deref(), Some("/work"));
    assert_eq!(options.hostname.as_deref(), Some("box"));
    assert_eq!(options.nano_cpus, Some(1_500_000_000));
    assert_eq!(options.shm_size, Some(512 << 20));
    assert_eq!(
        parse("-e A=1 -eB -e C=").env,
        [
            ("A".to_owned(), Some("1".to_owned())),
            ("B".to_owned(), None),
            ("C".to_owned(), Some(String::new()))
        ]
    );
}

#[test]
fn mounts_and_ports_are_taken_apart() {
    let mounts = parse(
        "-v /a:/b -v data:/c:ro -v /d --mount type=bind,src=/e,dst=/f,readonly --tmpfs /t:size=1m \
         --mount type=tmpfs,target=/u,tmpfs-size=1m --mount source=vol,target=/w -v ./x:/y",
    )
    .mounts;
    let bind = |source: &str, target: &str, read_only| Mount::Bind {
        source: source.into(),
        target: target.into(),
        read_only,
    };
    let volume = |name: Option<&str>, target: &str, read_only| Mount::Volume {
        name: name.map(str::to_owned),
        target: target.into(),
        read_only,
    };
    let tmpfs = |target: &str, options: &str| Mount::Tmpfs {
        target: target.into(),
        options: options.into(),
    };
    assert_eq!(
        mounts,
        [
            bind("/a", "/b", false),
            volume(Some("data"), "/c", true),
            volume(None, "/d", false),
            bind("/e", "/f", true),
            tmpfs("/t", "size=1m"),
            tmpfs("/u", "size=1048576"),
            volume(Some("vol"), "/w", false),
            bind("./x", "/y", false),
        ]
    );
    let port = |container: &str, ip: Option<&str>, host: Option<&str>| Port {
        container: container.into(),
        host_ip: ip.map(str::to_owned),
        host_port: host.map(str::to_owned),
    };
    assert_eq!(
        parse("-p 80 -p 8080:80 -p 127.0.0.1:81:80/udp -p 127.0.0.1::80").publish,
        [
            port("80/tcp", None, None),
            port("80/tcp", None, Some("8080")),
            port("80/udp", Some("127.0.0.1"), Some("81")),
            port("80/tcp", Some("127.0.0.1"), None),
        ]
    );
}

/// Every way out of a slice that is known, in the ways they can be written.
const ESCAPES: &[&str] = &[
    "--gpus 2",
    "--gpus device=2",
    "--gpus '\"device=2\"'",
    "--privileged",
    "--privileged=true",
    "-it --privileged",
    "--pid=host",
    "--pid host",
    "--pid container:x",
    "--ipc=host",
    "--ipc container:x",
    "--device /dev/nvidia0",
    "--device=/dev/nvidia0:/dev/x",
    "--device nvidia.com/gpu=all",
    "--device-cgroup-rule 'c 195:* rwm'",
    "--runtime runc",
    "--runtime=/usr/bin/nvidia",
    "-v /var/run/docker.sock:/var/run/docker.sock",
    "-v /run/docker.sock:/x",
    "-v /run:/x",
    "-v /:/host",
    "-v /dev:/x",
    "-v /dev/nvidia0:/x",
    "-v /proc:/x",
    "-v /x:/run/divvy-job",
    "-v /x:/run/divvy-job/slice:ro",
    "-v /x:/etc/ld.so.preload",
    "-v /x:/etc",
    "-v /x:/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "-v /x:/usr/lib64/libnvidia-ml.so.1",
    "-v /x:/a/../etc/ld.so.preload",
    "-v vol:/usr/lib",
    "-v /etc/ld.so.preload",
    "--mount type=bind,source=/var/run/docker.sock,target=/s",
    "--mount type=bind,src=/x,dst=/etc/ld.so.preload",
    "--mount type=tmpfs,target=/run/divvy-job",
    "--mount source=v,target=/usr/lib64",
    "--mount type=volume,source=v,target=/v,volume-opt=device=/",
    "--tmpfs /run/divvy-job",
    "--tmpfs /run",
    "--volumes-from other",
    "--cap-add SYS_ADMIN",
    "--cap-add=ALL",
    "--security-opt seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
    "--cgroup-parent /x",
    "--cgroupns host",
    "--userns host",
    "--uts host",
    "--use-api-socket",
    "--annotation a=b",
    "-e LD_PRELOAD=/x.so",
    "-eLD_PRELOAD=/x.so",
    "--env LD_LIBRARY_PATH=/x",
    "-e LD_AUDIT=/x",
    "-e DIVVY_SHIM=off",
    "--network container:other",
    "--net=container:0badcafe",
    "--network ns:/proc/1/ns/net",
    "--net=ns:/run/netns/other",
    "--network pasta:--pcap,/etc/cron.d/x",
    "--network slirp4netns:allow_host_loopback=true",
    "--network bridge:ip=10.0.0.9",
    "-e DIVVY_SLICE",
    "-e CUDA_VISIBLE_DEVICES=0",
    "-l divvy.job=7",
    "--restart always",
    "--log-driver none",
];

#[test]
fn every_known_way_out_of_a_slice_is_refused_by_name_with_a_hint() {
    for line in ESCAPES {
        let refusal = refused(line);
        assert!(refusal.is_escape(), "{line}: {refusal:?}");
        let name = split_words(line)
            .iter()
            .rfind(|word| word.starts_with("--"))
            .and_then(|word| word.split('=').next().map(str::to_owned));
        if let Some(name) = name {
            assert!(refusal.to_string().contains(&name), "{line}: {refusal}");
        }
        assert!(!refusal.hint().is_empty(), "{line}");
    }
}

#[test]
fn a_tutorials_flags_for_gpus_have_no_effect_in_a_slice() {
    let line = "--gpus all --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=2 -e A=1 --init";
    let options = parse(line);
    let ignored = [
        "--gpus all",
        "--runtime=nvidia",
        "-e NVIDIA_VISIBLE_DEVICES=2",
    ];
    assert_eq!(options.ignored, ignored);
    assert_eq!(options.env, [("A".to_owned(), Some("1".to_owned()))]);
    // None of them reaches the engine.
    assert_eq!(without_env(&split_words(line)).unwrap(), ["--init"]);
}

#[test]
fn all_refused_flags_of_a_line_are_named_together() {
    let refusal = refused("--ipc=host --privileged -v /srv:/srv --cpus nine");
    assert!(refusal.is_escape());
    let (text, hint) = (refusal.to_string(), refusal.hint());
    for (flag, way) in [
        ("--ipc=host", "--shm-size"),
        ("--privileged", "--privileged: leave it out"),
        ("--cpus=nine", "--cpus: write it"),
    ] {
        assert!(text.contains(flag) && hint.contains(way), "{text}\n{hint}");
    }
    assert!(!text.contains("/srv"));
}

#[test]
fn a_refused_variable_is_named_without_its_value() {
    let refusal = refused("-e LD_PRELOAD=/secret/x.so").to_string();
    assert!(refusal.contains("LD_PRELOAD"), "{refusal}");
    assert!(!refusal.contains("secret"), "{refusal}");
}

#[test]
fn what_is_no_flag_or_badly_written_is_not_an_escape() {
    for line in [
        "--nonsense",
        "-X",
        "-iX",
        "--memory lots",
        "--cpus -1",
        "--cpus 1.2.3",
        "--init=perhaps",
        "-p a:b",
        "-v a:b:c:d",
        "-v a/b:/c",
        "--ulimit nofile",
        "--mount type=bind,target=/x",
        "--mount type=npipe,source=a,target=/x",
        "--pull sometimes",
        "--network name=mine,alias=me",
        "--network /proc/1/ns/net",
        "-e =x",
        "-m",
        "image",
        "-",
    ] {
        assert!(!refused(line).is_escape(), "{line}");
    }
}

#[test]
fn variables_travel_apart_from_the_other_words() {
    let line = split_words("-it -e SECRET=x --env-file=/f -v /a:/b --init=false -m 1g");
    let rest = without_env(&line).unwrap();
    assert_eq!(
        rest,
        [
            "--interactive",
            "--tty",
            "--volume=/a:/b",
            "--init=false",
            "--memory=1g"
        ]
    );
    let (mut all, rest) = (options(&line).unwrap(), options(&rest).unwrap());
    (all.env, all.env_files) = (Vec::new(), Vec::new());
    assert_eq!(all, rest);
}

#[test]
fn no_two_flags_have_one_name() {
    for (at, one) in flags::FLAGS.iter().enumerate() {
        for other in &flags::FLAGS[at + 1..] {
            assert_ne!(one.long, other.long);
            assert!(
                one.short.is_none() || one.short != other.short,
                "{}",
                one.long
            );
        }
    }
}

/// Harmless flags, with which an escape is surrounded.
fn harmless() -> impl Strategy<Value = Vec<String>> {
    let one = prop::sample::select(vec![
        "-it",
        "--rm",
        "-v /data:/data",
        "-e A=b",
        "--shm-size=1g",
        "-p 80:80",
        "-w /x",
        "--label a=b",
    ]);
    prop::collection::vec(one, 0..5)
        .prop_map(|lines| lines.into_iter().flat_map(split_words).collect())
}

proptest! {
    #[test]
    fn an_escape_is_seen_wherever_it_stands(
        before in harmless(),
        escape in prop::sample::select(ESCAPES),
        after in harmless(),
    ) {
        let line = [before, split_words(escape), after].concat();
        prop_assert!(options(&line).is_err_and(|refusal| refusal.is_escape()));
        // As one word a flag, it is still seen.
        if let Ok(canonical) = without_env(&line)
            && !escape.contains("-e") {
            prop_assert!(options(&canonical).is_err_and(|refusal| refusal.is_escape()));
        }
    }

    #[test]
    fn no_words_at_all_make_the_parser_panic_and_what_passes_touches_nothing_kept(
        line in prop::collection::vec("(-[a-zA-Z]{1,3}|--[a-z-]{2,12}|[ -~]{0,24})", 0..6)
    ) {
        let _ = parse_command_line(&line, &[]);
        if let Ok(options) = options(&line) {
            for mount in &options.mounts {
                prop_assert!(paths::target(mount.target()).is_ok());
            }
            for (name, _) in &options.env {
                prop_assert!(env_name(name).is_ok());
            }
        }
    }

    #[test]
    fn any_spelling_of_a_kept_path_is_kept(
        noise in prop::collection::vec(prop::sample::select(vec!["./", "x/../", "/", ""]), 4),
    ) {
        let target = format!("/{}run/{}divvy-job/{}slice/{}control", noise[0], noise[1], noise[2], noise[3]);
        prop_assert!(paths::target(&target).is_err());
    }
}
