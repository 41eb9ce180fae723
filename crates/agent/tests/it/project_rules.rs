//! Rules of projects and users: the limit of GPUs of each user, the default project, the required project, and names
//! that nothing has.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::users::{ANA, LEE, as_user, system};

use divvy_api::client::Client;
use divvy_api::v1::{
    Amount, ErrorCode, JobChange, JobState, ProjectChange, ReasonCode, Resize, Submit,
};
use divvy_testkit::{Home, ended, in_state, quarter, refused};

/// A job of a user that a front end names.
fn of(user: &str, thousandths: u16) -> Submit {
    Submit {
        user: Some(user.to_owned()),
        amount: Some(match thousandths {
            1000.. => Amount::Whole {
                count: u32::from(thousandths / 1000),
            },
            _ => Amount::Share { thousandths },
        }),
        ..quarter(&["sleep", "1000"])
    }
}

fn in_project(project: &str, submit: Submit) -> Submit {
    Submit {
        project: Some(project.to_owned()),
        ..submit
    }
}

fn members(names: &[&str]) -> ProjectChange {
    ProjectChange {
        members: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        quota: Some(1000),
        ..ProjectChange::default()
    }
}

#[tokio::test]
async fn a_users_jobs_beyond_the_limit_wait_also_after_a_crash_and_delay_no_other_user() {
    let words = [
        "--sim",
        "l4-24gb:3",
        "--set",
        "project-rules.max-gpus={ others = 0.875, bob = \"none\" }",
    ];
    let mut home = Home::started(&words);
    let client = home.connect();
    let mut ana = Vec::new();
    for share in [375, 375, 500, 125] {
        ana.push(client.submit(&of("ana", share)).await.unwrap().id);
    }
    let bob = client.submit(&of("bob", 2000)).await.unwrap();
    in_state(&client, &bob.id, JobState::Running).await;
    let check = async |client: &Client| {
        let [third, fourth] = [&ana[2], &ana[3]];
        let third = client.job(third).await.unwrap();
        assert_eq!(third.reason_code, Some(ReasonCode::UserLimit));
        assert_eq!(
            third.reason.as_deref(),
            Some("the limit of user ana is 0.875 GPUs; 0.75 in use, 0.5 more needed")
        );
        let fourth = client.job(fourth).await.unwrap();
        assert_eq!(fourth.reason_code, Some(ReasonCode::BehindUserLimit));
        let why = client.why(&ana[2]).await.unwrap();
        assert!(why.summary.contains("0.75 in use"), "{}", why.summary);
        let ways = why.suggestions.join("; ");
        assert!(ways.contains("would start when any one of"), "{ways}");
        for id in &ana[..2] {
            in_state(client, id, JobState::Running).await;
        }
    };
    check(&client).await;
    home.kill();
    home.start(&words);
    let client = home.connect();
    check(&client).await;

    // A running job grows no further either, and a waiting one to no more than the limit.
    let more = Amount::Share { thousandths: 625 };
    let resize = Resize {
        amount: Some(more),
        compute: None,
    };
    let error = refused(client.resize(&ana[0], &resize).await);
    assert_eq!(
        error.message,
        "the limit of user ana is 0.875 GPUs; 0.375 in use, 0.625 more needed"
    );
    let change = JobChange {
        amount: Some(Amount::Whole { count: 2 }),
        ..JobChange::default()
    };
    let error = refused(client.change(&ana[2], &change).await);
    assert_eq!(error.code, ErrorCode::NeverFits);

    let dry = Submit {
        dry_run: true,
        ..of("cat", 2000)
    };
    for never in [of("ana", 2000), dry] {
        let error = refused(client.submit(&never).await);
        assert_eq!(error.code, ErrorCode::NeverFits, "{error:?}");
        let hint = error.hint.unwrap();
        assert!(
            hint.contains("the nearest request that fits is -g 0.875;"),
            "{hint}"
        );
    }
    client.cancel(&ana[0]).await.unwrap();
    ended(&client, &ana[0]).await;
    in_state(&client, &ana[2], JobState::Running).await;
    client.cancel(&ana[1]).await.unwrap();
    in_state(&client, &ana[3], JobState::Running).await;
}

#[test]
fn the_limit_of_a_group_holds_for_its_members_also_after_a_crash() {
    let words = [
        "--set",
        "project-rules.max-gpus={ \"@60101\" = 0.25, 60102 = 0.5 }",
    ];
    let Some(mut home) = system(&words) else {
        return;
    };
    let submit = |home: &Home, uid: u32, thousandths: u16| {
        as_user(home, uid, async |client| {
            let job = Submit {
                user: None,
                ..of("", thousandths)
            };
            client.submit(&job).await
        })
    };
    let reason = |home: &Home, uid: u32, id: &str| {
        as_user(home, uid, async |client| {
            client.job(id).await.unwrap().reason_code
        })
    };
    submit(&home, ANA, 250).unwrap();
    let waits = submit(&home, ANA, 125).unwrap().id;
    assert_eq!(reason(&home, ANA, &waits), Some(ReasonCode::UserLimit));
    submit(&home, LEE, 250).unwrap();
    let runs = submit(&home, LEE, 250).unwrap().id;
    assert_eq!(reason(&home, LEE, &runs), None);
    home.kill();
    home.start(&[&["--system", "--sim", "a100-80gb:1"], &words[..]].concat());
    assert_eq!(reason(&home, ANA, &waits), Some(ReasonCode::UserLimit));
    let error = refused(submit(&home, ANA, 500));
    assert_eq!(error.code, ErrorCode::NeverFits);
}

