use std::fs;

use super::*;

fn vars(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

const FILE: &str = r#"
# as clearml-agent init writes it
api {
    # the address of the server
    api_server: "http://clearml.example:8008/"
    web_server: http://clearml.example:8080
    credentials {"access_key": "KEY", "secret_key": ${SECRET_FROM_VAULT}}
    http.default_method: get
    verify_certificate: false
}
agent {
    worker_name: "node1"
    worker_id: ""
    extra_docker_arguments: ["--ipc=host", "-v", "/data:/data"]
    uptime: ["8-17 MON-FRI"]
    task_ping_interval_sec: 120.0
    default_docker { image: "nvidia/cuda:12.3.2-base-ubuntu22.04", match_rules: [{image: "x", match: {script.repository: "y"}}] }
}
"#;

fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clearml.conf");
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn a_file_with_variables_in_it_is_read() {
    let (_folder, path) = written(FILE);
    let settings =
        Settings::read_with(Some(&path), vars(&[("SECRET_FROM_VAULT", "s3cr3t")])).unwrap();
    assert_eq!(settings.api.server, "http://clearml.example:8008");
    let Credentials::Keys { access, secret } = &settings.api.credentials else {
        panic!()
    };
    assert_eq!((access.as_str(), secret.expose()), ("KEY", "s3cr3t"));
    assert_eq!(
        settings.tree.text("api.web_server").unwrap().as_deref(),
        Some("http://clearml.example:8080")
    );
    assert_eq!(settings.api.http.method, Method::Get);
    assert_eq!(settings.api.http.max_request, 15_728_640);
    assert_eq!(settings.api.verify, Verify::No);
    assert_eq!(
        (settings.worker_name.as_str(), settings.worker_id.as_deref()),
        ("node1", None)
    );
    assert_eq!(settings.ping, Duration::from_secs(120));
    assert_eq!(settings.uptime, ["8-17 MON-FRI"]);
    let extra = settings
        .tree
        .strings("agent.extra_docker_arguments")
        .unwrap()
        .unwrap();
    assert_eq!(extra, ["--ipc=host", "-v", "/data:/data"]);
    assert_eq!(
        settings
            .tree
            .text("agent.default_docker.image")
            .unwrap()
            .as_deref(),
        Some("nvidia/cuda:12.3.2-base-ubuntu22.04")
    );
}

#[test]
fn the_environment_goes_before_the_file_and_new_names_before_old() {
    let (_folder, path) = written(FILE);
    let env = [
        ("SECRET_FROM_VAULT", "s3cr3t"),
        ("CLEARML_API_HOST", "https://other.example"),
        ("TRAINS_API_HOST", "https://old.example"),
        ("TRAINS_API_ACCESS_KEY", "OLD"),
        ("CLEARML_WORKER_NAME", ""),
        ("CLEARML_API_HOST_VERIFY_CERT", "1"),
        ("CLEARML_API_DEFAULT_REQ_METHOD", "POST"),
        ("CLEARML_AGENT__AGENT__ABORT_CALLBACK_MAX_TIMEOUT", "60"),
        ("CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", "0.5"),
        ("CLEARML_WORKER_TAGS", "a b"),
        ("CLEARML_AGENT_GIT_USER", "octo"),
        ("CLEARML_AGENT_GIT_PASS", "t0ken"),
        ("REQUESTS_CA_BUNDLE", "/etc/ca.pem"),
    ];
    let settings = Settings::read_with(Some(&path), vars(&env)).unwrap();
    assert_eq!(settings.api.server, "https://other.example");
    let Credentials::Keys { access, .. } = &settings.api.credentials else {
        panic!()
    };
    assert_eq!(access, "OLD");
    assert_eq!(settings.worker_name, "node1");
    assert_eq!(settings.api.verify, Verify::Bundle("/etc/ca.pem".into()));
    assert_eq!(settings.api.http.method, Method::Post);
    assert_eq!(settings.abort_callback_max, Duration::from_secs(60));
    assert_eq!(settings.poll, Duration::from_millis(500));
    assert_eq!(settings.worker_tags, ["a", "b"]);
    let text = |key| settings.tree.text(key).unwrap().unwrap();
    assert_eq!(
        (text("agent.git_user"), text("agent.git_pass")),
        ("octo".into(), "t0ken".into())
    );
}

#[test]
fn without_a_file_the_environment_is_enough_and_a_token_needs_no_keys() {
    let env = [
        ("CLEARML_API_HOST", "http://127.0.0.1:8008"),
        ("CLEARML_AUTH_TOKEN", "t0ken"),
    ];
    let settings = Settings::read_with(None, vars(&env)).unwrap();
    assert!(matches!(settings.api.credentials, Credentials::Token(_)));
    assert!(!format!("{settings:?}").contains("t0ken"));
}

#[test]
fn both_files_at_home_are_read_the_newer_name_over_the_older() {
    let (folder, _) = written("api.api_server: \"http://new:1\"\napi.credentials.access_key: A");
    fs::write(
        folder.path().join("trains.conf"),
        "api { api_server: \"http://old:1\", credentials { access_key: B, secret_key: C } }",
    )
    .unwrap();
    let home = folder.path().to_str().unwrap();
    let settings = Settings::read_with(None, vars(&[("HOME", home)])).unwrap();
    assert_eq!(settings.api.server, "http://new:1");
    let Credentials::Keys { access, secret } = settings.api.credentials else {
        panic!()
    };
    assert_eq!((access.as_str(), secret.expose()), ("A", "C"));
}

#[test]
fn an_error_names_file_key_and_value() {
    let (_folder, path) =
        written("api { api_server: [1], credentials { access_key: A, secret_key: s3cr3t } }");
    let error = Settings::read_with(Some(&path), vars(&[])).unwrap_err();
    let file = path.display();
    assert_eq!(
        error.to_string(),
        format!("{file}: api.api_server = [1]: expected a string")
    );

    let (_folder, path) = written(
        "api.api_server: \"http://a\"\napi.credentials { access_key: A, secret_key: [s3cr3t] }",
    );
    let error = Settings::read_with(Some(&path), vars(&[])).unwrap_err();
    let file = path.display();
    assert_eq!(
        error.to_string(),
        format!("{file}: api.credentials.secret_key = ****: expected a string")
    );

    let env = vars(&[("CLEARML_API_HOST", "clearml.example")]);
    let error = Settings::read_with(None, env).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the environment (CLEARML_API_HOST): api.api_server = \"clearml.example\": expected a URL such as https://api.clear.ml"
    );

    let error = Settings::read_with(None, vars(&[("CLEARML_API_HOST", "http://a")])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "api.credentials.access_key is set neither in ~/clearml.conf nor by CLEARML_API_ACCESS_KEY"
    );
    assert!(error.hint().contains("clearml-agent init"));
}

