//! Flags for the files of a job's output.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, ValueEnum};

use super::{Format, Submit};

/// The value of `submit -o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// A format of the printed result.
    Form(Format),
    /// A file for the job's output.
    File(String),
}

/// How the first run of a job opens files that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OpenMode {
    Truncate,
    Append,
}

/// Parses the value of `-o`: five formats, and files.
#[derive(Clone)]
pub(super) struct Words;

impl TypedValueParser for Words {
    type Value = Written;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Written, clap::Error> {
        let wrong = |kind| {
            let mut error = clap::Error::new(kind).with_cmd(command);
            let named = arg.map(ToString::to_string).unwrap_or_default();
            error.insert(ContextKind::InvalidArg, ContextValue::String(named));
            error
        };
        let text = value
            .to_str()
            .ok_or_else(|| wrong(ErrorKind::InvalidUtf8))?;
        if let Ok(form) = Format::from_str(text, false) {
            return Ok(Written::Form(form));
        }
        // A mistyped form is no file.
        if !text.contains(['.', '/', '%']) {
            let forms = Format::value_variants().iter();
            let forms = forms.filter_map(ValueEnum::to_possible_value);
            let forms: Vec<String> = forms.map(|form| form.get_name().to_owned()).collect();
            let error = clap::Error::raw(
                ErrorKind::ValueValidation,
                format!(
                    "--output {text}: neither a format ({}) nor a file, which has a dot, a slash or a % in its name\n\n  \
                     tip: for a file write `-o ./{text}`\n",
                    forms.join(", "),
                ),
            );
            return Err(error);
        }
        Ok(Written::File(text.to_owned()))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        None
    }
}

impl Submit {
    /// The first two of its flags that contradict each other.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        match (&self.output, &self.stdout) {
            (Some(Written::Form(_)), _) if self.parsable => {
                Some("the argument '--parsable' cannot be used with '--output <FORMAT>'")
            }
            (Some(Written::File(_)), Some(_)) => {
                Some("the argument '--output <FILE>' cannot be used with '--stdout <FILE>'")
            }
            _ => None,
        }
    }

    /// The format of the printed result, if one is given.
    pub fn form(&self) -> Option<Format> {
        match self.output {
            Some(Written::Form(form)) => Some(form),
            _ => None,
        }
    }

    /// The file of the standard output.
    pub fn stdout(&self) -> Option<&str> {
        match &self.output {
            Some(Written::File(file)) => Some(file),
            _ => self.stdout.as_deref(),
        }
    }
}
