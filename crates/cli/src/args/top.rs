//! Arguments of `top`.

use clap::Args;

use super::{Format, help};

#[derive(Debug, Args)]
#[command(after_help = help::TOP)]
pub struct Top {
    /// Print everything once, without escapes
    ///
    /// Print everything once, without escapes; also the default where the output is no terminal
    #[arg(short = '1', long)]
    pub once: bool,
    /// Format: json or ndjson, a document a tick
    ///
    /// Print a document a tick: json, or ndjson with one board per line. With --once one document
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    pub output: Option<Format>,
    /// From one look to the next: 500ms to 10s [1s]
    ///
    /// Time from one look to the next: 500ms to 10s [default: 1s]
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "help in clap's form: the default in brackets"
    )]
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1s",
        hide_default_value = true
    )]
    pub interval: String,
    /// Only these jobs: user:ana queue:half text
    ///
    /// Only jobs that match: user:NAME queue:NAME project:NAME gpu:INDEX state:STATE text
    #[arg(long, value_name = "WORDS")]
    pub filter: Option<String>,
    /// Refuse every key that changes a job
    #[arg(long)]
    pub readonly: bool,
    /// Draw with ASCII characters only
    ///
    /// Draw with ASCII characters only; also the default without a UTF-8 locale
    #[arg(long)]
    pub ascii: bool,
    /// For screen readers: only lines that changed
    ///
    /// For screen readers: print lines that changed, one event per line, and move no cursor
    #[arg(long, conflicts_with_all = ["once", "output"])]
    pub plain: bool,
    /// With --plain: ring the bell at each event
    #[arg(long, requires = "plain")]
    pub bell: bool,
}
