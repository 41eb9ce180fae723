//! What each parser reads and refuses.

use divvy_core::{Amount, Bytes};
use proptest::prelude::*;

use super::*;

fn read(text: &str, format: Format) -> Jobs {
    jobs(text.as_bytes(), format, Reading::default())
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The error, as a user reads it.
fn refused(text: &str, format: Format) -> String {
    let error = jobs(text.as_bytes(), format, Reading::default()).expect_err(text);
    format!("{error}; {}", error.hint)
}

fn amount(text: &str) -> Option<Amount> {
    Some(Amount::from_gpu_flag(text).unwrap())
}

#[test]
fn the_content_names_the_format() {
    for (text, format) in [
        (
            "\u{feff}name,cpu_milli,memory_mib,num_gpu,gpu_milli\r\n",
            Some(Format::Openb),
        ),
        (
            "\n {\"id\":\"1\",\"submitted_at\":\"x\"}\n",
            Some(Format::History),
        ),
        (
            "{\n \"kind\": \"JobList\",\n \"items\": []}",
            Some(Format::History),
        ),
        ("{\"data\":{\"tasks\":[]}}", Some(Format::Clearml)),
        ("[{\"id\":\"a\"}]", Some(Format::Clearml)),
        (
            "12_3|2026-01-01T00:00:00|None|Unknown|cpu=1|gpu|PENDING\n",
            Some(Format::Sacct),
        ),
        ("arrival,profile,duration\n", None),
        ("", None),
    ] {
        assert_eq!(Format::of(text.as_bytes()), format, "{text:?}");
    }
    for format in Format::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
}

#[test]
fn one_job_too_many_is_refused_with_its_place() {
    assert_eq!(bound(MOST_JOBS - 1, "line 9"), Ok(()));
    let error = bound(MOST_JOBS, "line 1000002").unwrap_err();
    assert_eq!(error.to_string(), "line 1000002: more than 1000000 jobs");
}

mod openb {
    use super::*;

    const HEADER: &str = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
                          deletion_time,scheduled_time\n";

    #[test]
    fn pods_are_read_with_decimals_and_empty_fields() {
        let text = format!(
            "{HEADER}a,4000.0,8192,1,460,V100M16|V100M32,LS,Running,10,40,20\nb,,,0,,,BE,Pending,5,9,\n\
             c,12000,1,4.0,1000,,BE,Running,,,\n"
        );
        let [a, b, c]: [Job; 3] = read(&text, Format::Openb).jobs.try_into().unwrap();
        assert_eq!(
            (a.amount, a.cpu_milli, a.memory_mib),
            (amount("0.46"), 4000, 8192)
        );
        assert_eq!(a.models, ["V100M16", "V100M32"]);
        assert_eq!(
            (a.submitted, a.ran_ms(), a.line),
            (Some(10_000), Some(20_000), 2)
        );
        assert_eq!((b.amount, b.cpu_milli, b.ran_ms()), (None, 0, None));
        assert_eq!((b.queue.as_deref(), b.models.len()), (Some("BE"), 0));
        assert_eq!((c.amount, c.submitted, c.line), (amount("4"), None, 4));
    }

    #[test]
    fn five_columns_a_mark_windows_lines_and_quotes_are_read() {
        let plain = read(
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1000,2,1,1000\n",
            Format::Openb,
        );
        let other =
            "\u{feff}Name,gpu_milli,cpu_milli,memory_mib,num_gpu\r\n\"a\",\"1000\",1000,2 ,1\r\n";
        assert_eq!(read(other, Format::Openb), plain);
        assert_eq!(Format::of(other.as_bytes()), Some(Format::Openb));
    }

    #[test]
    fn each_fault_is_named_with_line_column_and_value() {
        let pod = |line: &str| format!("{HEADER}ok,1,1,0,0,,,,,,\n{line}\n");
        for (text, said) in [
            (
                String::new(),
                "line 1: the file is empty; begin with a header: name,cpu_milli",
            ),
            (
                "name,cpu_milli\n".to_owned(),
                "line 1: the header has no column `memory_mib`",
            ),
            (
                format!("name,{HEADER}"),
                "line 1: the header names `name` twice; the header needs the columns name,",
            ),
            (
                pod("a,x,1,1,500,,,,,,"),
                "line 3, column cpu_milli: `x`: not a number; write a whole",
            ),
            (
                pod("a,NaN,1,1,500,,,,,,"),
                "line 3, column cpu_milli: `NaN`: not a number",
            ),
            (
                pod("a,inf,1,1,500,,,,,,"),
                "line 3, column cpu_milli: `inf`: not a number",
            ),
            (
                pod("a,1e300,1,1,500,,,,,,"),
                "line 3, column cpu_milli: `1e300`: too large",
            ),
            (
                pod("a,-1,1,1,500,,,,,,"),
                "line 3, column cpu_milli: `-1`: negative",
            ),
            (
                pod("a,1.5,1,1,500,,,,,,"),
                "line 3, column cpu_milli: `1.5`: not a whole number",
            ),
            (
                pod("a,1,1,1,1001,,,,,,"),
                "line 3, column gpu_milli: `1001`: not within 1 to 1000",
            ),
            (
                pod("a,1,1,1,,,,,,,"),
                "line 3, column gpu_milli: ``: not within 1 to 1000",
            ),
            (
                pod("a,1,1,5000,1000,,,,,,"),
                "line 3, column num_gpu: `5000`: too many GPUs",
            ),
            (pod(",1,1,1,500,,,,,,"), "line 3, column name: ``: empty"),
            (
                pod("ok,1,1,1,500,,,,,,"),
                "line 3, column name: `ok`: listed twice",
            ),
            (
                pod("a,1,1,1,500,,,,-5,,"),
                "line 3, column creation_time: `-5`: negative",
            ),
            (
                pod("a,1,1,1,500,,,,9,20,3"),
                "line 3, column scheduled_time: `3`: before creation_time",
            ),
            (
                pod("a,1,1,1,500,,,,1,2,3"),
                "line 3, column deletion_time: `2`: before scheduled_time",
            ),
            (
                pod("a,1,1"),
                "line 3: 3 fields, but the list has 11 columns; give each line name,",
            ),
            (
                pod("\"a,1,1,1,500,,,,,,"),
                "line 3: a quoted field does not end on its line",
            ),
            (
                pod("\"a\nb\",1,1,1,500,,,,,,"),
                "line 3: a quoted field does not end on its line",
            ),
        ] {
            let found = refused(&text, Format::Openb);
            assert!(found.starts_with(said), "{text:?}: {found}");
        }
    }

    #[test]
    fn a_line_of_a_mebibyte_and_bytes_that_are_no_text_are_refused() {
        let long = format!("{HEADER}{},1,1,1,500,,,,,,\n", "x".repeat(1 << 20));
        let found = refused(&long, Format::Openb);
        assert!(
            found.starts_with("line 2: 1048592 bytes, a line has at most 65536"),
            "{found}"
        );
        let mut bytes = HEADER.as_bytes().to_vec();
        bytes.extend(b"a,1,1,1,500,\xff\xfe,,,,,\n");
        let error = jobs(&bytes, Format::Openb, Reading::default()).unwrap_err();
        assert!(
            error.to_string().starts_with("line 2, column gpu_spec: `"),
            "{error}"
        );
        assert!(error.to_string().ends_with("not UTF-8"), "{error}");
    }

    #[test]
    fn nodes_are_read_and_their_faults_named() {
        let header = "sn,cpu_milli,memory_mib,gpu,model\n";
        let text = format!("{header}a,64000.0,262144,2,P100\nb,1,1,0,\nc,1,1,8,G2\nd,1,1,1,P100\n");
        let (all, models) = nodes(text.as_bytes()).unwrap();
        assert_eq!(models, ["P100", "G2"]);
        assert_eq!(
            all.iter().map(|node| node.model).collect::<Vec<_>>(),
            [0, 0, 1, 0]
        );
        assert_eq!(
            (all[0].cpu_milli, all[0].gpus, all[0].gpu_memory),
            (64_000, 2, None)
        );
        for (text, said) in [
            (header.to_owned(), "line 2: no node"),
            (
                format!("{header}a,1,1,2,\n"),
                "line 2, column model: ``: empty",
            ),
            (
                format!("{header}a,1,1,0,\na,1,1,0,\n"),
                "line 3, column sn: `a`: listed twice",
            ),
            (
                format!("{header}a,1,1,-2,P100\n"),
                "line 2, column gpu: `-2`: negative",
            ),
        ] {
            let error = nodes(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn one_node_and_one_model_too_many_are_refused() {
        let rows = |count: usize, model: &dyn Fn(usize) -> String| -> String {
            let rows = (0..count).map(|nth| format!("n{nth},1,1,1,{}\n", model(nth)));
            "sn,cpu_milli,memory_mib,gpu,model\n".to_owned() + &rows.collect::<String>()
        };
        let error = nodes(rows(65, &|nth| format!("m{nth}")).as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 66, column model: `m64`: more than 64 models"
        );
        let many = rows(MOST_NODES + 1, &|_| "m".to_owned());
        let error = nodes(many.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "line 100002: more than 100000 nodes");
    }
}

mod history {
    use super::*;

    fn line(request: &str, more: &str) -> String {
        format!(
            "{{\"id\":\"7\",\"name\":\"n\",\"request\":{request},\"submitted_at\":\"2026-03-04T12:00:00Z\",\
             \"started_at\":\"2026-03-04T12:00:30Z\",\"queue\":\"half\"{more}}}\n"
        )
    }

    #[test]
    fn every_amount_is_read() {
        let ended = ",\"ended_at\":\"2026-03-04T12:01:30Z\"";
        let amounts = [
            (r#"{"kind":"share","thousandths":250}"#, amount("0.25")),
            (
                r#"{"kind":"memory","bytes":1073741824}"#,
                Some(Amount::Memory(Bytes::gib(1))),
            ),
            (r#"{"kind":"whole","count":2}"#, amount("2")),
            (r#"{"kind":"range","min":1,"max":4}"#, amount("1-4")),
            (
                r#"{"kind":"shares","count":2,"thousandths":500}"#,
                amount("2x0.5"),
            ),
            (
                r#"{"kind":"mig","profile":"2g.10gb"}"#,
                Amount::from_mig_flag("2g.10gb").ok(),
            ),
        ];
        let text: String = amounts
            .iter()
            .map(|(request, _)| line(request, ended))
            .collect();
        let read = read(&format!("# jobs\n\n{text}"), Format::History).jobs;
        let found: Vec<_> = read.iter().map(|job| job.amount).collect();
        assert_eq!(found, amounts.map(|(_, amount)| amount));
        assert_eq!((read[0].line, read[0].ran_ms()), (3, Some(60_000)));
        let listed = format!(
            "{{\n\"kind\": \"JobList\", \"items\": [{}]}}",
            line(amounts[0].0, ended)
        );
        let listed = jobs(
            listed.as_bytes(),
            Format::of(listed.as_bytes()).unwrap(),
            Reading::default(),
        );
        assert_eq!(listed.unwrap().jobs[0].amount, amount("0.25"));
    }

    #[test]
    fn project_user_peak_and_gpus_of_a_running_job_are_kept() {
        let more = ",\"project\":\"vision\",\"user\":\"ana\",\"time_limit_s\":60,\"ended_at\":null,\
                    \"slices\":[{\"gpu_index\":3,\"memory_peak_bytes\":42}]";
        let job = read(
            &line(r#"{"kind":"whole","count":1}"#, more),
            Format::History,
        )
        .jobs
        .remove(0);
        assert_eq!(
            (job.project.as_deref(), job.user.as_deref()),
            (Some("vision"), Some("ana"))
        );
        assert_eq!(
            (job.used, job.limit_ms, job.ran_ms()),
            (Some(Bytes::new(42)), Some(60_000), None)
        );
        assert_eq!(job.holds, [3]);
    }

    #[test]
    fn each_fault_is_named_with_line_and_place() {
        let whole = r#"{"kind":"whole","count":1}"#;
        let early = ",\"ended_at\":\"2026-03-04T11:00:00Z\"";
        for (text, said) in [
            (
                "{\"submitted_at\":1\n".to_owned(),
                "line 1, column 17: invalid job `{\"submitted_at\":1`: ",
            ),
            (
                format!("{}x\n", line(whole, "")),
                "line 2, column 1: invalid job `x`: expected value",
            ),
            (
                line(r#"{"kind":"share","thousandths":0}"#, ""),
                "line 1, job 7, field request: share 0: not within 1 to 1000",
            ),
            (
                line(whole, early),
                "line 1, job 7, field ended_at: `2026-03-04T11:00:00Z`: before its start, at",
            ),
            (
                "{\"items\":[{}]}".to_owned(),
                "line 1, column 12: invalid JSON: missing field `id`",
            ),
        ] {
            let found = refused(&text, Format::History);
            assert!(found.starts_with(said), "{text:?}: {found}");
        }
    }
}

mod sacct {
    use super::*;

    const HEADER: &str = "JobID|Submit|Start|End|ReqTRES|Partition|State\n";

    fn row(id: &str, tres: &str) -> String {
        format!(
            "{id}|2026-03-04T12:00:00|2026-03-04T12:01:00|2026-03-04T13:01:00|{tres}|gpu|COMPLETED\n"
        )
    }

    #[test]
    fn jobs_are_read_with_a_header_and_without() {
        let text = row(
            "12_3",
            "billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=1.5G,node=1",
        );
        let [job]: [Job; 1] = read(&text, Format::Sacct).jobs.try_into().unwrap();
        assert_eq!((job.name.as_str(), job.amount), ("12_3", amount("2")));
        assert_eq!(
            (job.cpu_milli, job.memory_mib, job.models.as_slice()),
            (8000, 1536, ["a100".to_owned()].as_slice())
        );
        assert_eq!(
            (job.queue.as_deref(), job.ran_ms()),
            (Some("gpu"), Some(3_600_000))
        );
        let with = read(&format!("{HEADER}{text}"), Format::Sacct)
            .jobs
            .remove(0);
        assert_eq!(with, Job { line: 2, ..job });
        let other = "User|State|JobID|Submit|Start|End|ReqTRES|Partition|Timelimit|\n\
                     ana|CANCELLED by 1001|9|2026-03-04T12:00:00|None|2026-03-04T12:05:00|gres/gpu=1|a,b|1-02:00:00|\n";
        let other = read(other, Format::Sacct).jobs.remove(0);
        assert_eq!(
            (other.user.as_deref(), other.queue.as_deref()),
            (Some("ana"), Some("a"))
        );
        assert_eq!(
            (other.started, other.ran_ms(), other.limit_ms),
            (None, None, Some(93_600_000))
        );
    }

    #[test]
    fn shards_need_their_number() {
        let text = row("5", "cpu=2,gres/shard=3,node=1");
        let with = Reading { shards: Some(8) };
        let job = jobs(text.as_bytes(), Format::Sacct, with)
            .unwrap()
            .jobs
            .remove(0);
        assert_eq!(job.amount, amount("0.375"));
        let found = refused(&text, Format::Sacct);
        assert!(
            found.starts_with("line 1, column ReqTRES: `gres/shard=3`: the number of shards"),
            "{found}"
        );
        assert!(
            found.ends_with("add --shards COUNT, the shards of one GPU in gres.conf"),
            "{found}"
        );
        let error = jobs(text.as_bytes(), Format::Sacct, Reading { shards: Some(2) }).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("more than the 2 shards of a GPU"),
            "{error}"
        );
    }

    #[test]
    fn steps_and_jobs_on_several_nodes_are_left_out() {
        let text =
            row("1", "cpu=4,node=1") + &row("1.batch", "cpu=4") + &row("2+0", "gres/gpu=8,node=2");
        let read = read(&text, Format::Sacct);
        assert_eq!(
            (read.jobs.len(), read.several_nodes, read.jobs[0].amount),
            (1, 1, None)
        );
        let times = "3_[4-9%2]|2026-03-04T12:00:00|Unknown|Unknown|gres/gpu=1|gpu|PENDING\n";
        let job = super::read(times, Format::Sacct).jobs.remove(0);
        assert_eq!(
            (job.started, job.ended, job.submitted.is_some()),
            (None, None, true)
        );
    }

    #[test]
    fn jobs_over_the_end_of_summer_time_are_counted_and_seconds_are_times() {
        let summer = "1|2024-10-26T10:00:00|2024-10-26T10:01:00|2024-10-26T11:00:00|gres/gpu=1|gpu|COMPLETED\n\
                      9|2024-10-27T02:30:00|2024-10-27T02:50:00|2024-10-27T02:20:00|gres/gpu=1|gpu|COMPLETED\n\
                      10|2024-10-27T02:50:00|2024-10-27T02:10:00|2024-10-27T05:00:00|gres/gpu=1|gpu|COMPLETED\n";
        let read = read(summer, Format::Sacct);
        assert_eq!((read.jobs.len(), read.over_clock_change), (2, 1));
        assert_eq!(read.jobs[1].submitted, read.jobs[1].started);
        // New York, where 01:00:00 follows 2023-11-05T01:59:59, and Lord Howe Island, which goes back half an hour.
        for (start, end) in [
            ("2023-11-05T01:59:00", "2023-11-05T01:05:00"),
            ("2024-04-07T01:55:00", "2024-04-07T01:40:00"),
        ] {
            let text = format!("3|{start}|{start}|{end}|gres/gpu=1|gpu|COMPLETED\n");
            let read = super::read(&text, Format::Sacct);
            assert_eq!((read.jobs.len(), read.over_clock_change), (0, 1), "{start}");
        }
        let seconds = "1|1709287200|1709287260|1709290800|gres/gpu=1|gpu|COMPLETED\n";
        let job = super::read(seconds, Format::Sacct).jobs.remove(0);
        assert_eq!(job.ran_ms(), Some(3_540_000));
        // The columns of a public collector, `SLURM_TIME_FORMAT=%s sacct`, with a job that runs and one that never ran.
        // In seconds the night of the change is no problem.
        let columns = "JobID|User|Account|Partition|QOS|Submit|Start|End|Elapsed|NCPUS|ReqTRES|State\n\
                       7|ana|lab|gpu|normal|1729989000|1729990200|1729992000|00:30:00|8|cpu=8,gres/gpu=1|COMPLETED\n\
                       8|ana|lab|gpu|normal|1729989000|1729990200|Unknown|00:30:00|8|cpu=8,gres/gpu=1|RUNNING\n\
                       9|ana|lab|gpu|normal|1729989000|None|1729990200|00:00:00|0|cpu=8,gres/gpu=1|CANCELLED by 1001\n";
        let read = super::read(columns, Format::Sacct);
        let ran: Vec<_> = read.jobs.iter().map(Job::ran_ms).collect();
        assert_eq!(ran, [Some(1_800_000), None, None]);
        assert_eq!(read.over_clock_change, 0);
    }

    #[test]
    fn a_mig_profile_as_the_type_of_a_gpu_is_an_instance() {
        for (request, expected) in [
            ("cpu=8,gres/gpu:a100_3g.40gb=1,gres/gpu=1", "3g.40gb"),
            ("gres/gpu:nvidia_h200_nvl_4g.71gb=1", "4g.71gb"),
            ("gres/gpu:1g.5gb=1", "1g.5gb"),
            // As a public test of squeue has it, and a type that another site separates otherwise.
            (
                "cpu=4,mem=32G,node=1,billing=1333,gres/gpu=1,gres/gpu:a100_1g.5gb=1",
                "1g.5gb",
            ),
            (
                "billing=4,cpu=4,gres/gpu:a100-3g.20gb=1,gres/gpu=1,mem=16G,node=1",
                "3g.20gb",
            ),
        ] {
            let job = read(&row("1", request), Format::Sacct).jobs.remove(0);
            assert_eq!(
                job.amount,
                Amount::from_mig_flag(expected).ok(),
                "{request}"
            );
            assert!(job.models.is_empty(), "{request}");
        }
        let several = read(&row("1", "gres/gpu:1g.5gb=2,gres/gpu=2"), Format::Sacct);
        assert_eq!((several.jobs.len(), several.several_instances), (0, 1));
        // Whole GPUs beside instances, as in a public parser of AllocTRES.
        for request in [
            "cpu=76,mem=166072M,gres/gpu:a100=2,gres/gpu:a100_1g.5gb=2,gres/nvme=100",
            "cpu=4,gres/gpu:2g.10gb=2,gres/gpu:4g.40gb=1",
        ] {
            let several = read(&row("1", request), Format::Sacct);
            assert_eq!(
                (several.jobs.len(), several.several_instances),
                (0, 1),
                "{request}"
            );
        }
    }

    #[test]
    fn each_fault_is_named_with_line_column_and_value() {
        for (text, said) in [
            (row("abc", ""), "line 1, column JobID: `abc`: not a job id"),
            (
                row("1", "gres/gpu=two"),
                "line 1, column ReqTRES: `gres/gpu=two`: not a number",
            ),
            (
                row("1", "mem=lots"),
                "line 1, column ReqTRES: `mem=lots`: not a size",
            ),
            (
                row("1", "mem=NaNG"),
                "line 1, column ReqTRES: `mem=NaNG`: not a size",
            ),
            (row("1", "gpu"), "line 1, column ReqTRES: `gpu`: no value"),
            (
                row("1", "").replace("COMPLETED", "DONE"),
                "line 1, column State: `DONE`: not a state",
            ),
            (
                row("1", "").replace("13:01", "11:00"),
                "line 1, column End: `2026-03-04T11:00:00`: before Start",
            ),
            (
                row("1", "").replace("T12:01", "T10:01"),
                "line 1, column Start: `2026-03-04T10:01:00`: before Submit",
            ),
            (
                row("1", "").replace("T12:00:00", " noon"),
                "line 1, column Submit: `2026-03-04 noon`: not a time",
            ),
            (
                "1|2|3\n".to_owned(),
                "line 1: 3 fields, but the list has 7 columns",
            ),
            (
                "JobID|Submit|Start\n1|2|3\n".to_owned(),
                "line 1: the header has no column `End`",
            ),
            (
                format!("{}\n", HEADER.trim().replace("State", "state|JobID")),
                "line 1: the header names `JobID` twice",
            ),
        ] {
            let found = refused(&text, Format::Sacct);
            assert!(found.starts_with(said), "{text:?}: {found}");
        }
    }
}

mod clearml {
    use super::*;

    const TIMES: &str = "\"created\":\"2026-03-04T12:00:00.000000+00:00\",\"started\":\"2026-03-04T12:10:00\",\
                         \"completed\":\"2026-03-04T13:10:00.000000+00:00\"";

    fn task(more: &str) -> String {
        format!(
            "{{\"id\":\"a1\",\"name\":\"train\",\"execution\":{{\"queue\":\"q\"}},{TIMES}{more}}}"
        )
    }

    #[test]
    fn amounts_come_from_runtime_parameters_and_arguments() {
        for (more, expected) in [
            (
                r#","runtime":{"_divvy_gpu_fraction":"0.25"}"#,
                amount("0.25"),
            ),
            (r#","runtime":{"_divvy_gpu_fraction":"1,1"}"#, amount("2")),
            (
                r#","hyperparams":{"Args":{"gpus":{"name":"gpus","value":"2"}}}"#,
                amount("2"),
            ),
            (
                r#","hyperparams":{"General":{"num_gpus":0.5}}"#,
                amount("0.5"),
            ),
            (
                r#","container":{"arguments":"--ipc=host --gpus=4"}"#,
                amount("4"),
            ),
            (r#","container":{"arguments":"--gpus all"}"#, amount("1")),
        ] {
            let text = format!("{{\"data\":{{\"tasks\":[{}]}}}}", task(more));
            let read = read(&text, Format::Clearml);
            assert_eq!(
                (read.jobs[0].amount, read.jobs[0].ran_ms()),
                (expected, Some(3_600_000)),
                "{more}"
            );
            assert_eq!(
                read.assumed_whole,
                usize::from(more.contains("all")),
                "{more}"
            );
        }
    }

    #[test]
    fn names_are_read_joined_or_not_and_tasks_without_queue_are_left_out() {
        let joined = task("").replace("\"q\"", r#"{"id":"77","name":"half"}"#);
        let text = format!("[{joined},{{\"id\":\"b\"}}]");
        let read = read(&text, Format::Clearml);
        assert_eq!(
            (read.jobs.len(), read.jobs[0].queue.as_deref()),
            (1, Some("half"))
        );
        assert_eq!(
            (read.jobs[0].name.as_str(), read.jobs[0].is_assumed),
            ("train", true)
        );
    }

    /// What a real server answered to each call, as `tests/clearml-stub` records it.
    #[test]
    fn recorded_answers_of_a_server_are_read() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/clearml-stub/tests/real.json"
        );
        let calls: Vec<serde_json::Value> =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let answers = calls.iter().filter(|call| {
            call["call"]
                .as_str()
                .is_some_and(|call| call.starts_with("tasks.get_all"))
        });
        let mut queued = 0;
        for answer in answers {
            queued += read(&answer["data"].to_string(), Format::Clearml)
                .jobs
                .len();
        }
        assert!(queued > 5, "{queued}");
    }

    #[test]
    fn each_fault_is_named_with_its_task_and_field() {
        for (text, said) in [
            (
                "{\"tasks\":[{]}".to_owned(),
                "line 1, column 12: invalid JSON: key must be a string",
            ),
            (
                "{\"queues\":[]}".to_owned(),
                "line 1: the document has no member `tasks`",
            ),
            (
                format!("[{}]", task("").replace("2026-03-04T12:10:00", "soon")),
                "task 1 (a1), field started: `soon`: not a time",
            ),
            (
                format!("[{}]", task("").replace("13:10", "12:09")),
                "task 1 (a1), field completed: 60 s before started",
            ),
            (
                format!(
                    "[{}]",
                    task(r#","runtime":{"_divvy_gpu_fraction":"0.5,1"}"#)
                ),
                "task 1 (a1), field runtime._divvy_gpu_fraction: `0.5,1`: not a number of GPUs",
            ),
            (
                format!(
                    "[{}]",
                    task(r#","hyperparams":{"Args":{"gpus":{"value":"many"}}}"#)
                ),
                "task 1 (a1), field hyperparams.Args.gpus: `many`: not a number of GPUs",
            ),
        ] {
            let found = refused(&text, Format::Clearml);
            assert!(found.starts_with(said), "{text:?}: {found}");
        }
    }
}

proptest! {
    /// No bytes make a parser panic, and an error always has a place and a hint.
    #[test]
    fn any_bytes_are_jobs_or_an_error(text in "[a-z0-9,|\"\\n{}:\\[\\]._=-]{0,200}", nth in 0..4_usize) {
        let headers = [
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n",
            "",
            "JobID|Submit|Start|End|ReqTRES|Partition|State\n",
            "{\"tasks\":[",
        ];
        let text = format!("{}{text}", headers[nth]);
        if let Err(error) = jobs(text.as_bytes(), Format::ALL[nth], Reading::default()) {
            prop_assert!(!error.place.is_empty() && !error.what.is_empty() && !error.hint.is_empty());
        }
    }
}

/// Beyond two seconds in a debug build.
mod exhaustive {
    use super::*;

    #[test]
    fn ten_million_lines_end_at_the_bound_of_jobs() {
        let mut text = String::from("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n");
        for nth in 0..10_000_000_u32 {
            text.push_str(&format!("p{nth},1,1,0,0\n"));
        }
        assert!((text.len() as u64) < MOST_BYTES);
        let found = refused(&text, Format::Openb);
        assert!(
            found.starts_with("line 1000002: more than 1000000 jobs; select"),
            "{found}"
        );
    }
}
