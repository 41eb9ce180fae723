//! A real Prometheus and promtool over simulated daemons: the rules, the scrape configuration and the board as they are
//! shipped. Skipped with a reason where the programs are missing.

mod config;
mod lab;
pub mod server;

mod exhaustive {
    use std::collections::BTreeMap;
    use std::fs;
    use std::time::{Duration, Instant};

    use divvy_e2e::until;
    use serde_json::Value;

    use super::config::{self, Targets};
    use super::lab::{Lab, SmallDisk, write_token};
    use super::server::{Programs, Prometheus, free_port, serve_page};
    use crate::monitoring::files::{boards, expressions, root, rules};

    /// Where node_exporter finds pages, as in `divvy-textfile.service`.
    const TEXTFILE: &str = "divvy.prom";

    #[test]
    fn promtool_takes_the_configuration_and_the_rules_and_their_unit_tests_pass() {
        let Some(programs) = Programs::find() else {
            return;
        };
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let shipped = root().join("deploy/prometheus");
        for name in ["rules.yml", "rules_test.yml", "scrape.yml"] {
            fs::copy(shipped.join(name), folder.path().join(name)).expect("a shipped file");
        }
        let cluster = root().join("deploy/helm/divvy/files/prometheus/kubernetes.yml");
        fs::copy(cluster, folder.path().join("kubernetes.yml")).expect("a shipped file");
        write_token(&folder.path().join("divvy.token"));
        let promtool = |words: &[&str]| programs.promtool(folder.path(), words, "");
        let checked = promtool(&["check", "config", "scrape.yml"]).ok();
        assert!(checked.stdout.contains("SUCCESS"), "{}", checked.stdout);
        let checked = promtool(&["check", "rules", "rules.yml", "kubernetes.yml"]).ok();
        let found = format!("SUCCESS: {} rules found", rules().len());
        assert!(checked.stdout.contains(&found), "{}", checked.stdout);
        assert!(checked.stdout.contains("SUCCESS: 6 rules found"));
        let tested = promtool(&["test", "rules", "rules_test.yml"]).ok();
        assert!(tested.stdout.contains("SUCCESS"), "{}", tested.stdout);

        // A rule with another amount fails its test.
        let broken = fs::read_to_string(folder.path().join("rules.yml")).expect("it was copied");
        let broken = broken.replace("> 64 * 1024 * 1024", "> 64 * 1024 * 1024 * 1024");
        fs::write(folder.path().join("rules.yml"), broken).expect("the folder is ours");
        let tested = promtool(&["test", "rules", "rules_test.yml"]);
        assert!(tested.code != 0, "{}", tested.stdout);
        assert!(
            tested.stderr.contains("DivvyLedgerMismatch"),
            "{}",
            tested.stderr
        );
    }

    /// What an alert looked like when it fired, and how long after its cause.
    struct Fired {
        cause: &'static str,
        pending: Duration,
        firing: Duration,
        alert: Value,
    }

    /// Waits for an alert of a target, from its cause on.
    fn fires(
        prometheus: &Prometheus,
        name: &str,
        instance: &str,
        cause: &'static str,
        begun: Instant,
        mut meanwhile: impl FnMut(),
    ) -> Fired {
        let mut pending = None;
        until(format!("{name} fires"), || {
            meanwhile();
            let alerts = prometheus.alerts();
            let alert = alerts.into_iter().find(|alert| {
                let labels = &alert["labels"];
                labels["alertname"] == name && labels["instance"] == instance
            })?;
            let since = *pending.get_or_insert_with(|| begun.elapsed());
            (alert["state"] == "firing").then(|| Fired {
                cause,
                pending: since,
                firing: begun.elapsed(),
                alert,
            })
        })
    }

