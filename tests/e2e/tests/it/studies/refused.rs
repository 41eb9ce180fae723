//! Input and flags that a study refuses, with what to do.

use super::*;

#[test]
fn what_cannot_be_simulated_is_refused_with_what_to_do() {
    let home = Home::new("a100-40gb:1");
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n";
    let broken = file("broken.csv", &format!("{pods}a,1,1,1,500,\nb,1,x,1,500,\n"));
    let model = file(
        "model.csv",
        &format!("{pods}a,1,1,1,500,\nb,1,1,1,500,G9\n"),
    );
    let empty = file("empty.csv", pods);
    let times = file(
        "times.txt",
        "7|2026-03-04T12:00:00|2026-03-04T12:05:00|2026-03-04T11:04:00|gres/gpu=1|gpu|COMPLETED\n",
    );
    let nothing = file("nothing.txt", "what is this\n");
    let nodes = "--nodes openb/nodes.csv";
    for (words, said) in [
        (
            format!("{broken} {nodes}"),
            "broken.csv: line 3, column memory_mib: `x`: not a number",
        ),
        (
            format!("{model} {nodes}"),
            "model.csv: line 3, job b: unknown model `G9`: no node has it",
        ),
        (
            format!("{model} --mode waits --gpus a100-80gb:1"),
            "line 3, job b: unknown model `G9`: no node has it",
        ),
        (
            format!("{times} --mode waits --gpus a100-80gb:1"),
            "line 1, column End: `2026-03-04T11:04:00`: before Start",
        ),
        (
            format!("{empty} {nodes}"),
            "empty.csv: no jobs found (openb)",
        ),
        (format!("{nothing} {nodes}"), "nothing.txt: unknown format"),
        (
            format!("/nonexistent/jobs {nodes}"),
            "cannot read /nonexistent/jobs",
        ),
        ("--mode fill".to_owned(), "this study needs jobs"),
        (
            "openb/pods.csv --mode fill".to_owned(),
            "this study needs nodes",
        ),
        (
            "openb/pods.csv --mode fill --gpus v100:8".to_owned(),
            "unknown model `v100`",
        ),
        (
            format!("openb/pods.csv {nodes} --policy first-fit"),
            "invalid value 'first-fit' for '--policy <LIST>'",
        ),
        (
            format!("openb/pods.csv {nodes} --policy queue --mode departures"),
            "--policy queue: jobs that come and go",
        ),
        (
            format!("openb/pods.csv {nodes} --load 0.5"),
            "--mode fill does not use --load",
        ),
        (
            format!("openb/pods.csv {nodes} --svg /nonexistent/a.svg --policy best-fit"),
            "--svg: cannot write /nonexistent/a.svg",
        ),
        (
            format!("{WAITS} --job -g 0.5 --svg a.svg"),
            "--job does not use --svg: it draws no chart",
        ),
        (
            format!("{WAITS} --timing"),
            "--mode waits does not use --timing",
        ),
        ("--policy fgd".to_owned(), "this study needs jobs"),
        (
            format!("{WAITS} --queue-first nobody"),
            "there is no queue nobody",
        ),
        (
            format!("{WAITS} --quota vision=4"),
            "there is no project vision",
        ),
        (
            format!("{WAITS} --gpu-mode 9=mig"),
            "there is no GPU 9: the scene has 2",
        ),
        (format!("{WAITS} --gpu-mode 0=fast"), "--gpu-mode 0=fast"),
        (
            format!("{WAITS} --queues half,half"),
            "--queues: half is listed twice",
        ),
        (format!("{WAITS} --queues half=0.3"), "--queues half=0.3"),
        (
            format!("{WAITS} --policy fgd"),
            "--mode waits does not use --policy",
        ),
        (
            format!("{WAITS} --job -g 0.5 --backfill on"),
            "--job does not use --backfill",
        ),
        (format!("{WAITS} --job"), "--job: the amount is missing"),
        (
            format!("{WAITS} --arrivals 300000"),
            "300000 jobs: at most 200000 can be simulated",
        ),
    ] {
        let refused = simulate(&home, &words).exits(2);
        assert!(refused.stdout.is_empty(), "{words}: {}", refused.stdout);
        for word in [said, "error: ", "hint: "] {
            assert!(refused.stderr.contains(word), "{words}: {}", refused.stderr);
        }
    }
    let json = simulate(&home, &format!("{broken} {nodes} -o json")).exits(2);
    assert!(json.stderr.starts_with('{'), "{}", json.stderr);
}
