//! `/etc/divvy/slurm.toml`: what an administrator may choose. Every key has a default.

use std::io;
use std::path::PathBuf;

use serde::Deserialize;

const FILE: &str = "/etc/divvy/slurm.toml";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutLimit {
    /// The job does not start, and its output has the reason.
    #[default]
    Refuse,
    /// It runs without a limit, and its output has the reason.
    Run,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutDaemon {
    #[default]
    Refuse,
    Run,
    /// Prolog fails: Slurm drains the node and puts the job back.
    Drain,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WholeGpus {
    /// A job of `--gres=gpu:N` holds its GPUs in Divvy too.
    #[default]
    Hold,
    /// Divvy leaves such jobs alone.
    Leave,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub without_limit: WithoutLimit,
    pub without_daemon: WithoutDaemon,
    /// What becomes of a job whose slice only `LD_PRELOAD` would hold.
    pub weaker_form: WithoutLimit,
    pub whole_gpus: WholeGpus,
    /// Shards of each GPU, where `slurmd -G` does not show them.
    pub shards_per_gpu: Option<u32>,
    /// How long Prolog waits for the daemon, and for memory that an ended job gives back.
    pub wait_seconds: u64,
    /// Compute time of each slice, as in `divvy slice create --compute`.
    pub compute: Option<String>,
    /// Whether the job's comment shows the peak of its memory.
    pub comment: bool,
    /// Folder of scontrol, squeue and slurmd.
    pub slurm_bin: Option<PathBuf>,
    /// `DIVVY_HOME` of the daemon [default: the system's daemon].
    pub home: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            without_limit: WithoutLimit::default(),
            without_daemon: WithoutDaemon::default(),
            weaker_form: WithoutLimit::default(),
            whole_gpus: WholeGpus::default(),
            shards_per_gpu: None,
            wait_seconds: 30,
            compute: None,
            comment: true,
            slurm_bin: None,
            home: None,
        }
    }
}

/// The file that this process reads.
pub fn path() -> PathBuf {
    std::env::var_os("DIVVY_SLURM_CONFIG").map_or_else(|| FILE.into(), PathBuf::from)
}

impl Config {
    /// Reads the file; the defaults without one.
    ///
    /// # Errors
    /// In words: the file, the line and the key.
    pub fn read() -> Result<Self, String> {
        let file = path();
        match std::fs::read_to_string(&file) {
            Ok(text) => Self::parse(&text).map_err(|why| format!("{}: {why}", file.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("cannot read {}: {error}", file.display())),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| {
                let before = text.get(..span.start).unwrap_or_default();
                format!("line {}: ", before.matches('\n').count() + 1)
            });
            format!("{}{}", line.unwrap_or_default(), error.message())
        })?;
        if config.shards_per_gpu == Some(0) {
            return Err("shards_per_gpu = 0: a GPU has at least one shard".to_owned());
        }
        if config.wait_seconds > 600 {
            let seconds = config.wait_seconds;
            return Err(format!("wait_seconds = {seconds}: use at most 600"));
        }
        Ok(config)
    }

    pub fn leaves_whole_gpus(&self) -> bool {
        self.whole_gpus == WholeGpus::Leave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_default_and_a_wrong_one_is_named_with_its_line() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
        let config =
            Config::parse("without_daemon = \"drain\"\nshards_per_gpu = 8\nhome = \"/h\"").unwrap();
        assert_eq!(config.without_daemon, WithoutDaemon::Drain);
        assert_eq!(config.shards_per_gpu, Some(8));
        for (text, part) in [
            ("comment = true\nwhole = 1", "line 2: unknown field `whole`"),
            (
                "without_limit = \"maybe\"",
                "line 1: unknown variant `maybe`",
            ),
            ("shards_per_gpu = 0", "shards_per_gpu = 0"),
            ("wait_seconds = 601", "wait_seconds = 601"),
            ("wait_seconds = -1", "line 1"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
