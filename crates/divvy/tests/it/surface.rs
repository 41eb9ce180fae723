//! The program as users and scripts meet it: words in; exit code, stdout and stderr out, recorded.

mod agent;
mod answers;
mod words;