#[tokio::test]
async fn a_job_that_names_no_project_gets_the_default_of_its_user() {
    let words = [
        "--sim",
        "l4-24gb:2",
        "--set",
        "project-rules.default-project={ others = \"lab\", ana = \"vision\" }",
    ];
    let home = Home::started(&words);
    let client = home.connect();
    // Without projects the default is a label, as a name of a submission is.
    let labelled = client.submit(&of("bob", 125)).await.unwrap();
    assert_eq!(labelled.project.as_deref(), Some("lab"));
    client
        .add_project("vision", &members(&["ana"]))
        .await
        .unwrap();
    let ana = client.submit(&of("ana", 125)).await.unwrap();
    assert_eq!(ana.project.as_deref(), Some("vision"));
    let error = refused(client.submit(&of("bob", 125)).await);
    assert_eq!(error.code, ErrorCode::NotFound);
    assert_eq!(
        error.message,
        "the default project of bob is lab, and there is no project lab"
    );
    client.add_project("lab", &members(&[])).await.unwrap();
    let bob = client.submit(&of("bob", 125)).await.unwrap();
    assert_eq!(bob.project.as_deref(), Some("lab"));
    let named = client
        .submit(&in_project("vision", of("bob", 125)))
        .await
        .unwrap();
    assert_eq!(named.project.as_deref(), Some("vision"));
}

#[tokio::test]
async fn a_required_project_is_named_by_the_submission_or_by_a_default() {
    let words = [
        "--sim",
        "l4-24gb:2",
        "--set",
        "project-rules.require-project=true",
        "--set",
        "project-rules.default-project={ ana = \"vision\" }",
    ];
    let home = Home::started(&words);
    let client = home.connect();
    let bare = Submit {
        user: None,
        ..of("", 125)
    };
    let error = refused(client.submit(&bare).await);
    assert_eq!(error.code, ErrorCode::Usage);
    assert_eq!(
        error.message,
        "the job names no project, and this daemon requires one"
    );
    assert!(error.hint.unwrap().contains("divvy admin project add"));
    let error = refused(client.submit(&in_project("nlpp", bare.clone())).await);
    assert_eq!(error.code, ErrorCode::NotFound, "a label is no project");

    client.add_project("nlp", &members(&[])).await.unwrap();
    client
        .add_project("vision", &members(&["ana"]))
        .await
        .unwrap();
    let error = refused(client.submit(&bare).await);
    assert_eq!(
        error.hint.as_deref(),
        Some("add -p nlp"),
        "vision does not admit"
    );
    let error = refused(client.submit(&in_project("nlpp", bare.clone())).await);
    assert_eq!(error.message, "there is no project nlpp");
    assert_eq!(
        error.hint.as_deref(),
        Some("did you mean nlp? the projects are nlp, vision")
    );
    let ana = client.submit(&of("ana", 125)).await.unwrap();
    assert_eq!(ana.project.as_deref(), Some("vision"));
    let named = client.submit(&in_project("nlp", bare)).await.unwrap();
    assert_eq!(named.project.as_deref(), Some("nlp"));
}

#[tokio::test]
async fn a_name_that_no_job_had_is_warned_of_where_it_is_only_a_label() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let submit = async |client: &Client, name: &str| {
        let job = client.submit(&in_project(name, of("ana", 125))).await;
        job.unwrap().warnings
    };
    let only = "this daemon has no projects, so nlp is only a label";
    assert_eq!(submit(&client, "nlp").await, [only]);
    assert_eq!(submit(&client, "nlp").await, [""; 0], "a job had it before");
    home.kill();
    home.start(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    assert_eq!(submit(&client, "nlp").await, [""; 0]);
    let meant = "this daemon has no projects, so nlpp is only a label; did you mean nlp?";
    assert_eq!(submit(&client, "nlpp").await, [meant]);

    let flags = ["submit", "-g", "0.125", "-p", "vision", "--", "sleep", "9"];
    let told = home.divvy(&flags).ok();
    let warning = "warning: this daemon has no projects, so vision is only a label";
    assert!(told.stderr.contains(warning), "{}", told.stderr);
    let json = [
        "submit", "-o", "json", "-g", "0.125", "-p", "visoin", "--array", "0-1", "--", "true",
    ];
    let told = home.divvy(&json).ok();
    let warnings = &told.items()[0]["warnings"];
    assert!(
        warnings[0]
            .as_str()
            .unwrap()
            .ends_with("did you mean vision?")
    );
    let wrong = ["submit", "-q", "defualt", "-g", "0.125", "--", "true"];
    let told = home.divvy(&wrong).exits(3);
    assert!(
        told.stderr.contains("did you mean default?"),
        "{}",
        told.stderr
    );
}