#[test]
fn a_file_that_is_missing_or_no_hocon_is_named() {
    let error =
        Settings::read_with(Some(Path::new("/nowhere/clearml.conf")), vars(&[])).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/clearml.conf");
    let env = vars(&[("CLEARML_CONFIG_FILE", "/nowhere/other.conf")]);
    let error = Settings::read_with(None, env).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/other.conf");

    let (_folder, path) = written("api {\n  api_server: \"http://a\n}");
    let error = Settings::read_with(Some(&path), vars(&[])).unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
    let (_folder, path) = written("api.credentials.secret_key: ${NOT_SET_ANYWHERE}");
    let error = Settings::read_with(Some(&path), vars(&[])).unwrap_err();
    assert!(error.to_string().contains("NOT_SET_ANYWHERE"), "{error}");
}

/// The beginning of the file that `clearml-agent init` 3.0.3 wrote, with other names of hosts.
const INIT: &str = "# CLEARML-AGENT configuration file
api {
    # Notice: 'host' is the api server (default port 8008), not the web server.
    api_server: http://clearml.example:8008
    web_server: http://clearml.example:8080
    files_server: http://clearml.example:8081
    # Credentials are generated using the webapp, http://clearml.example:8080/settings
    # Override with os environment: CLEARML_API_ACCESS_KEY / CLEARML_API_SECRET_KEY
    credentials {\"access_key\": \"4CCE55\", \"secret_key\": \"s3cr3t\"}
}

# Set GIT user/pass credentials
# leave blank for GIT SSH credentials
agent.git_user=\"octo\"
agent.git_pass=\"t0ken\"

agent.package_manager.extra_index_url= [
\"https://pypi.example/simple\"
\"http://10.0.0.1:8080/simple\"
]

sdk.development.default_output_uri=\"http://clearml.example:8081\"

agent {
    worker_id: \"\"
}
";

#[test]
fn the_file_that_clearml_agent_init_writes_is_read() {
    let (_folder, path) = written(INIT);
    let settings = Settings::read_with(Some(&path), vars(&[])).unwrap();
    assert_eq!(settings.api.server, "http://clearml.example:8008");
    let text = |key| settings.tree.text(key).unwrap().unwrap();
    assert_eq!(text("api.files_server"), "http://clearml.example:8081");
    assert_eq!(text("agent.git_pass"), "t0ken");
    let indexes = settings
        .tree
        .strings("agent.package_manager.extra_index_url");
    assert_eq!(
        indexes.unwrap().unwrap(),
        ["https://pypi.example/simple", "http://10.0.0.1:8080/simple"]
    );
}

#[test]
fn an_address_without_a_host_reaches_no_task() {
    for (key, line) in [
        ("api.files_server", "api.files_server: \"http:\""),
        ("api.web_server", "api.web_server: http://"),
        (
            "sdk.development.default_output_uri",
            "sdk.development.default_output_uri: https://:8081/x",
        ),
    ] {
        let (_folder, path) = written(&format!("{INIT}{line}\n"));
        let error = Settings::read_with(Some(&path), vars(&[]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(key) && error.contains("has no host"),
            "{error}"
        );
    }
    for line in [
        "api.files_server: \"s3://bucket/a\"",
        "api.web_server: \"\"",
        "sdk.development.default_output_uri: true",
    ] {
        let (_folder, path) = written(&format!("{INIT}{line}\n"));
        Settings::read_with(Some(&path), vars(&[])).unwrap();
    }
}
