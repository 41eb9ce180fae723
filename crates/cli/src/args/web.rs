//! Arguments of `web`.

use clap::Args;
use divvy_web::gate::WebHost;

use super::{Read, help};

#[derive(Debug, Args)]
#[command(after_help = help::WEB)]
pub struct Web {
    /// Listen on this port [default: a free one]
    ///
    /// Listen on this port of 127.0.0.1 [default: a free one]
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true)]
    pub port: u16,
    /// Let the page cancel, move and resize jobs
    ///
    /// Let the page do what you may do: cancel, hold, move, resize, suspend jobs and start the self-test. Without this
    /// flag, the page only shows
    #[arg(long)]
    pub allow_actions: bool,
    /// A further name that browsers use
    ///
    /// A further name under which browsers reach the page, such as localhost:9000 for a tunnel with another port. May be
    /// repeated
    #[arg(long, value_name = "NAME", value_parser = web_host)]
    pub web_host: Vec<String>,
    #[command(flatten)]
    pub read: Read,
}

/// A host with at most a port.
pub fn web_host(text: &str) -> Result<String, &'static str> {
    match text.parse::<WebHost>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => {
            Err("use a name, as in lab1.example, or a name and a port, as in lab1.example:8443")
        }
    }
}
