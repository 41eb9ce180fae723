//! Error output of the commands: data on stdout, messages on stderr, a failure as text or JSON with its exit code.
//!
//! A failure is the node API's own [`Error`], so that codes and exit codes are those of `divvy`. What a cluster says becomes
//! one at a single place, [`of_kube`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use divvy_api::v1::{Error, ErrorCode, List};
use divvy_core::escape;
use serde::Serialize;

use crate::base::cluster;

/// How data is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

impl Format {
    pub fn is_json(self) -> bool {
        self == Self::Json
    }
}

/// The command line, or what is wrong with it: as JSON where that was asked for.
pub fn parse<P: clap::Parser>() -> P {
    P::try_parse().unwrap_or_else(|error| {
        let words: Vec<String> = std::env::args().take_while(|word| word != "--").collect();
        if error.use_stderr() && asks_for_json(&words) {
            // The text has the message first and advice below.

            let text = error.to_string();
            let mut parts = text.splitn(2, "\n\n");
            let message = parts
                .next()
                .unwrap_or_default()
                .trim_start_matches("error: ");
            let hint = parts.next().unwrap_or_default();
            let error = usage(message, clean(hint.trim()));
            report(&error, true);
            std::process::exit(error.code.exit_code().into())
        } else {
            error.exit()
        }
    })
}

fn asks_for_json(words: &[String]) -> bool {
    words
        .windows(2)
        .any(|pair| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json")
        || words
            .iter()
            .any(|word| matches!(word.as_str(), "-ojson" | "-o=json" | "--output=json"))
}

/// Runs a command for people to its exit code.
pub fn people(json: bool, command: impl AsyncFnOnce() -> Result<ExitCode, Error>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => {
            let done = runtime.block_on(command());
            // Tasks that still wait for the cluster are dropped.
            runtime.shutdown_background();
            done
        }
        Err(error) => Err(Error::new(
            ErrorCode::Internal,
            format!("cannot start: {error}"),
        )),
    };
    done.unwrap_or_else(|error| report(&error, json))
}

/// The cluster that people mean.
///
/// # Errors
/// None is told of.
pub async fn client() -> Result<kube::Client, Error> {
    cluster::client().await.map_err(|error| {
        Error::new(ErrorCode::NoDaemon, cluster::chain(&error))
            .hint("set KUBECONFIG to the cluster's kubeconfig file")
    })
}

/// A failure of usage: exit code 2.
pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::new(ErrorCode::Usage, message).hint(hint)
}

/// The error for a cluster's refusal. `what` completes "cannot …": `list nodes`.
pub fn of_kube(error: kube::Error, what: &str) -> Error {
    let kube::Error::Api(status) = error else {
        let message = format!("cannot {what}: {}", cluster::chain(&error));
        return Error::new(ErrorCode::NoDaemon, message).hint(
            "check with `kubectl version` that the cluster of KUBECONFIG is up and reachable",
        );
    };
    let (code, hint) = match status.code {
        401 => (ErrorCode::NotAllowed, "log in to the cluster again"),
        403 => (
            ErrorCode::NotAllowed,
            "ask the cluster's administrator for this right, or use a context of KUBECONFIG that has it",
        ),
        404 => (
            ErrorCode::NotFound,
            "check the name; `kubectl api-resources` lists the resource types of the cluster",
        ),
        409 => (
            ErrorCode::Conflict,
            "the object already exists, or another client changed it: check it with `kubectl get`, then try again",
        ),
        400 | 422 => (ErrorCode::Usage, "change the request as the message says"),
        _ => (
            ErrorCode::Internal,
            "try again; if it fails again, see the API server's log",
        ),
    };
    // One that could not decide is to be asked again.
    let refused_by_webhook = status.code < 500 && status.message.contains("admission webhook");
    let code = if refused_by_webhook {
        ErrorCode::Usage
    } else {
        code
    };
    let error = Error::new(code, format!("cannot {what}: {}", status.message))
        .details(serde_json::json!({ "http_status": status.code, "reason": status.reason }));
    if refused_by_webhook {
        error
    } else {
        error.hint(hint)
    }
}

