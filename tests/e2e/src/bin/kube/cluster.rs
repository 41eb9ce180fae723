//! The cluster that KUBECONFIG names, through kubectl: what people type is what is tried.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub use divvy_testkit::PATIENCE;
use serde_json::{Value, json};

/// Who writes what the suite writes.
const MANAGER: &str = "--field-manager=divvy-suite";

/// kubectl, and as whom.
#[derive(Clone, Debug)]
pub struct Cluster {
    kubectl: PathBuf,
    config: PathBuf,
    /// Flags that every call has.
    flags: Vec<String>,
}

/// What a call of kubectl came to.
#[derive(Clone, Debug)]
pub struct Answer {
    pub done: bool,
    pub stdout: String,
    /// Refusals and warnings.
    pub stderr: String,
}

impl Answer {
    /// The object that it printed.
    pub fn object(&self) -> Result<Value> {
        ensure!(self.done, "{}", self.stderr.trim());
        serde_json::from_str(&self.stdout).context("kubectl -o json prints JSON")
    }
}

impl Cluster {
    pub fn new(kubectl: PathBuf, config: PathBuf) -> Self {
        Self {
            kubectl,
            config,
            flags: Vec::new(),
        }
    }

    /// The same cluster with another kubeconfig.
    pub fn with_config(&self, config: &Path) -> Self {
        Self::new(self.kubectl.clone(), config.to_owned())
    }

    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// The kubeconfig.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The same cluster as somebody else.
    pub fn acting_as(&self, user: &str) -> Self {
        let mut other = self.clone();
        other.flags.push(format!("--as={user}"));
        other
    }

    /// Runs `kubectl WORDS…` with this on its standard input.
    pub fn call(&self, words: &[&str], input: &str) -> Result<Answer> {
        let mut child = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.config)
            .args(&self.flags)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", self.kubectl.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // It may have ended before it read everything; then it says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().context("wait for kubectl")?;
        Ok(Answer {
            done: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Makes an object; with `dry`, only asks whether it could be.
    pub fn create(&self, object: &Value, dry: bool) -> Result<Answer> {
        let mut words = vec!["create", "-o", "json", "-f", "-", MANAGER];
        if dry {
            words.push("--dry-run=server");
        }
        self.call(&words, &object.to_string())
    }

    /// Makes an object or brings it to this.
    pub fn apply(&self, object: &Value) -> Result<Answer> {
        let words = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "-o",
            "json",
            "-f",
            "-",
            MANAGER,
        ];
        self.call(&words, &object.to_string())
    }

    /// An object; `None` where there is none.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Result<Option<Value>> {
        let answer = self.call(
            &[
                "get",
                kind,
                name,
                "-n",
                namespace,
                "-o",
                "json",
                "--ignore-not-found",
            ],
            "",
        )?;
        ensure!(answer.done, "{}", answer.stderr.trim());
        if answer.stdout.trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(answer.object()?))
    }

    /// Objects of a kind; all namespaces for an empty one.
    pub fn list(&self, kind: &str, namespace: &str, selector: &str) -> Result<Vec<Value>> {
        let mut words = vec!["get", kind, "-o", "json", "-l", selector];
        match namespace {
            "" => words.push("-A"),
            name => words.extend(["-n", name]),
        }
        let found = self.call(&words, "")?.object()?;
        Ok(found["items"].as_array().cloned().unwrap_or_default())
    }

    /// Removes an object and waits until it is gone. Without a kubelet nobody else ends a pod, so nothing is waited for there.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) -> Result<()> {
        let answer = self.call(
            &[
                "delete",
                kind,
                name,
                "-n",
                namespace,
                "--ignore-not-found",
                "--grace-period=0",
                "--force",
                "--wait=true",
                "--timeout=60s",
            ],
            "",
        )?;
        ensure!(answer.done, "{}", answer.stderr.trim());
        Ok(())
    }

    /// Patches an object.
    pub fn patch(&self, kind: &str, namespace: &str, name: &str, patch: &Value) -> Result<Answer> {
        self.call(
            &[
                "patch",
                kind,
                name,
                "-n",
                namespace,
                "--type=merge",
                "-o",
                "json",
                "-p",
                &patch.to_string(),
            ],
            "",
        )
    }

    /// A kubeconfig of the same cluster for a token.
    pub fn config_for(&self, token: &str) -> Result<Value> {
        let answer = self.call(
            &[
                "config",
                "view",
                "--raw",
                "--flatten",
                "--minify",
                "-o",
                "json",
            ],
            "",
        )?;
        let mut config = answer.object()?;
        let user = config["users"][0]["name"].clone();
        config["users"] = json!([{ "name": user, "user": { "token": token } }]);
        Ok(config)
    }
}

/// Asks `look` until it answers something.
///
/// # Errors
/// `look`'s own at once; what was waited for, when nothing came.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if started.elapsed() > PATIENCE {
            bail!("waited {} s in vain: {what}", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(200));
    }
}