    /// Every alert of the rules, caused for real, and every expression of the board.
    #[test]
    fn each_expression_of_the_board_answers_and_each_alert_fires_for_its_cause() {
        let Some(programs) = Programs::find() else {
            return;
        };
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root divides a GPU and mounts a small file system");
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let token = folder.path().join("divvy.token");
        write_token(&token);
        let mut lab = Lab::start(&token);
        let disk = SmallDisk::start(&token);
        let gpus = lab.home.items(&["gpus"]);
        let dcgm = serve_page(config::dcgm_page(&gpus));
        let textfiles = folder.path().join("textfiles");
        fs::create_dir(&textfiles).expect("the folder is ours");
        fs::write(textfiles.join(TEXTFILE), lab.page()).expect("the folder is ours");
        let (node, exporter) = if programs.has("prometheus-node-exporter") {
            let port = free_port();
            let words = [
                "--collector.disable-defaults".to_owned(),
                "--collector.textfile".to_owned(),
                format!("--collector.textfile.directory={}", textfiles.display()),
                format!("--web.listen-address=127.0.0.1:{port}"),
            ];
            let log = folder.path().join("node.log");
            let exporter = programs.start("prometheus-node-exporter", &words, &log);
            (port, Some(exporter))
        } else {
            eprintln!("no prometheus-node-exporter: the test serves its metric itself");
            (
                serve_page(config::textfile_page(&textfiles.join(TEXTFILE))),
                None,
            )
        };
        let targets = Targets {
            divvy: vec![lab.port, disk.port],
            node,
            dcgm,
        };
        config::write(folder.path(), &targets);
        let prometheus = Prometheus::start(&programs, folder.path());
        let instance = |port: u16| format!("127.0.0.1:{port}");
        let (ours, theirs) = (instance(lab.port), instance(disk.port));

        until("both daemons are read", || {
            prometheus.query("up{job=\"divvy\"} == 1").len() == 2
        });
        // `honor_labels`: the number of a job stays in its label.
        lab.work();
        until("the series of jobs are there", || {
            prometheus.query("divvy_job_info{job=~\"[0-9]+\"}").len() >= 2
        });
        assert_eq!(
            prometheus.query("divvy_job_info{exported_job!=\"\"}").len(),
            0
        );
        if exporter.is_some() {
            // The page passes through node_exporter as it is.
            let errors = prometheus.query("node_textfile_scrape_error != 0");
            assert_eq!(errors.len(), 0);
            let passed = format!("divvy_gpu_info{{instance=\"{}\"}}", instance(node));
            assert_eq!(prometheus.query(&passed).len(), gpus.len());
        }
        let own = |alert: &&Value| {
            let labels = &alert["labels"];
            labels["instance"] == ours.as_str() && labels["alertname"] != "DivvyIdleJob"
        };
        let early = prometheus.alerts();
        assert_eq!(early.iter().find(own), None, "without a cause");

        let mut silent: Vec<String> = expressions(&boards().remove(0));
        let all = silent.len();
        let mut left = all;
        until("every expression of the board answers", || {
            // Short jobs: what counts starts and events has something to count.
            let job = lab.home.submit(&["-g", "0.1"], &["true"]);
            lab.home.ended(&job);
            silent.retain(|expression| {
                let expression = config::without_variables(expression);
                prometheus.query(&expression).is_empty()
            });
            if silent.len() != left {
                left = silent.len();
                eprintln!("{left} of {all} expressions are still silent: {silent:?}");
            }
            silent.is_empty()
        });

        // The held job has waited for longer than the rule allows, but not for GPUs.
        let held = "count(divvy_pending_jobs{reason=\"held\"} == 1)";
        assert_eq!(prometheus.query(held).len(), 1);
        let alerts = prometheus.alerts();
        let stuck = |alert: &&Value| alert["labels"]["alertname"] == "DivvyQueueStuck";
        assert_eq!(alerts.iter().find(stuck), None, "only a held job waits");

        let mut fired: BTreeMap<String, Fired> = BTreeMap::new();
        let mut check = |name: &str,
                         instance: &str,
                         cause: &'static str,
                         act: &mut dyn FnMut(),
                         meanwhile: &mut dyn FnMut()| {
            let begun = Instant::now();
            act();
            let found = fires(&prometheus, name, instance, cause, begun, meanwhile);
            fired.insert(name.to_owned(), found);
        };
        let nothing = &mut || {};
        let act = &mut || {};
        check(
            "DivvyIdleJob",
            &ours,
            "a job that launches no kernel",
            act,
            nothing,
        );
        check(
            "DivvyBypass",
            &ours,
            "a program without the limiter takes 3 GiB",
            &mut || lab.bypass(),
            nothing,
        );
        check("DivvyLedgerMismatch", &ours, "the same", act, nothing);
        check(
            "DivvyUncountedCalls",
            &ours,
            "a program calls a function newer than the limiter",
            &mut || lab.uncounted_call(),
            nothing,
        );
        check(
            "DivvyQueueStuck",
            &ours,
            "jobs with whole GPUs fill them, one waits",
            &mut || lab.fill(),
            nothing,
        );
        check(
            "DivvyQuotaNotMet",
            &ours,
            "a job of a project waits within its quota",
            &mut || lab.wait_within_quota(),
            nothing,
        );
        check(
            "DivvyQuotaOvercommitted",
            &ours,
            "a project gets a quota of 40 GPUs",
            &mut || lab.project("big", "40"),
            nothing,
        );
        check(
            "DivvyMigQuarantined",
            &ours,
            "the driver does not destroy an instance",
            &mut || lab.quarantine(),
            nothing,
        );
        lab.wait_for_all();
        check(
            "DivvyGpuLost",
            &ours,
            "a GPU falls off the bus",
            &mut || lab.lose_gpu(),
            nothing,
        );
        check(
            "DivvyNeverFits",
            &ours,
            "a job needs the lost GPU",
            act,
            nothing,
        );
        check(
            "DivvyTextfileOld",
            &instance(node),
            "the file is not written again",
            act,
            nothing,
        );
        check("DivvySeriesOmitted", &theirs, "260 queues", act, nothing);
        check(
            "DivvyDiskLow",
            &theirs,
            "a file system of 32 MiB",
            act,
            nothing,
        );
        check(
            "DivvyJournalSlow",
            &theirs,
            "each sync of the disk takes 200 ms longer",
            &mut || disk.slow_down(),
            &mut || disk.submit(),
        );
        check(
            "DivvyDiskFull",
            &theirs,
            "the file system is filled",
            &mut || disk.fill(),
            nothing,
        );
        for (name, fired) in &fired {
            let annotations = &fired.alert["annotations"];
            let text = |key: &str| annotations[key].as_str().unwrap_or_default().to_owned();
            let (summary, command) = (text("summary"), text("command"));
            assert!(!summary.contains("<no value>"), "{name}: {summary}");
            let words: Vec<&str> = command.split(' ').skip(1).collect();
            let code = lab.home.divvy(&words).code;
            // The doctor finds faults here.
            let is_done = code == 0 || (code == 1 && words == ["doctor"]);
            assert!(is_done, "{name}: `{command}` ends with {code}");
        }
        let begun = Instant::now();
        lab.home.kill();
        let cause = "the daemon is killed";
        let down = fires(&prometheus, "DivvyDown", &ours, cause, begun, || {});
        fired.insert("DivvyDown".to_owned(), down);

        let names: Vec<String> = rules().into_iter().map(|rule| rule.name).collect();
        eprintln!("| alert | cause | pending after | firing after |\n|---|---|--:|--:|");
        for name in &names {
            let found = fired.get(name);
            let Fired {
                cause,
                pending,
                firing,
                ..
            } = found.unwrap_or_else(|| panic!("{name} was not caused"));
            let [pending, firing] =
                [pending, firing].map(|time| format!("{:.1} s", time.as_secs_f64()));
            eprintln!("| {name} | {cause} | {pending} | {firing} |");
        }
        assert_eq!(fired.len(), names.len());
    }
}