/// Data, at once.
///
/// # Errors
/// stdout does not take it.
pub fn print(text: &str) -> Result<(), Error> {
    print_bytes(text.as_bytes())
}

/// Writes data of any kind, at once.
///
/// # Errors
/// As [`print()`].
pub fn print_bytes(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)
        .and_then(|()| out.flush())
        .map_err(|error| {
            Error::new(
                ErrorCode::Internal,
                format!("cannot write to stdout: {error}"),
            )
        })
}

/// One line of talk.
pub fn say(line: &str) {
    // A closed stderr is no reason to fail.
    let _ = writeln!(io::stderr(), "divvy-k8s: {}", clean(line));
}

/// The items as one JSON document, as `divvy -o json` has them.
///
/// # Errors
/// They cannot be written as JSON, which only a bug can cause.
pub fn json<T: Serialize>(kind: &str, items: Vec<T>) -> Result<String, Error> {
    let list = List::new(kind, items);
    let text = serde_json::to_string_pretty(&list).map_err(|error| {
        Error::new(
            ErrorCode::Internal,
            format!("cannot write the result as JSON: {error}"),
        )
    })?;
    Ok(text + "\n")
}

/// Tells a failure on stderr and gives its exit code.
pub fn report(error: &Error, json: bool) -> ExitCode {
    // A closed stderr must not hide the exit code.
    let _ = writeln!(io::stderr(), "{}", error.render(json, clean));
    ExitCode::from(error.code.exit_code())
}

/// Columns as wide as they need to be, two spaces between, no space at the end of a line.
pub fn table<const N: usize>(titles: [&str; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[String; N]> = std::iter::once(titles.map(str::to_owned))
        .chain(
            rows.iter()
                .map(|row| row.each_ref().map(|cell| clean(cell))),
        )
        .collect();
    let mut widths = [0; N];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths);
        let line: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Foreign text, on one line and without control, bidirectional and invisible characters.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if escape::is_hidden(c) { ' ' } else { c })
        .collect()
}

/// The first few of many, and how many more.
pub(crate) fn few<T: AsRef<str>>(all: &[T]) -> String {
    /// A longer list hides the message; the count follows.
    const SHOWN: usize = 5;
    let names: Vec<&str> = all.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match all.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn answered(code: u16, reason: &str, message: &str) -> Error {
        let status = Status::failure(message, reason).with_code(code);
        of_kube(kube::Error::Api(status.boxed()), "list nodes")
    }

    #[test]
    fn what_the_cluster_answers_has_the_exit_codes_of_divvy() {
        for (http, exit) in [(401, 4), (403, 4), (404, 3), (409, 8), (422, 2), (500, 1)] {
            let error = answered(http, "Why", "no");
            assert_eq!(error.code.exit_code(), exit, "{http}");
            assert_eq!(error.message, "cannot list nodes: no");
        }
        let denied = answered(
            403,
            "Forbidden",
            "admission webhook \"x\" denied the request: 0.3",
        );
        let later = answered(
            503,
            "ServiceUnavailable",
            "admission webhook \"x\" denied the request: no node offers parts of GPUs yet",
        );
        assert_eq!(later.code.exit_code(), 1, "it may be taken later");
        assert_eq!(
            denied.code.exit_code(),
            2,
            "the request is wrong, not the right to ask"
        );
    }

    #[test]
    fn a_table_is_as_wide_as_it_needs_and_what_was_typed_breaks_no_line() {
        let rows = [
            ["a\nb".to_owned(), String::new()],
            ["long-name".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            table(["NAME", "WHY"], &rows),
            "NAME       WHY\na b\nlong-name  x\n"
        );
    }
}
